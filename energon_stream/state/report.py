"""What a run keeps, and what it does otherwise, after a restore into a dataset that changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = ["Change", "ChangeReport", "LeafChange"]

Change: TypeAlias = Literal["grown", "added", "dealt"]

_SHOWN = 20


@dataclass(frozen=True, slots=True)
class LeafChange:
    """One source that changed.

    Attributes:
        source: Where it lies, and its split part.
        change: ``"grown"``: shards were appended. ``"added"``: it is new. ``"dealt"``: it is as it was, but as a source before
            it has another number of samples, the streams' shares of it move by a few.
        shards: How many there were, and are.
        samples: How many there were, and are, in the used subset.
        given: Of the passes that this rank's streams are in, what they have given out. Samples that operators hold
            are among these; of passes with several copies, or with replacement, each draw counts.
        left: What these passes will still give out: of the samples of then, and as if nothing had changed.
    """

    source: str
    change: Change
    shards: tuple[int, int]
    samples: tuple[int, int]
    given: int
    left: int

    def __str__(self) -> str:
        if self.change == "added":
            return f"{self.source} is new, with {self.samples[1]} samples: drawn from the next sample on"
        under_way = f"of the passes under way in this rank's streams, {self.given} samples were given out and {self.left} of then follow"
        if self.change == "dealt":
            return f"{self.source} is as it was, but the streams' shares of it move by a few samples; {under_way}"
        return (
            f"{self.source} grew from {self.shards[0]} to {self.shards[1]} shards, from {self.samples[0]} to {self.samples[1]} "
            f"samples; {under_way}; passes after these have all {self.samples[1]}"
        )


@dataclass(frozen=True, slots=True)
class ChangeReport:
    """What changed between a state and the dataset that it was restored into.

    What is guaranteed: each stream ends the pass of a source that it is in as it would have without the change. Over all streams
    that had begun, these passes have every sample of then once (as often as ``shuffle_over_epochs_multiplier`` says), and the
    passes after them every sample of now.

    Attributes:
        sources: Sources that changed, in their order.
        weights: Whether the weights of some blend are others. They hold from the next draw on; every source goes on
            where it was. The weights of ``blend_epochized`` are numbers of samples, which growth changes, too.
    """

    sources: tuple[LeafChange, ...]
    weights: bool

    def __str__(self) -> str:
        lines = ["the dataset changed since the state was saved:"]
        other = [source for source in self.sources if source.change != "dealt"]
        lines += [f"  {source}" for source in other[:_SHOWN]]
        if len(other) > _SHOWN:
            lines.append(f"  and {len(other) - _SHOWN} sources more, see restore_report")
        if dealt := len(self.sources) - len(other):
            lines.append(
                f"  of {dealt} other sources, the streams' shares move by a few samples when their passes under way are over"
            )
        if self.weights:
            lines.append("  the weights are others from the next draw on; every source goes on where it was")
        return "\n".join(lines)
