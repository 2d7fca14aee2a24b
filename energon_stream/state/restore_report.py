"""The report of a restore into a dataset that changed: what the run keeps, and what it does differently."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from energon_stream.printable import counted

Change: TypeAlias = Literal["grown", "moved", "added", "replaced", "removed", "dealt"]

_MOST_SHOWN = 20


@dataclass(frozen=True, slots=True)
class LeafChange:
    """One leaf of a mixture that changed."""

    leaf: str  # URL and split part of the dataset
    # ``"grown"``: shards were appended. ``"moved"``: it stands elsewhere in the mixture. ``"added"``: it is
    # new. ``"replaced"``: it is another than the one that stood there, and begins anew. ``"removed"``: it is
    # gone. ``"dealt"``: it did not change, but the datasets before it have another number of samples, which
    # moves the streams' shares of this one by a few.
    change: Change
    shards: tuple[int, int]  # number of shards when the state was saved, and now
    samples: tuple[int, int]  # number of samples when the state was saved, and now, in the used subset
    # Samples that this rank's streams consumed in the passes that they are in. Samples that operators hold
    # are among these; in passes with several copies, or with replacement, each draw counts.
    consumed: int
    # samples that these passes still have, of those when the state was saved, as if nothing had changed
    left: int
    # number of its place in the mixture when the state was saved, and now, if it was moved
    places: tuple[int, int] | None = None

    def __str__(self) -> str:
        if self.change == "added":
            return f"{self.leaf} is new, with {counted(self.samples[1], 'sample')}: drawn from the next sample on"
        if self.change == "removed":
            return f"{self.leaf} is gone: nothing more is drawn from it"
        if self.change == "replaced":
            return (
                f"{self.leaf} is not the dataset that stood there, with {counted(self.samples[0], 'sample')} in "
                f"{counted(self.shards[0], 'shard')}: it begins anew, with {counted(self.samples[1], 'sample')}"
            )
        under_way = (
            f"in the passes under way in this rank's streams, {counted(self.consumed, 'sample')} {'was' if self.consumed == 1 else 'were'} consumed "
            f"and {self.left} earlier ones follow"
        )
        if self.change == "dealt":
            return f"{self.leaf} did not change, but the streams' shares move by a few samples; {under_way}"
        moved = (
            "" if self.places is None else " from place {} to place {} of the mixture".format(*self.places)
        )
        if self.change == "moved":
            return f"{self.leaf} moved{moved}, and goes on where it was; {under_way}"
        moved = moved and f", moved{moved}"
        return (
            f"{self.leaf}{moved} grew from {self.shards[0]} to {self.shards[1]} shards, from {self.samples[0]} to "
            f"{self.samples[1]} samples; {under_way}; later passes have all {self.samples[1]}"
        )


@dataclass(frozen=True, slots=True)
class ChangeReport:
    """The changes between a state and the dataset that it was restored into.

    Guarantee: each stream ends its present pass of a leaf that is still there as it would have without the
    change. Over all streams that had begun, these passes have every sample that there was when the state was
    saved, once (or as often as ``shuffle_over_epochs_multiplier`` says). The passes after them have every
    sample that there is now.

    Example:
        >>> from energon_stream.state import ChangeReport
        >>> print(ChangeReport(leaves=(), weights=True))
        the dataset changed since the state was saved:
          new weights hold from the next draw on; every dataset that is the same goes on where it was
    """

    leaves: tuple[LeafChange, ...]  # leaves that changed, in their order
    # True if the weights of some blend changed. New weights hold from the next draw on; every leaf goes on
    # where it was. The weights of ``blend_epochized`` are numbers of samples, so growth changes them too.
    weights: bool
    dropped: int = 0  # weights that ``set_weights`` had set, which the new ones replace
    # names of datasets that were taken for the same, though it is not known that their samples are
    unchecked: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = ["the dataset changed since the state was saved:"]
        shown = [leaf for leaf in self.leaves if leaf.change != "dealt"]
        lines += [f"  {leaf}" for leaf in shown[:_MOST_SHOWN]]
        if len(shown) > _MOST_SHOWN:
            lines.append(f"  and {len(shown) - _MOST_SHOWN} more datasets, see restore_report")
        if dealt := len(self.leaves) - len(shown):
            lines.append(
                f"  the streams' shares of {dealt} other datasets move by a few samples in their next passes"
            )
        if self.weights:
            lines.append(
                "  new weights hold from the next draw on; every dataset that is the same goes on where it was"
            )
        if self.dropped:
            lines.append(f"  they replace {self.dropped} changes that set_weights had made or planned")
        if self.unchecked:
            first = ", ".join(self.unchecked[:3]) + ", …" * (len(self.unchecked) > 3)
            lines.append(f"  it could not be checked that these are the datasets that stood there: {first}")
        return "\n".join(lines)
