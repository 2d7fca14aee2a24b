"""What a block file says about the bytes it holds: pure functions of records.

A record tells of a run of bytes that is there, and its hash. Runs are cut at 128 KiB borders, so that a small read
has little to verify. Each record carries a check of itself that is made with the block's own key: what was
written in part, or for another object, is no record.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash

from energon_stream.arrays import Int64Array, UInt64Array

__all__ = ["LINE_BYTES", "PAGE_BYTES", "RECORD_BYTES", "Piece", "PieceTable", "encode_pieces", "page_ceil"]

LINE_BYTES = 128 << 10
"""Where pieces are cut."""

_HASHED_AT_ONCE = 64 << 10
"""xxHash gives Python's lock away while it hashes 100 kB or more, which takes longer than the hash where threads are many."""

PAGE_BYTES = 4096
"""What disks give out."""

RECORD_BYTES = 32
_EXTENT_BYTES = 12
_FIELDS = np.dtype("<u8")  # start, stop, hash, check
_FACTORS = (np.uint64(0xD6E8FEB86659FD93), np.uint64(0xA0761D6478BD642F), np.uint64(0xE7037ED1A0B428DB))
_HALF = np.uint64(32)

Piece: TypeAlias = tuple[int, int, int]
"""First byte in the block, one past the last, and the hash."""


def page_ceil(size: int) -> int:
    """``size`` in whole pages."""
    return -(-size // PAGE_BYTES) * PAGE_BYTES


def encode_pieces(key: int, start: int, data: memoryview) -> bytes:
    """Records of bytes.

    Args:
        key: Key of the block.
        start: Where in the block the bytes begin.
        data: The bytes.
    """
    stop = start + len(data)
    cuts = [start, *range(start - start % LINE_BYTES + LINE_BYTES, stop, LINE_BYTES), stop]
    table = np.empty((len(cuts) - 1, 4), dtype=_FIELDS)
    table[:, 0], table[:, 1] = cuts[:-1], cuts[1:]
    table[:, 2] = [_hash(data[first - start : last - start]) for first, last in itertools.pairwise(cuts)]
    table[:, 3] = _checks(key, table)
    return table.tobytes()


def _hash(data: memoryview) -> int:
    state = xxhash.xxh3_64()
    for start in range(0, len(data), _HASHED_AT_ONCE):
        state.update(data[start : start + _HASHED_AT_ONCE])
    return state.intdigest()


def _checks(key: int, table: npt.NDArray[np.uint64]) -> UInt64Array:
    mixed = (table[:, 2] ^ np.uint64(key)) + table[:, 0] * _FACTORS[0] + table[:, 1] * _FACTORS[1]
    checks: UInt64Array = (mixed ^ (mixed >> _HALF)) * _FACTORS[2]
    return checks


@dataclass(frozen=True, slots=True, eq=False)
class PieceTable:
    """The pieces of a block, or of a part of it, without those that others hold; starts and stops increase.

    Attributes:
        starts: ``int64``, first byte of each piece.
        stops: ``int64``, one past the last byte of each.
        digests: ``uint64``, hash of each.
        num_records: Records that the file has, those that say nothing included.
    """

    starts: Int64Array
    stops: Int64Array
    digests: UInt64Array
    num_records: int

    @classmethod
    def decode(cls, key: int, raw: bytes, start: int = 0, stop: int | None = None) -> PieceTable:
        """Read records.

        Args:
            key: Key of the block.
            raw: What follows its data; an unfinished record at the end counts for nothing.
            start: Take only pieces with bytes from here on …
            stop: … to here; None for the end of the block.
        """
        count = len(raw) // RECORD_BYTES
        table = np.frombuffer(raw, dtype=_FIELDS, count=4 * count).reshape(count, 4)
        wanted = table[:, 1] > start
        if stop is not None:
            wanted &= table[:, 0] < stop
        table = table[wanted]
        table = table[table[:, 3] == _checks(key, table)]
        starts, stops = table[:, 0].astype(np.int64), table[:, 1].astype(np.int64)
        order = starts.argsort(kind="stable")
        starts, stops = starts[order], stops[order]
        adds = np.ones(len(stops), dtype=np.bool_)
        adds[1:] = stops[1:] > np.maximum.accumulate(stops)[:-1]
        return cls(starts[adds], stops[adds], table[order[adds], 2], count)

    def runs(self, start: int, stop: int) -> list[list[Piece]]:
        """Pieces that have bytes of ``[start, stop)``, those that follow each other without a gap together."""
        # Not numpy's searches: calls of it take longer than these few steps, and this is done for every read.
        lo, hi = bisect_right(self.stops, start), bisect_left(self.starts, stop)
        columns = (self.starts[lo:hi].tolist(), self.stops[lo:hi].tolist(), self.digests[lo:hi].tolist())
        runs: list[list[Piece]] = []
        for piece in zip(*columns, strict=True):
            if runs and piece[0] <= runs[-1][-1][1]:
                runs[-1].append(piece)
            else:
                runs.append([piece])
        return runs

    def gaps(self, start: int, stop: int) -> list[tuple[int, int]]:
        """What of ``[start, stop)`` is in no piece."""
        gaps = []
        for run in self.runs(start, stop):
            if run[0][0] > start:
                gaps.append((start, run[0][0]))
            start = run[-1][1]
        if start < stop:
            gaps.append((start, stop))
        return gaps

    def disk_bytes(self, more: Sequence[tuple[int, int]] = (), more_records: int = 0) -> int:
        """What the block's file takes of the disk, at most; of a partial table, the difference that more makes.

        Data and records count by pages, and so does what file systems note of the places of a file's data: 12 bytes
        for each run of pages (an extent of ext4), of which there are no more than records. A file without any
        counts as a page.

        Args:
            more: Ranges that are not in the table, as if they were.
            more_records: Records for these.
        """
        starts, stops = self.starts, self.stops
        if more:
            added = np.array(more, dtype=np.int64)
            starts, stops = np.concatenate([starts, added[:, 0]]), np.concatenate([stops, added[:, 1]])
            order = np.argsort(starts)
            starts, stops = starts[order], stops[order]
        first, last = starts // PAGE_BYTES, -(-stops // PAGE_BYTES)
        before = np.zeros_like(last)
        before[1:] = np.maximum.accumulate(last)[:-1]
        data = int(np.maximum(last - np.maximum(first, before), 0).sum()) * PAGE_BYTES
        records = self.num_records + more_records
        return max(data + page_ceil(records * RECORD_BYTES) + page_ceil(records * _EXTENT_BYTES), PAGE_BYTES)
