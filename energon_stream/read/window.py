"""Located byte ranges that are not planned yet, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from energon_stream.arrays import Int64Array
    from energon_stream.read.locator import Locator
    from energon_stream.schedule import Refs


def _no_ints() -> Int64Array:
    return np.zeros(0, dtype=np.int64)


@dataclass(slots=True, eq=False)
class Window:
    """Located byte ranges that are not planned yet. A reference has one or more consecutive ranges."""

    leaf: Int64Array = field(default_factory=_no_ints)  # ``int64``, number of the leaf of each range
    index: Int64Array = field(default_factory=_no_ints)  # ``int64``, sample of each range
    objects: Int64Array = field(default_factory=_no_ints)  # ``int64``, object of each range
    starts: Int64Array = field(default_factory=_no_ints)  # ``int64``, first byte
    stops: Int64Array = field(default_factory=_no_ints)  # ``int64``, one past the last byte
    # ``bool``, whether a range is the first of its reference.
    begins: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    # Fetch of a range that an earlier plan has taken in; else None.
    fetches: list[Any] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)  # number of the range within that fetch

    def __len__(self) -> int:
        return len(self.fetches)

    def append(self, locators: Sequence[Locator], refs: Refs) -> None:
        """Locate references whose index entries are loaded, and append their ranges."""
        leaves = np.unique(refs.leaf).tolist()
        most = max((locators[leaf].width for leaf in leaves), default=1)
        objects = np.full((len(refs), most), -1, dtype=np.int64)
        starts, stops = (np.empty((len(refs), most), dtype=np.int64) for _ in range(2))
        for leaf in leaves:
            mine, columns = refs.leaf == leaf, slice(0, locators[leaf].width)
            objects[mine, columns], starts[mine, columns], stops[mine, columns] = locators[leaf].locate(
                refs.index[mine]
            )
        there = objects >= 0
        counts = there.sum(axis=1)
        begins = np.zeros_like(there)
        begins[np.arange(len(refs)), there.argmax(axis=1)] = True
        self.leaf = np.concatenate([self.leaf, np.repeat(refs.leaf.astype(np.int64), counts)])
        self.index = np.concatenate([self.index, np.repeat(refs.index, counts)])
        self.objects = np.concatenate([self.objects, objects[there]])
        self.starts = np.concatenate([self.starts, starts[there]])
        self.stops = np.concatenate([self.stops, stops[there]])
        self.begins = np.concatenate([self.begins, begins[there]])
        self.fetches += [None] * int(counts.sum())
        self.numbers += [0] * int(counts.sum())

    def sizes(self) -> Int64Array:
        """Bytes of each range."""
        return self.stops - self.starts

    def whole(self, count: int) -> int:
        """Return ``count`` plus the ranges that complete the last reference."""
        while count < len(self) and not self.begins[count]:
            count += 1
        return count

    def larger_than(self, limit: int) -> npt.NDArray[np.bool_]:
        """Return, for each range, whether its reference has more than ``limit`` bytes."""
        reference = np.cumsum(self.begins) - 1
        totals = np.bincount(reference, self.sizes()) if len(self) else np.zeros(0)
        large: npt.NDArray[np.bool_] = totals[reference] > limit
        return large

    def pop(self) -> tuple[int, int, list[tuple[int, int, int]]]:
        """Remove the first reference; return leaf, index, and (object, first byte, end) of its ranges."""
        count = self.whole(1)
        columns = (self.objects[:count].tolist(), self.starts[:count].tolist(), self.stops[:count].tolist())
        found = int(self.leaf[0]), int(self.index[0]), list(zip(*columns, strict=True))
        self.forget(count)
        return found

    def is_free(self, count: int) -> npt.NDArray[np.bool_]:
        """Return, for each of the first ``count`` ranges, whether it has no fetch yet."""
        return np.fromiter((fetch is None for fetch in self.fetches[:count]), dtype=np.bool_)

    def forget(self, count: int) -> tuple[list[Any], list[int]]:
        """Remove the first ``count`` ranges; return their fetches, and their numbers within these."""
        self.leaf, self.index, self.objects = self.leaf[count:], self.index[count:], self.objects[count:]
        self.starts, self.stops, self.begins = self.starts[count:], self.stops[count:], self.begins[count:]
        dropped = self.fetches[:count], self.numbers[:count]
        del self.fetches[:count], self.numbers[:count]
        return dropped
