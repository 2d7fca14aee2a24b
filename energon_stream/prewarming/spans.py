"""Byte ranges of objects as columns of numbers, and the set of ranges that are already planned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from energon_stream.storage import plan_fetches

if TYPE_CHECKING:
    from energon_stream.arrays import Int64Array


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """Byte ranges of numbered objects. ``stops`` are one past the last bytes."""

    objects: Int64Array
    starts: Int64Array
    stops: Int64Array

    def __len__(self) -> int:
        return len(self.objects)

    @property
    def bytes(self) -> int:
        return int((self.stops - self.starts).sum())

    def __getitem__(self, rows: slice | Int64Array | npt.NDArray[np.bool_]) -> Spans:
        return Spans(self.objects[rows], self.starts[rows], self.stops[rows])

    @classmethod
    def concatenate(cls, several: list[Spans]) -> Spans:
        none = np.zeros(0, dtype=np.int64)
        columns = [(spans.objects, spans.starts, spans.stops) for spans in several]
        return cls(*(np.concatenate(column) for column in zip((none, none, none), *columns, strict=True)))

    def cut(self, most: int) -> Spans:
        """Cut each range into equal pieces of at most ``most`` bytes."""
        sizes = self.stops - self.starts
        counts = -(-sizes // most)
        row = np.repeat(np.arange(len(self)), counts)
        number = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
        edge = self.starts[row] + sizes[row] * number // counts[row]
        after = self.starts[row] + sizes[row] * (number + 1) // counts[row]
        return Spans(self.objects[row], edge, after)


class Coverage:
    """The bytes wanted so far, each counted once.

    Bytes between two wanted ranges of an object count as wanted if they are at most ``max_gap``, because a
    reader that needs both ranges reads over the gap.

    Attributes:
        spans: All wanted ranges, by object and position.
    """

    def __init__(self, max_gap: int) -> None:
        self._max_gap = max_gap
        self.spans = Spans.concatenate([])

    def add(self, wanted: Spans) -> Spans:
        """Add ranges; return the bytes that were not covered before, by object and position."""
        if not len(wanted):
            return wanted
        touched = np.isin(self.spans.objects, np.unique(wanted.objects))
        old, other = self.spans[touched], self.spans[~touched]
        every = Spans.concatenate([old, wanted])
        required, most = np.ones(len(every), dtype=bool), max(1, int(every.stops.max()))
        plan = plan_fetches(
            every.objects, every.starts, every.stops, required, max_gap=self._max_gap, max_bytes=most
        )
        islands = Spans(plan.objects, plan.starts, plan.stops)
        spans = Spans.concatenate([other, islands])
        self.spans = spans[np.lexsort((spans.starts, spans.objects))]
        return _without(islands, old)


def _without(islands: Spans, old: Spans) -> Spans:
    """Return the parts of ``islands`` outside ``old``; each range of ``old`` lies in one of ``islands``.

    Along an island, such a part begins where the island begins or an old range ends, and ends where the
    island ends or an old range begins. Sorted, the n-th beginning belongs to the n-th end.
    """
    objects = np.concatenate([islands.objects, old.objects])
    begins = np.concatenate([islands.starts, old.stops])
    ends = np.concatenate([islands.stops, old.starts])
    by_begin, by_end = np.lexsort((begins, objects)), np.lexsort((ends, objects))
    left = Spans(objects[by_begin], begins[by_begin], ends[by_end])
    return left[left.stops > left.starts]


def earliest(pieces: Spans, wanted: Spans, positions: Int64Array) -> Int64Array:
    """Return for each piece the smallest position of the wanted ranges that overlap it.

    ``pieces`` do not overlap each other, and are in the order of objects and bytes. A piece that no wanted
    range overlaps gets the smallest position of all.
    """
    never = np.iinfo(np.int64).max
    found = np.full(len(pieces), never)
    if not len(pieces) or not len(wanted):
        return found
    # One number line for all objects.
    _, rank = np.unique(np.concatenate([pieces.objects, wanted.objects]), return_inverse=True)
    length = int(max(pieces.stops.max(), wanted.stops.max())) + 1
    shift, wanted_shift = np.split(rank.astype(np.int64) * length, [len(pieces)])
    first = np.searchsorted(pieces.stops + shift, wanted.starts + wanted_shift, side="right")
    after = np.searchsorted(pieces.starts + shift, wanted.stops + wanted_shift, side="left")
    counts = np.maximum(0, after - first)
    place = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    np.minimum.at(found, np.repeat(first, counts) + place, np.repeat(positions, counts))
    found[found == never] = positions.min()
    return found
