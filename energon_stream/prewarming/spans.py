"""Byte ranges of objects as arrays, and the set of ranges that are already planned.

A row of an ``int64`` array ``[n, 3]`` is a range: number of the object, first byte, one past the last byte.
"""

from __future__ import annotations

import numpy as np

from energon_stream.arrays import Int64Array
from energon_stream.storage import plan_fetches


def total_bytes(spans: Int64Array) -> int:
    """Return the bytes of all ranges."""
    return int((spans[:, 2] - spans[:, 1]).sum())


def cut(spans: Int64Array, most: int) -> Int64Array:
    """Cut each range into equal pieces of at most ``most`` bytes."""
    sizes = spans[:, 2] - spans[:, 1]
    counts = -(-sizes // most)
    row = np.repeat(np.arange(len(spans)), counts)
    number = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    pieces = spans[row]
    pieces[:, 2] = pieces[:, 1] + sizes[row] * (number + 1) // counts[row]
    pieces[:, 1] += sizes[row] * number // counts[row]
    return pieces


class Coverage:
    """The bytes wanted so far, each counted once.

    Bytes between two wanted ranges of an object count as wanted if they are at most ``max_gap``, because a
    reader that needs both ranges reads over the gap.
    """

    def __init__(self, max_gap: int) -> None:
        self._max_gap = max_gap
        self.spans: Int64Array = np.zeros((0, 3), dtype=np.int64)  # all, by object and position

    def add(self, wanted: Int64Array) -> Int64Array:
        """Add ranges; return the bytes that were not covered before, by object and position."""
        if not len(wanted):
            return wanted
        touched = np.isin(self.spans[:, 0], np.unique(wanted[:, 0]))
        old, other = self.spans[touched], self.spans[~touched]
        objects, starts, stops = np.concatenate([old, wanted]).T
        required, most = np.ones(len(objects), dtype=bool), max(1, int(stops.max()))
        plan = plan_fetches(objects, starts, stops, required, max_gap=self._max_gap, max_bytes=most)
        islands = np.stack([plan.objects, plan.starts, plan.stops], axis=1)
        self.spans = _sorted(np.concatenate([other, islands]))
        return _without(islands, old)


def _without(islands: Int64Array, old: Int64Array) -> Int64Array:
    """Return the parts of ``islands`` outside ``old``; each range of ``old`` lies in one of ``islands``.

    Along an island, such a part begins where the island begins or an old range ends, and ends where the
    island ends or an old range begins. Sorted, the n-th beginning belongs to the n-th end.
    """
    begins = _sorted(np.concatenate([islands[:, [0, 1]], old[:, [0, 2]]]))
    ends = _sorted(np.concatenate([islands[:, [0, 2]], old[:, [0, 1]]]))
    left = np.column_stack([begins, ends[:, 1]])
    return left[left[:, 2] > left[:, 1]]


def _sorted(rows: Int64Array) -> Int64Array:
    return rows[np.lexsort(rows.T[::-1])]


def earliest(pieces: Int64Array, wanted: Int64Array) -> Int64Array:
    """Return for each piece the smallest position of the wanted ranges that overlap it; if none does, of all.

    The rows of ``wanted`` are ``[n, 4]``: ranges with their positions. ``pieces`` do not overlap each other,
    and are in the order of objects and bytes.
    """
    never = np.iinfo(np.int64).max
    found = np.full(len(pieces), never)
    if not len(pieces) or not len(wanted):
        return found
    # One number line for all objects.
    _, rank = np.unique(np.concatenate([pieces[:, 0], wanted[:, 0]]), return_inverse=True)
    length = int(max(pieces[:, 2].max(), wanted[:, 2].max())) + 1
    shift, wanted_shift = np.split(rank.astype(np.int64) * length, [len(pieces)])
    first = np.searchsorted(pieces[:, 2] + shift, wanted[:, 1] + wanted_shift, side="right")
    after = np.searchsorted(pieces[:, 1] + shift, wanted[:, 2] + wanted_shift, side="left")
    counts = np.maximum(0, after - first)
    place = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    np.minimum.at(found, np.repeat(first, counts) + place, np.repeat(wanted[:, 3], counts))
    found[found == never] = wanted[:, 3].min()
    return found
