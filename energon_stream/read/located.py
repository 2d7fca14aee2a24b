"""Located byte ranges: where the samples of some references lie. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from energon_stream.arrays import Int64Array, distinct

if TYPE_CHECKING:
    from energon_stream.read.locator import Locator
    from energon_stream.schedule import Refs


@dataclass(frozen=True, slots=True, eq=False)
class Located:
    """Byte ranges of references, in their order. A reference has one or more consecutive ranges."""

    leaf: Int64Array
    index: Int64Array  # sample of each range
    objects: Int64Array
    starts: Int64Array  # first bytes
    stops: Int64Array  # one past the last bytes
    begins: npt.NDArray[np.bool_]  # whether a range is the first of its reference
    skips: npt.NDArray[np.bool_]  # whether unwanted parts of the sample are left out

    @classmethod
    def none(cls) -> Located:
        return cls(*np.zeros((5, 0), dtype=np.int64), *np.zeros((2, 0), dtype=np.bool_))

    @classmethod
    def of(cls, locators: Sequence[Locator], refs: Refs) -> Located:
        """Locate references whose index entries are loaded. ``locators`` are by leaf number."""
        leaves = distinct(refs.leaf).tolist()
        most = max((locators[leaf].width for leaf in leaves), default=1)
        objects = np.full((len(refs), most), -1, dtype=np.int64)
        starts, stops = (np.empty((len(refs), most), dtype=np.int64) for _ in range(2))
        for leaf in leaves:
            mine = refs.leaf == leaf
            found = locators[leaf].locate(refs.index[mine])
            columns = slice(0, found[0].shape[1])
            objects[mine, columns], starts[mine, columns], stops[mine, columns] = found
        there = objects >= 0
        counts = there.sum(axis=1)
        begins = np.zeros_like(there)
        begins[np.arange(len(refs)), there.argmax(axis=1)] = True
        return cls(
            np.repeat(refs.leaf.astype(np.int64), counts),
            np.repeat(refs.index, counts),
            objects[there],
            starts[there],
            stops[there],
            begins[there],
            np.repeat(np.isin(refs.leaf, [leaf for leaf in leaves if locators[leaf].skips_bytes]), counts),
        )

    def __len__(self) -> int:
        return len(self.leaf)

    @property
    def _columns(self) -> tuple[Any, ...]:
        return self.leaf, self.index, self.objects, self.starts, self.stops, self.begins, self.skips

    def __getitem__(self, rows: slice | Int64Array | npt.NDArray[np.bool_]) -> Located:
        return Located(*(column[rows] for column in self._columns))

    def __add__(self, other: Located) -> Located:
        if not len(self):
            return other
        return Located(*map(np.concatenate, zip(self._columns, other._columns, strict=True)))

    @property
    def sizes(self) -> Int64Array:
        return self.stops - self.starts

    @property
    def keys(self) -> Int64Array:
        """One number for the leaf and object of each range."""
        return self.leaf << 32 | self.objects

    def whole(self, count: int) -> int:
        """Return ``count`` plus the ranges that complete the last reference."""
        while count < len(self) and not self.begins[count]:
            count += 1
        return count

    def reference_sizes(self) -> Int64Array:
        """Return, for each range, the bytes of its reference."""
        if not len(self):
            return np.zeros(0, dtype=np.int64)
        reference = np.cumsum(self.begins) - 1
        totals: Int64Array = np.bincount(reference, self.sizes).astype(np.int64)[reference]
        return totals
