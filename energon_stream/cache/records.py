"""Records of a block file: pure functions.

A record says that the file holds a run of bytes, and gives their hash. Runs end at multiples of 128 KiB, so
that a small read has little to verify. Each record carries a check of itself, made with the block's key. A
record that was written in part, or for another block, fails the check and is ignored.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash

from energon_stream.arrays import Int64Array, UInt64Array

LINE_BYTES = 128 << 10  # between the places where runs are cut
_HASHED_AT_ONCE = 64 << 10  # from 100 kB on, xxHash releases the GIL, and taking it again costs more
PAGE_BYTES = 4096  # allocation unit of file systems
LARGEST_BLOCK = 1 << 30
RECORD_BYTES = 32
_EXTENT_BYTES = 12
_FIELDS = np.dtype("<u8")  # start, stop, hash, check
_FACTORS = (np.uint64(0xD6E8FEB86659FD93), np.uint64(0xA0761D6478BD642F), np.uint64(0xE7037ED1A0B428DB))
_HALF = np.uint64(32)

Span: TypeAlias = tuple[int, int]
"""First byte, and one past the last."""

Record: TypeAlias = tuple[int, int, int]
"""First byte in the block, one past the last, and the hash of the bytes."""


def page_ceil(size: int) -> int:
    """Round ``size`` up to whole pages."""
    return -(-size // PAGE_BYTES) * PAGE_BYTES


def outside(spans: Iterable[Span], start: int, stop: int) -> list[Span]:
    """Return the parts of ``[start, stop)`` outside the spans, which are in order and do not overlap."""
    gaps = []
    for first, last in spans:
        if first > start:
            gaps.append((start, first))
        start = last
    if start < stop:
        gaps.append((start, stop))
    return gaps


def merge_spans(spans: Iterable[Span], distance: int = 0) -> list[Span]:
    """Sort spans, and merge those with at most ``distance`` bytes between them."""
    merged: list[Span] = []
    for start, stop in sorted(spans):
        if merged and start - merged[-1][1] <= distance:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged


def encode_records(key: int, start: int, data: memoryview) -> bytes:
    """Encode the records of bytes that begin at ``start`` in the block with this key."""
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
class RecordTable:
    """Valid records of a block, or of a part of it, in order. Records that lie inside others are left out."""

    starts: Int64Array  # ``int64``, first byte of each record
    stops: Int64Array  # ``int64``, one past the last byte of each
    digests: UInt64Array  # ``uint64``, hash of each
    num_records: int  # records in the file, invalid ones included

    @classmethod
    def decode(cls, key: int, raw: bytes, start: int = 0, stop: int | None = None) -> RecordTable:
        """Decode the records with bytes of ``[start, stop)`` of a block; ``raw`` is all after the data."""
        count = len(raw) // RECORD_BYTES
        table = np.frombuffer(raw, dtype=_FIELDS, count=4 * count).reshape(count, 4)
        wanted = table[:, 1] > start
        if stop is not None:
            wanted &= table[:, 0] < stop
        table = table[wanted]
        table = table[(table[:, 3] == _checks(key, table)) & (table[:, 0] < table[:, 1])]
        table = table[table[:, 1] <= LARGEST_BLOCK]
        starts, stops = table[:, 0].astype(np.int64), table[:, 1].astype(np.int64)
        order = starts.argsort(kind="stable")
        starts, stops = starts[order], stops[order]
        adds = np.ones(len(stops), dtype=np.bool_)
        adds[1:] = stops[1:] > np.maximum.accumulate(stops)[:-1]
        return cls(starts[adds], stops[adds], table[order[adds], 2], count)

    def runs(self, start: int, stop: int) -> list[list[Record]]:
        """Return the records with bytes of ``[start, stop)``, in runs without gaps."""
        # bisect, not numpy: this happens for every read, and calling numpy takes longer than these few steps.
        lo, hi = bisect_right(self.stops, start), bisect_left(self.starts, stop)
        columns = (self.starts[lo:hi].tolist(), self.stops[lo:hi].tolist(), self.digests[lo:hi].tolist())
        runs: list[list[Record]] = []
        for record in zip(*columns, strict=True):
            if runs and record[0] <= runs[-1][-1][1]:
                runs[-1].append(record)
            else:
                runs.append([record])
        return runs

    def gaps(self, start: int, stop: int) -> list[Span]:
        """Return the parts of ``[start, stop)`` that no record covers."""
        return outside(((run[0][0], run[-1][1]) for run in self.runs(start, stop)), start, stop)

    def disk_bytes(self, more: Sequence[Span] = (), more_records: int = 0) -> int:
        """Return an upper bound of the disk space of the block's file, if it also had ``more`` ranges.

        Data and records count by pages. So do the file system's notes of where the data lies: 12 bytes for
        each run of pages (an extent of ext4), and there are no more runs than records. An empty file counts
        as one page. For a table of a part of the block, only the difference of two calls has a meaning.
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
