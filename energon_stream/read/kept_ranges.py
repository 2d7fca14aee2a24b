"""Ranges whose answers are kept for later passes, and the requests that hold them. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from energon_stream.arrays import Int64Array

# Any large odd numbers.
_OF_KEY, _OF_INDEX, _OF_START = 0x1E3779B97F4A7C15, 0x3F58476D1CE4E5B9, 0x14D049BB133111EB


def _none() -> Int64Array:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class KeptRanges:
    """Kept ranges in columns, sorted by a hash.

    Example:
        >>> import numpy as np
        >>> kept = KeptRanges().add(*map(np.array, ([7, 7], [0, 1], [0, 100], [3, 3], [0, 1])))
        >>> row = kept.find(np.array([7, 8]), np.array([1, 0]), np.array([100, 0]))
        >>> int(row[1]), int(kept.places[row[0]])
        (-1, 1)
    """

    hashes: Int64Array = field(default_factory=_none)
    keys: Int64Array = field(default_factory=_none)  # object of each range; see ``Located.keys``
    index: Int64Array = field(default_factory=_none)  # sample of each range
    starts: Int64Array = field(default_factory=_none)  # first byte of each range
    requests: Int64Array = field(default_factory=_none)  # request that holds it
    places: Int64Array = field(default_factory=_none)  # number of the range within the request

    def add(
        self,
        keys: Int64Array,
        index: Int64Array,
        starts: Int64Array,
        requests: Int64Array,
        places: Int64Array,
    ) -> KeptRanges:
        """Return these ranges and further ones, whose columns are given."""
        hashes = np.concatenate([self.hashes, _hash(keys, index, starts)])
        order = np.argsort(hashes, kind="stable")
        return KeptRanges(
            hashes[order],
            np.concatenate([self.keys, keys])[order],
            np.concatenate([self.index, index])[order],
            np.concatenate([self.starts, starts])[order],
            np.concatenate([self.requests, requests])[order],
            np.concatenate([self.places, places])[order],
        )

    def find(self, keys: Int64Array, index: Int64Array, starts: Int64Array) -> Int64Array:
        """Return the row of each range, -1 for those that are not kept."""
        if not len(self.hashes):
            return np.full(len(keys), -1, dtype=np.int64)
        row = np.searchsorted(self.hashes, _hash(keys, index, starts))
        row = np.minimum(row, len(self.hashes) - 1)
        # Two ranges of one hash would be fetched again, and not be mistaken for each other.
        same = (self.keys[row] == keys) & (self.index[row] == index) & (self.starts[row] == starts)
        return np.where(same, row, -1)


def _hash(keys: Int64Array, index: Int64Array, starts: Int64Array) -> Int64Array:
    return keys * _OF_KEY + index * _OF_INDEX + starts * _OF_START  # products of arrays wrap
