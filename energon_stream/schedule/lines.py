"""Weights that go along straight lines: of each batch, and how much sources have by then. Pure.

Each batch has the weights of the lines in its middle. All arithmetic is of whole numbers, or of single IEEE
operations in one order, so that all machines come to the same.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from energon_stream.arrays import Float64Array, Int64Array

WHOLE = 1 << 48  # parts of a draw: shares are rounded to these, so a billion draws are right to 1e-5 of one
STAIRS = 64
"""Batches of a line up to which a plan has the weights of each."""
_BLOCK = 1 << 14  # batches whose weights are computed together
_GAUSS = math.sqrt(0.6) / 2  # nodes of a mean from the middle
_OFF = 1 / 16  # draws of a piece times the cube of the change of a total in it, which is off by 1/64 of that
_MOST_KNOTS = 1 << 14


Drawn: TypeAlias = tuple[tuple[int, int], ...]
"""How many of some draws each source has; or each source's share, in parts of ``WHOLE``."""


class Knot(NamedTuple):
    """A weight from a batch of the job on."""

    begin: int
    weight: float
    is_ramp: bool = False  # whether the weight goes along a line to here, from the knot before


Course: TypeAlias = tuple[Knot, ...]
"""A weight that changes at batches, ascending from 0."""


@dataclass(frozen=True, slots=True)
class Lines:
    """The blends around each source, whose weights change along lines."""

    blends: tuple[tuple[Course, ...], ...]  # the weights of each child of each blend
    chains: tuple[tuple[tuple[int, int], ...], ...]  # of each source, the blends around it and which child
    factors: tuple[float, ...] = ()  # by which weights of sources are multiplied; 1 without them
    _hash: int = field(init=False, repr=False, compare=False)  # computed once: plans have many knots

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.blends, self.chains, self.factors)))

    def __hash__(self) -> int:
        return self._hash

    @classmethod
    def read(cls, saved: Any) -> Lines | None:
        """Return lines of plain values, the inverse of ``describe``. Raises errors of Python for others."""
        if saved is None:
            return None
        blends, chains = saved
        found = cls(
            tuple(tuple(tuple(Knot(*knot) for knot in course) for course in blend) for blend in blends),
            tuple(tuple((blend, child) for blend, child in chain) for chain in chains),
        )
        for course in (course for blend in found.blends for course in blend):
            begins = [knot.begin for knot in course]
            if begins[0] or begins != sorted({*begins}) or not all(0 <= e.weight < math.inf for e in course):
                raise ValueError(f"a weight changes by {course!r:.80}")
        return found

    def describe(self) -> list[Any]:
        """Return plain values."""
        return [
            [[[[*knot] for knot in course] for course in blend] for blend in self.blends],
            [[[*link] for link in chain] for chain in self.chains],
        ]

    def of(self, sources: Iterable[int]) -> Lines:
        """Return the lines of these sources, in their order."""
        return replace(self, chains=tuple(self.chains[source] for source in sources))

    def scaled(self, factors: Iterable[float]) -> Lines:
        """Return lines whose weights are multiplied by one factor each."""
        return replace(self, factors=tuple(factors))

    def begins(self) -> list[int]:
        """Return the batches at which a weight changes, or a line begins or ends."""
        return [*_begins(self)]

    def is_ramp(self, begin: int) -> bool:
        """Return whether a weight goes along a line from one of ``begins()`` on."""
        return any(_from(course, begin)[1] for blend in self.blends for course in blend)

    @property
    def are_long(self) -> bool:
        """True if a line has more batches than a plan has stairs."""
        return any(end - begin > STAIRS and self.is_ramp(begin) for begin, end in pairwise(self.begins()))


@lru_cache(8)
def _begins(lines: Lines) -> tuple[int, ...]:
    return tuple(sorted({knot.begin for blend in lines.blends for course in blend for knot in course}))


def _from(course: Course, begin: int) -> tuple[float, float, int, int]:
    """Return the first weight from a batch on, what a line adds to it, and the line's begin and length."""
    at = bisect_right(course, begin, key=lambda knot: knot.begin)
    first = course[at - 1]
    if at == len(course) or not course[at].is_ramp:
        return first.weight, 0.0, 0, 1
    last = course[at]
    return first.weight, last.weight - first.weight, first.begin, last.begin - first.begin


def _sum(rows: Float64Array) -> Float64Array:
    """Add up rows in their order; numpy's own order depends on the shape."""
    total = np.zeros(rows.shape[1])
    for row in rows:
        total += row
    return total


class Stretch:
    """Weights between two of ``Lines.begins()``, along lines or not."""

    def __init__(self, lines: Lines, begin: int) -> None:
        begins = _begins(lines)
        self.begin, self.end = begin, (*begins, begin + 1)[bisect_right(begins, begin)]
        self._blends = [
            np.array([_from(course, begin) for course in blend]).T[:, :, None] for blend in lines.blends
        ]
        links = [
            (blend, source, child) for source, chain in enumerate(lines.chains) for blend, child in chain
        ]
        self._links = [
            np.array([link[1:] for link in links if link[0] == blend], dtype=np.int64).reshape(-1, 2).T
            for blend in range(len(lines.blends))
        ]
        self._factors = np.array(lines.factors or (1.0,) * len(lines.chains))[:, None]
        middle = self.weights(np.array([(begin + self.end) / 2]))[:, 0]
        self.sources: list[int] = np.flatnonzero(middle > 0).tolist()
        self._largest = int(np.argmax(middle[self.sources])) if self.sources else 0

    def totals(self, places: Float64Array) -> list[tuple[Float64Array, Float64Array]]:
        """Return the weights of each blend's children, a row each, and their sum, at some places."""
        rows = [
            np.maximum(0.0, first + more * ((places - at) / size)) for first, more, at, size in self._blends
        ]
        return [(each, _sum(each)) for each in rows]

    def weights(self, places: Float64Array) -> Float64Array:
        """Return the weight of each source, a row."""
        found = np.ones((len(self._factors), len(places)))
        for (rows, total), (sources, children) in zip(self.totals(places), self._links, strict=True):
            found[sources] *= (rows / np.where(total > 0, total, 1.0))[children]
        found *= self._factors
        return found

    def shares(self, places: Float64Array) -> Float64Array:
        """Return the share of each of the ``sources``, which have some, a row."""
        weights = self.weights(places)[self.sources]
        total = _sum(weights)
        weights /= np.where(total > 0, total, 1.0)
        return weights

    def parts(self, batches: Int64Array) -> Int64Array:
        """Return the share of each of the ``sources``, a row, in whole batches, in parts of ``WHOLE``."""
        shares = self.shares(batches.astype(np.float64) + 0.5)
        found = np.maximum(1, np.rint(shares * WHOLE)).astype(np.int64)
        found[self._largest] += WHOLE - found.sum(axis=0)
        return found

    def at(self, batch: int) -> Drawn:
        """Return the shares in one batch."""
        parts = self.parts(np.array([batch], dtype=np.int64))[:, 0].tolist()
        return tuple(zip(self.sources, parts, strict=True))


@lru_cache(1024)
def stretch_of(lines: Lines, begin: int) -> Stretch:
    """Return the stretch that begins at a batch."""
    return Stretch(lines, begin)


class RampRounds:
    """Shares of sources in rounds, in each of which some streams have a batch."""

    def __init__(self, ramp: Stretch, streams: Sequence[int], num_streams: int) -> None:
        self._ramp, self._num_streams = ramp, num_streams
        self._streams = np.array(streams, dtype=np.int64)
        batches = min(ramp.end - ramp.begin + num_streams, _BLOCK, _BLOCK * 64 // len(ramp.sources))
        self._rounds = max(1, batches // num_streams)
        self._blocks: dict[int, Int64Array] = {}

    def sums(self, number: int, begin: int, end: int) -> Drawn:
        """Return the sums of the shares in a round, over some of the streams' places."""
        block, row = divmod(number, self._rounds)
        if (parts := self._blocks.get(block)) is None:
            numbers = np.arange(block * self._rounds, (block + 1) * self._rounds)
            batches = numbers[:, None] * self._num_streams + self._streams
            # What is beyond the ramp is not asked for.
            batches = np.clip(batches, self._ramp.begin, self._ramp.end - 1)
            parts = self._ramp.parts(batches.ravel()).reshape(-1, *batches.shape)
            self._blocks = {**dict([*self._blocks.items()][-1:]), block: parts}
        found = parts[:, row, begin:end]
        # In halves, because 2 ** 15 shares of 1 are too much for 64 bits.
        low, high = (each.sum(axis=1).tolist() for each in (found & 0xFFFFFF, found >> 24))
        sums = [(more << 24) + less for less, more in zip(low, high, strict=True)]
        return tuple(zip(self._ramp.sources, sums, strict=True))


class Slope:
    """The samples that sources have along a ramp, by the draws of some streams.

    Between knots, shares are parabolas whose ends and means are right. The knots are so close that this is
    off by a thousandth of a sample; only the order of draws depends on it, not their number.
    """

    def __init__(self, ramp: Stretch, begin: int, end: int) -> None:
        self._begin, self._stop = begin, end
        self._per_batch = (end - begin) / (ramp.end - ramp.begin)
        knots = _knots(ramp, self._per_batch)
        size = np.diff(knots)
        middle, ends = ramp.shares(knots[:-1] + size / 2), ramp.shares(knots)
        mean = middle * (8 / 18)
        for side in (-_GAUSS, _GAUSS):
            mean += ramp.shares(knots[:-1] + size * (0.5 + side)) * (5 / 18)
        single = size <= 1
        columns = [np.where(single, middle, each) for each in (ends[:, :-1], ends[:, 1:], mean)]
        draws = size * self._per_batch
        had = np.cumsum(np.pad(columns[2] * draws, ((0, 0), (1, 0))), axis=1)
        self._knots: list[float] = ((knots - ramp.begin) * self._per_batch).tolist()
        tables = [ramp.sources, *[(each * draws).tolist() for each in columns], had.tolist()]
        # Of each source: draws in each piece with its first share, its last, and all; and those before.
        self._tables = {source: tables for source, *tables in zip(*tables, strict=True)}

    @property
    def sources(self) -> Iterable[int]:
        """Sources with a weight."""
        return self._tables.keys()

    def total(self, source: int) -> int:
        """Return what a source has along the whole ramp, in parts."""
        return round(float(self._tables[source][3][-1]) * WHOLE)

    def end(self, source: int, missing: int, draw: int) -> tuple[int | None, int]:
        """Return the draw by which a source has ``missing`` parts more; None if it never does.

        The second number is what it has until the end, in parts.
        """
        if source not in self._tables:
            return None, 0
        *pieces, had = self._tables[source]
        at = draw - self._begin
        piece = min(bisect_right(self._knots, at), len(had) - 1) - 1
        low, high = self._knots[piece : piece + 2]
        before = had[piece] + _had((at - low) / (high - low), *[each[piece] for each in pieces])
        due = before + missing / WHOLE
        if due > had[-1]:
            return None, max(0, round((had[-1] - before) * WHOLE))
        piece = min(max(bisect_left(had, due), 1), len(had) - 1) - 1
        low, high = self._knots[piece : piece + 2]
        place = _place(due - had[piece], *[each[piece] for each in pieces])
        return self._begin + math.ceil(low + place * (high - low)), 0


def _had(place: float, first: float, last: float, mean: float) -> float:
    """Return the integral of a parabola with these ends and this mean, from 0 to a place below 1."""
    return place * (first + place * (3 * mean - 2 * first - last + place * (first + last - 2 * mean)))


def _place(had: float, first: float, last: float, mean: float) -> float:
    """Return the inverse of :func:`_had`."""
    low, high = 0.0, 1.0
    place = min(had / mean, 1.0) if mean > 0 else 1.0
    for _ in range(60):
        over = _had(place, first, last, mean) - had
        low, high = (low, place) if over > 0 else (place, high)
        slope = first + place * (2 * (3 * mean - 2 * first - last) + 3 * place * (first + last - 2 * mean))
        before, place = place, place - over / slope if slope > 0 else low
        if not low <= place <= high:
            place = (low + high) / 2
        if abs(place - before) < 1e-9:
            break
    return place


def _knots(ramp: Stretch, per_batch: float) -> Float64Array:
    """Return places along a ramp between which parabolas are near the shares."""
    knots = np.array([ramp.begin, ramp.end], dtype=np.float64)
    while True:
        totals = np.maximum([total for _, total in ramp.totals(knots)], 1e-300)
        least = np.minimum(totals[:, :-1], totals[:, 1:])
        changes = (np.abs(np.diff(totals, axis=1)) / least).sum(axis=0)
        size = np.diff(knots)
        split = (size > 1) & (size * per_batch * np.minimum(changes, 1e3) ** 3 > _OFF)
        if not split.any() or len(knots) > _MOST_KNOTS:
            return knots
        knots = np.sort(np.concatenate([knots, np.floor(knots[:-1] + size / 2)[split]]))
