"""The byte ranges that are wanted next, in their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_stream.arrays import Int64Array
from energon_stream.read.locator import Locator
from energon_stream.schedule import Refs

__all__ = ["Window"]


def _no_ints() -> Int64Array:
    return np.zeros(0, dtype=np.int64)


@dataclass(slots=True, eq=False)
class Window:
    """Located byte ranges that are not planned yet. A reference has one, or several that follow each other.

    Attributes:
        leaf: ``int64``, number of the locator of each range.
        index: ``int64``, sample that it belongs to.
        objects: ``int64``, object that holds it.
        starts: ``int64``, first byte.
        stops: ``int64``, one past the last byte.
        begins: ``bool``, whether a reference begins with this range.
        fetches: RangeFetch of a range that lies in one of earlier ranges; else None.
        numbers: Its number within that fetch.
    """

    leaf: Int64Array = field(default_factory=_no_ints)
    index: Int64Array = field(default_factory=_no_ints)
    objects: Int64Array = field(default_factory=_no_ints)
    starts: Int64Array = field(default_factory=_no_ints)
    stops: Int64Array = field(default_factory=_no_ints)
    begins: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    fetches: list[Any] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.fetches)

    def append(self, locators: Sequence[Locator], refs: Refs) -> None:
        """Locate references whose index entries are at hand, and add their ranges at the end."""
        leaves = np.unique(refs.leaf).tolist()
        most = max((locators[leaf].width for leaf in leaves), default=1)
        objects = np.full((len(refs), most), -1, dtype=np.int64)
        starts, stops = (np.empty((len(refs), most), dtype=np.int64) for _ in range(2))
        for leaf in leaves:
            mine, its = refs.leaf == leaf, slice(0, locators[leaf].width)
            objects[mine, its], starts[mine, its], stops[mine, its] = locators[leaf].locate(refs.index[mine])
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
        """``count``, and as many as complete the last one's reference."""
        while count < len(self) and not self.begins[count]:
            count += 1
        return count

    def larger_than(self, limit: int) -> npt.NDArray[np.bool_]:
        """Of each range, whether its reference has more bytes than ``limit``."""
        reference = np.cumsum(self.begins) - 1
        totals = np.bincount(reference, self.sizes()) if len(self) else np.zeros(0)
        large: npt.NDArray[np.bool_] = totals[reference] > limit
        return large

    def pop(self) -> tuple[int, int, list[tuple[int, int, int]]]:
        """The first reference, which the window forgets: leaf, index, and (object, first byte, end) of its ranges."""
        count = self.whole(1)
        columns = (self.objects[:count].tolist(), self.starts[:count].tolist(), self.stops[:count].tolist())
        found = int(self.leaf[0]), int(self.index[0]), list(zip(*columns, strict=True))
        self.forget(count)
        return found

    def is_free(self, count: int) -> npt.NDArray[np.bool_]:
        """Which of the first ``count`` ranges have no fetch yet."""
        return np.fromiter((fetch is None for fetch in self.fetches[:count]), dtype=np.bool_)

    def forget(self, count: int) -> tuple[list[Any], list[int]]:
        """Drop the first ``count`` ranges; returns their fetches, and their numbers within these."""
        self.leaf, self.index, self.objects = self.leaf[count:], self.index[count:], self.objects[count:]
        self.starts, self.stops, self.begins = self.starts[count:], self.stops[count:], self.begins[count:]
        dropped = self.fetches[:count], self.numbers[:count]
        del self.fetches[:count], self.numbers[:count]
        return dropped
