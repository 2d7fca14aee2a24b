"""What makes room for what: pure functions, the same for the cache and for its simulation.

Where every epoch has another order, whatever was just used is wanted again only in the next epoch, after all the
rest. No policy can then serve more than the share c of the reads, if c of the data fits. What stays where it is
("pin") reaches that; what evicts the least recently used reaches c + (1 - c) ln(1 - c).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from energon_stream.errors import ConfigError

__all__ = ["Entry", "LruPolicy", "PinPolicy", "Policy", "make_policy", "plan_shares"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A block, as policies see it.

    Attributes:
        key: Names it, for the caller.
        root: Dataset that it belongs to.
        group: What is used and falls out of use together: the dataset, or one version of an object.
        bytes: What its removal gains.
        last_use: When it was last read or written, in any unit.
        in_use: Whether a running process uses its group.
    """

    key: str
    root: str
    group: str
    bytes: int
    last_use: float
    in_use: bool


class Policy(Protocol):
    """Chooses what is evicted."""

    def candidates(self, entries: Sequence[Entry], shares: Mapping[str, int]) -> list[Entry]:
        """What may be removed, the first to go first.

        Args:
            entries: What is in the cache.
            shares: Bytes that some datasets are planned to have.
        """


class PinPolicy:
    """What is in use stays. What no running process uses goes, the group first that was out of use for longest;
    then what a dataset has beyond its planned share."""

    def candidates(self, entries: Sequence[Entry], shares: Mapping[str, int]) -> list[Entry]:
        """See :class:`Policy`."""
        last_use: dict[str, float] = {}
        for entry in entries:
            last_use[entry.group] = max(entry.last_use, last_use.get(entry.group, entry.last_use))
        unused = [entry for entry in entries if not entry.in_use]
        unused.sort(key=lambda entry: (last_use[entry.group], entry.group, entry.last_use))
        return unused + _beyond([entry for entry in entries if entry.in_use], shares)


class LruPolicy:
    """What was not used for longest goes."""

    def candidates(self, entries: Sequence[Entry], shares: Mapping[str, int]) -> list[Entry]:
        """See :class:`Policy`; shares mean nothing here."""
        return sorted(entries, key=lambda entry: entry.last_use)


def make_policy(name: Literal["pin", "lru"]) -> Policy:
    """The policy of a name."""
    return PinPolicy() if name == "pin" else LruPolicy()


def _beyond(entries: Iterable[Entry], shares: Mapping[str, int]) -> list[Entry]:
    """What datasets have beyond their shares, oldest first."""
    by_root: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        if entry.root in shares:
            by_root[entry.root].append(entry)
    beyond = []
    for root, its in by_root.items():
        surplus = sum(entry.bytes for entry in its) - shares[root]
        for entry in sorted(its, key=lambda entry: entry.last_use):
            if surplus < entry.bytes:
                break
            surplus -= entry.bytes
            beyond.append(entry)
    return beyond


def plan_shares(sizes: Sequence[int], reads: Sequence[float], quota: int) -> list[int]:
    """Deal a quota to datasets so that most reads are hits.

    Of a dataset of which a share is pinned, that share of the reads are hits. So each byte of the quota earns
    what a byte of its dataset is read, and goes where that is most; datasets that earn the same get the same
    share of their sizes.

    Args:
        sizes: Bytes of each dataset.
        reads: Bytes that are read of each in the same time, such as weight × bytes of a sample; any unit.
        quota: Bytes to deal.

    Returns:
        Bytes of each dataset; their sum is the quota, or less where all fits.

    Raises:
        ConfigError: Negative numbers, or not as many reads as sizes.
    """
    if len(sizes) != len(reads) or min((*sizes, *reads, quota), default=0) < 0:
        raise ConfigError(
            f"{len(sizes)} sizes, {len(reads)} reads and a quota of {quota} bytes make no plan",
            hint="Give one number of reads for each size, none of them negative.",
        )
    shares = [0] * len(sizes)
    by_worth: dict[float, list[int]] = defaultdict(list)
    for number, size in enumerate(sizes):
        if size:
            by_worth[reads[number] / size].append(number)
    for _, numbers in sorted(by_worth.items(), reverse=True):
        wanted = sum(sizes[number] for number in numbers)
        dealt = min(wanted, quota)
        quota -= dealt
        for number in numbers:  # each gets its part of what is left, so that nothing is lost in rounding
            shares[number] = dealt * sizes[number] // wanted
            dealt, wanted = dealt - shares[number], wanted - sizes[number]
    return shares
