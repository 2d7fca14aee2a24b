"""Selects parts of samples, and finds the byte ranges that hold them. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from energon_stream.index.tar_format import TAR_RECORD

if TYPE_CHECKING:
    from energon_stream.arrays import Int64Array

_MAX_RANGES = 4


@dataclass(frozen=True, slots=True)
class PartSelection:
    """The parts of its samples that a dataset needs."""

    wanted: frozenset[str] | Callable[[str], bool]  # names, or a function of a name
    declared: bool = True  # whether the user selected parts; False if a field map merely leaves some out

    def __contains__(self, part: str) -> bool:
        return part in self.wanted if isinstance(self.wanted, frozenset) else bool(self.wanted(part))

    @property
    def max_ranges(self) -> int:
        """Largest number of byte ranges of a sample; the last one takes the rest."""
        if not isinstance(self.wanted, frozenset):
            return _MAX_RANGES
        return max(1, min(_MAX_RANGES, len(self.wanted)))


@dataclass(frozen=True, slots=True, eq=False)
class PartRanges:
    """Byte ranges of neighbouring samples."""

    # ``int64 [n, width]``, first byte of each range, where a tar header begins; -1 if a sample has fewer.
    starts: Int64Array
    # ``int64 [n, width]``, one past the last byte of each range, padding included; -1 likewise.
    stops: Int64Array
    skipped: int  # bytes of the samples outside all ranges


def find_part_ranges(
    samples: Int64Array,
    starts: Int64Array,
    sizes: Int64Array,
    wanted: npt.NDArray[np.bool_],
    *,
    begin: int,
    max_gap: int,
    width: int,
) -> PartRanges:
    """Find the byte ranges that hold the wanted parts, with their headers.

    Wanted parts of a sample with at most ``max_gap`` unwanted bytes between them share a range. If a sample
    has more ranges than ``width``, the last one takes the rest. A sample without a wanted part contributes
    its smallest part, because the header has the key.

    Args:
        samples: ``int64``, sample of each part, from 0, in the order of the tar.
        starts: ``int64``, first byte of each part's content.
        sizes: ``int64``, its length.
        wanted: ``bool``, whether a part is wanted.
        begin: First byte of the first part's header.
        max_gap: Unwanted bytes that are read rather than split a range.
        width: Largest number of ranges of a sample.

    Raises:
        ValueError: The parts do not follow each other as in a tar.
    """
    stops = starts + -(-sizes // TAR_RECORD) * TAR_RECORD
    headers = np.concatenate([[begin], stops[:-1]])
    steps = np.diff(samples, prepend=-1)
    if (starts - headers < TAR_RECORD).any() or (sizes < 0).any() or ((steps != 0) & (steps != 1)).any():
        raise ValueError("the parts do not follow each other")
    count = int(samples[-1]) + 1
    wanted = wanted.copy()
    without = np.flatnonzero(np.bincount(samples[wanted], minlength=count) == 0)
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
    return PartRanges(found[0], found[1], int(stops[-1] - begin - (found[1] - found[0]).sum()))
