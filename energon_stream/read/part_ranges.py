"""Selects parts of samples, and finds the byte ranges that hold them. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from energon_stream.tar.format import TAR_RECORD

if TYPE_CHECKING:
    from energon_stream.arrays import Int64Array
    from energon_stream.index.part_places import PartPlaces

_MAX_RANGES = 4


def find_part(wanted: str, parts: Collection[str]) -> str | None:
    """Return the part whose name differs in case alone, as cameras write ``JPG``; None if there is none."""
    folded = wanted.lower()
    return next((part for part in parts if part.lower() == folded), None)


@dataclass(frozen=True, slots=True)
class PartSelection:
    """The parts of its samples that a dataset needs."""

    wanted: frozenset[str] | Callable[[str], bool]  # names, or a function of a name
    declared: bool = True  # whether the user selected parts; False if a field map merely leaves some out

    def __contains__(self, part: str) -> bool:
        if isinstance(self.wanted, frozenset):
            return part in self.wanted or find_part(part, self.wanted) is not None
        return bool(self.wanted(part))

    @property
    def max_ranges(self) -> int:
        """Largest number of byte ranges of a sample; the last one takes the rest."""
        if not isinstance(self.wanted, frozenset):
            return _MAX_RANGES
        return max(1, min(_MAX_RANGES, len(self.wanted)))


@dataclass(frozen=True, slots=True, eq=False)
class PartRanges:
    """Byte ranges of neighbouring samples: ``[n, width]`` arrays, with -1 if a sample has fewer."""

    starts: Int64Array  # first byte of each range, where a tar header begins
    stops: Int64Array  # one past the last byte of each range, padding included
    known: Int64Array  # ``[n]``, number of wanted parts of each sample
    skipped: int  # bytes of the samples outside all ranges

    def rows(self) -> Int64Array:
        """Return the starts, the stops, and the number of wanted parts as columns, one row a sample."""
        return np.concatenate([self.starts, self.stops, self.known[:, None]], axis=1)


def doubtful_samples(places: PartPlaces, *, after: int, least: int, most: int) -> Int64Array:
    """Return the samples that may have more wanted parts than are known.

    These samples have fewer than ``most`` known wanted parts, and bytes that belong to no known part. So a
    damaged index that leaves parts out does not lead to samples without them. ``after`` are the bytes between
    the last part and the next one, or the end of the tar; ``least`` those of the headers of a part.
    """
    count = len(places.known)
    has_more = np.append(places.gaps, after) - least >= TAR_RECORD
    of = np.append(places.samples, count)
    firsts = np.flatnonzero(np.diff(of, prepend=-1))
    unexplained = np.zeros(count + 1, dtype=bool)
    unexplained[of[has_more]] = True
    # Bytes between two samples may belong to either.
    unexplained[:-1] |= has_more[firsts][1:]
    doubtful = unexplained[:-1] & (places.known < most)
    # After unknown bytes of a sample, it is unknown where the next one begins.
    doubtful[1:] |= doubtful[:-1] & has_more[firsts][1:-1]
    return np.flatnonzero(doubtful)


def find_part_ranges(places: PartPlaces, *, max_gap: int, width: int) -> PartRanges:
    """Find the byte ranges that hold the wanted parts, with their headers.

    Wanted parts of a sample with at most ``max_gap`` unwanted bytes between them share a range. If a
    sample has more ranges than ``width``, the last one takes the rest. A sample without a wanted part
    contributes its smallest part, because the header has the key.
    """
    samples, sizes, stops = places.samples, places.sizes, places.ends
    headers = places.starts - places.gaps
    steps = np.diff(samples, prepend=-1)
    # Sums with stops of more than 2**60 wrap.
    possible = (places.gaps >= TAR_RECORD) & (sizes >= 0) & (stops < 1 << 60) & (steps >= 0) & (steps <= 1)
    if not possible.all():
        raise ValueError("the parts do not follow each other")
    wanted, known = places.wanted.copy(), places.known
    count, without = len(known), np.flatnonzero(known == 0)
    by_size = np.lexsort((sizes, samples))
    wanted[by_size[np.searchsorted(samples, without)]] = True

    of, first, last = samples[wanted], headers[wanted], stops[wanted]
    joins = np.zeros(len(of), dtype=bool)
    joins[1:] = (of[1:] == of[:-1]) & (first[1:] - last[:-1] <= max_gap)
    number = np.cumsum(~joins)
    column = np.minimum(number - number[np.searchsorted(of, of)], width - 1)
    heads = np.flatnonzero(np.diff(of * width + column, prepend=-1))
    tails = np.append(heads[1:], len(of)) - 1
    found = np.full((2, count, width), -1, dtype=np.int64)
    found[0, of[heads], column[heads]] = first[heads]
    found[1, of[heads], column[heads]] = last[tails]
    return PartRanges(found[0], found[1], known, int(stops[-1] - places.begin - (found[1] - found[0]).sum()))
