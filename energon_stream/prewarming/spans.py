"""Byte ranges of objects as columns of numbers: what is wanted, what of it is new, and the requests for that."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from energon_stream.arrays import Int64Array
from energon_stream.storage import plan_fetches

__all__ = ["Coverage", "Spans", "earliest"]


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """Byte ranges.

    Attributes:
        objects: ``int64``, numbers that name the objects.
        starts: ``int64``, first bytes.
        stops: ``int64``, bytes after the last ones.
    """

    objects: Int64Array
    starts: Int64Array
    stops: Int64Array

    def __len__(self) -> int:
        return len(self.objects)

    @property
    def bytes(self) -> int:
        """Bytes of all together."""
        return int((self.stops - self.starts).sum())

    def __getitem__(self, rows: slice | Int64Array | npt.NDArray[np.bool_]) -> Spans:
        return Spans(self.objects[rows], self.starts[rows], self.stops[rows])

    @classmethod
    def concatenate(cls, parts: list[Spans]) -> Spans:
        """Some after the others."""
        none = np.zeros(0, dtype=np.int64)
        columns = [(part.objects, part.starts, part.stops) for part in parts]
        return cls(*(np.concatenate(column) for column in zip((none, none, none), *columns, strict=True)))

    def cut(self, most: int) -> Spans:
        """The same bytes in pieces of at most ``most`` bytes, equal ones of each range."""
        sizes = self.stops - self.starts
        counts = -(-sizes // most)
        row = np.repeat(np.arange(len(self)), counts)
        number = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
        edge = self.starts[row] + sizes[row] * number // counts[row]
        after = self.starts[row] + sizes[row] * (number + 1) // counts[row]
        return Spans(self.objects[row], edge, after)


class Coverage:
    """The bytes that were wanted so far, each counted once.

    Bytes between two wanted ranges of an object count as wanted, if they are no more than ``max_gap``: whoever reads both
    ranges together reads over them.

    Args:
        max_gap: Largest such gap.
    """

    def __init__(self, max_gap: int) -> None:
        self._max_gap = max_gap
        self._spans = Spans.concatenate([])

    @property
    def spans(self) -> Spans:
        """All of them, by object and place."""
        return self._spans

    def add(self, wanted: Spans) -> Spans:
        """Want some ranges.

        Returns:
            What was not covered before, by object and place.
        """
        if not len(wanted):
            return wanted
        touched = np.isin(self._spans.objects, np.unique(wanted.objects))
        old, other = self._spans[touched], self._spans[~touched]
        every = Spans.concatenate([old, wanted])
        required = np.ones(len(every), dtype=bool)
        most = int(every.stops.max())
        plan = plan_fetches(
            every.objects, every.starts, every.stops, required, max_gap=self._max_gap, max_bytes=max(1, most)
        )
        islands = Spans(plan.objects, plan.starts, plan.stops)
        spans = Spans.concatenate([other, islands])
        self._spans = spans[np.lexsort((spans.starts, spans.objects))]
        return _without(islands, old)


def _without(islands: Spans, old: Spans) -> Spans:
    """What of some ranges is not in others, each of which lies in one of them.

    Along each range, bytes that are left begin where it begins and where an old one ends, and end likewise; in order,
    beginnings and ends belong to each other.
    """
    objects = np.concatenate([islands.objects, old.objects])
    begins = np.concatenate([islands.starts, old.stops])
    ends = np.concatenate([islands.stops, old.starts])
    by_begin, by_end = np.lexsort((begins, objects)), np.lexsort((ends, objects))
    left = Spans(objects[by_begin], begins[by_begin], ends[by_end])
    return left[left.stops > left.starts]


def earliest(pieces: Spans, wanted: Spans, turns: Int64Array) -> Int64Array:
    """When each of some pieces is wanted first.

    Args:
        pieces: Ranges that do not overlap, by object and place.
        wanted: Ranges.
        turns: ``int64``, when each of these is wanted.

    Returns:
        ``int64``: the smallest turn of what overlaps each piece; where nothing does, the smallest of all.
    """
    never = np.iinfo(np.int64).max
    found = np.full(len(pieces), never)
    if not len(pieces) or not len(wanted):
        return found
    # One number line for all objects.
    _, rank = np.unique(np.concatenate([pieces.objects, wanted.objects]), return_inverse=True)
    length = int(max(pieces.stops.max(), wanted.stops.max())) + 1
    shift, its_shift = np.split(rank.astype(np.int64) * length, [len(pieces)])
    first = np.searchsorted(pieces.stops + shift, wanted.starts + its_shift, side="right")
    after = np.searchsorted(pieces.starts + shift, wanted.stops + its_shift, side="left")
    counts = np.maximum(0, after - first)
    place = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    np.minimum.at(found, np.repeat(first, counts) + place, np.repeat(turns, counts))
    found[found == never] = turns.min()
    return found
