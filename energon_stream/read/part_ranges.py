"""Which bytes of a tar to read for some parts of its samples: pure arithmetic on places."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from energon_stream.arrays import Int64Array
from energon_stream.index.tar_format import TAR_RECORD

__all__ = ["PartRanges", "find_part_ranges"]


@dataclass(frozen=True, slots=True, eq=False)
class PartRanges:
    """Byte ranges of neighbouring samples.

    Attributes:
        starts: ``int64 [n, width]``, first byte of each range, which is one of a tar header; -1 where a
            sample has fewer.
        stops: ``int64 [n, width]``, one past the last byte, which is one of padding; -1 likewise.
        skipped: Bytes of the samples that are in no range.
    """

    starts: Int64Array
    stops: Int64Array
    skipped: int


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

    Wanted parts of a sample with at most ``max_gap`` unwanted bytes between them are one range; where there
    are more ranges than ``width``, the last one takes the rest. Of a sample without a wanted part, its smallest
    part is read, because its header has the key.

    Args:
        samples: ``int64``, sample of each part, counted from 0; parts are in the order of the tar.
        starts: ``int64``, first byte of each part's content.
        sizes: ``int64``, its length.
        wanted: ``bool``, which parts are wanted.
        begin: Where the first part's header begins.
        max_gap: Unwanted bytes that are read rather than split a range.
        width: Largest number of ranges of a sample.

    Raises:
        ValueError: No tar has its parts at such places.
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
