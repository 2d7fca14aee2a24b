"""Ranges whose answers are kept for later passes, and the requests that hold them. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from energon_stream.arrays import Int64Array

# Any large odd numbers.
_OF_KEY, _OF_INDEX, _OF_START = 0x1E3779B97F4A7C15, 0x3F58476D1CE4E5B9, 0x14D049BB133111EB


@dataclass(frozen=True, slots=True, eq=False)
class KeptRanges:
    """Kept ranges, sorted by a hash.

    Example:
        >>> import numpy as np
        >>> kept = KeptRanges().add(*map(np.array, ([7, 7], [0, 1], [0, 100], [3, 4], [0, 1])))
        >>> requests, places = kept.find(np.array([7, 8]), np.array([1, 0]), np.array([100, 0]))
        >>> requests.tolist(), places.tolist()
        ([4, -1], [1, -1])
    """

    # ``int64 [6, n]``: hash, object (see ``Located.keys``), sample and first byte of each range; the request
    # that holds it, and its number within the request.
    columns: Int64Array = field(default_factory=lambda: np.zeros((6, 0), dtype=np.int64))

    def add(
        self,
        keys: Int64Array,
        index: Int64Array,
        starts: Int64Array,
        requests: Int64Array,
        places: Int64Array,
    ) -> KeptRanges:
        """Return these ranges and further ones."""
        further = np.stack([_hash(keys, index, starts), keys, index, starts, requests, places])
        columns = np.concatenate([self.columns, further], axis=1)
        return KeptRanges(columns[:, np.argsort(columns[0], kind="stable")])

    def find(self, keys: Int64Array, index: Int64Array, starts: Int64Array) -> Int64Array:
        """Return the request of each range, and its number there, ``int64 [2, n]``; -1 if it is not kept."""
        hashes = self.columns[0]
        if not len(hashes):
            return np.full((2, len(keys)), -1, dtype=np.int64)
        rows = np.minimum(np.searchsorted(hashes, _hash(keys, index, starts)), len(hashes) - 1)
        # Two ranges of one hash would be fetched again, and not be mistaken for each other.
        same = (self.columns[1:4, rows] == [keys, index, starts]).all(axis=0)
        return np.where(same, self.columns[4:, rows], -1)


def _hash(keys: Int64Array, index: Int64Array, starts: Int64Array) -> Int64Array:
    return keys * _OF_KEY + index * _OF_INDEX + starts * _OF_START  # products of arrays wrap
