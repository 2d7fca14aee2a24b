"""Schedules made of schedules: repeat, blend, concatenate."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from energon_stream.arrays import Float64Array, Int64Array, distinct
from energon_stream.errors import ConfigError, EmptyStreamError
from energon_stream.rng import derive_key, uniform
from energon_stream.schedule.cost_draws import CostDraws
from energon_stream.schedule.leaf_order import LeafSchedule
from energon_stream.schedule.rounds import EvenState
from energon_stream.schedule.schedule import BlendCursor, ConcatCursor, Cursor, Refs, RepeatCursor, Schedule
from energon_stream.schedule.weights import EvenDraws, WeightChange, check_weights


def _total(lengths: Iterable[int | None]) -> int | None:
    """Add up lengths; None if one of them never ends."""
    total = 0
    for length in lengths:
        if length is None:
            return None
        total += length
    return total


class _InChunks:
    """Base of schedules whose references are chunks of others, one after the other."""

    __slots__ = ()

    def _step(self, cursor: Cursor, count: int, parts: list[Refs] | None) -> Cursor:
        """Return the cursor after the next references. They are added to ``parts``, unless it is None."""
        raise NotImplementedError

    def take(self, cursor: Cursor, count: int) -> tuple[Refs, Cursor]:
        parts: list[Refs] = []
        after = self._step(cursor, count, parts)
        return Refs.concatenate(parts), after

    def advance(self, cursor: Cursor, count: int) -> Cursor:
        return self._step(cursor, count, None)


def _step(schedule: Schedule, cursor: Cursor, count: int, parts: list[Refs] | None) -> Cursor:
    """Advance in one schedule as :meth:`_InChunks._step` does."""
    if parts is None:
        return schedule.advance(cursor, count)
    refs, after = schedule.take(cursor, count)
    parts.append(refs)
    return after


@dataclass(frozen=True, slots=True)
class RepeatSchedule(_InChunks):
    """Passes over one schedule, one after the other."""

    inner: Schedule
    repeats: float | None = None

    def __post_init__(self) -> None:
        if self.repeats is not None and not self.repeats > 0:
            raise ConfigError(f"repetitions is {self.repeats}", hint="use a positive number")

    @property
    def _inner_length(self) -> int:
        length = self.inner.length
        if length is None:
            raise ConfigError(
                "an endless dataset cannot be repeated",
                hint="repeat the outer level only, or give the inner level a number of repetitions",
            )
        return length

    @property
    def length(self) -> int | None:
        """References in all passes together; None if it never ends."""
        inner = self._inner_length
        if self.repeats is None:
            return None if inner else 0
        whole = math.floor(self.repeats)
        return inner * whole + math.floor(inner * (self.repeats - whole))

    def begin(self, epoch: int = 0) -> RepeatCursor:
        """Begin an outer pass; the numbers of the inner passes go on from one to the next."""
        first = self._first(epoch)
        return RepeatCursor(first, first, self.inner.begin(first))

    def next_pass(self, cursor: RepeatCursor, epoch: int) -> RepeatCursor:
        first = self._first(epoch)
        return RepeatCursor(first, first, self.inner.next_pass(cursor.inner, first))

    def _first(self, epoch: int) -> int:
        return epoch * (1 if self.repeats is None else math.ceil(self.repeats))

    def remaining(self, cursor: RepeatCursor) -> int | None:
        length = self._inner_length
        if self.repeats is None and length:
            return None
        left = cast("int", self.inner.remaining(cursor.inner))
        if self.repeats is None:
            return left
        whole = math.floor(self.repeats)
        later = whole - (cursor.current - cursor.first) - 1
        if later < 0:  # in the last pass, of which only a share is used
            in_pass = cast("int", self.inner.length_at(cursor.inner))
            return max(0, math.floor(in_pass * (self.repeats - whole)) - (in_pass - left))
        return left + length * later + math.floor(length * (self.repeats - whole))

    def length_at(self, cursor: RepeatCursor) -> int | None:
        """Count all references. Passes that are over count as long as the next one will be."""
        left = self.remaining(cursor)
        if left is None:
            return None
        inner = cursor.inner
        consumed = cast("int", self.inner.length_at(inner)) - cast("int", self.inner.remaining(inner))
        return (cursor.current - cursor.first) * self._inner_length + consumed + left

    def _step(self, cursor: RepeatCursor, count: int, parts: list[Refs] | None) -> RepeatCursor:
        left_over_all = self.remaining(cursor)
        left = count if left_over_all is None else min(count, left_over_all)
        first, current, inner = cursor
        while left > 0:
            in_pass = cast("int", self.inner.remaining(inner))
            if in_pass:
                size = min(left, in_pass)
                left -= size
                if parts is not None or not left:
                    inner = _step(self.inner, inner, size, parts)
                if not left:
                    break
            current += 1
            inner = self.inner.next_pass(inner, current)
        return RepeatCursor(first, current, inner)


@dataclass(frozen=True, slots=True)
class ConcatSchedule(_InChunks):
    """Several schedules, one after the other."""

    children: tuple[Schedule, ...]

    @property
    def length(self) -> int | None:
        return _total(child.length for child in self.children)

    def begin(self, epoch: int = 0) -> ConcatCursor:
        return ConcatCursor(0, self.children[0].begin(epoch), epoch)

    def next_pass(self, cursor: ConcatCursor, epoch: int) -> ConcatCursor:
        return self.begin(epoch)

    def _step(self, cursor: ConcatCursor, count: int, parts: list[Refs] | None) -> ConcatCursor:
        number, inner, epoch = cursor
        while True:
            child = self.children[number]
            left = child.remaining(inner)
            size = count if left is None else min(count, left)
            if size:
                inner = _step(child, inner, size, parts)
                count -= size
            if not count or number + 1 == len(self.children):
                return ConcatCursor(number, inner, epoch)
            number += 1
            inner = self.children[number].begin(epoch)

    def remaining(self, cursor: ConcatCursor) -> int | None:
        later = [child.length for child in self.children[cursor.child + 1 :]]
        return _total([self.children[cursor.child].remaining(cursor.inner), *later])

    def length_at(self, cursor: ConcatCursor) -> int | None:
        """Count all references. Children that are over count as long as their next pass will be."""
        lengths = [child.length for child in self.children]
        lengths[cursor.child] = self.children[cursor.child].length_at(cursor.inner)
        return _total(lengths)


@dataclass(frozen=True, slots=True)
class BlendSchedule:
    """One weighted draw per reference among several schedules.

    The draw for reference ``step`` is a function of ``(key, epoch, step)`` and of which children still have
    references. Even draws (:class:`EvenDraws`) are one of the cursor's ``even``.
    """

    children: tuple[Schedule, ...]
    weights: tuple[float, ...]
    key: int
    changes: tuple[WeightChange, ...] = ()  # other weights, by the number of the first reference
    even: EvenDraws | CostDraws | None = field(default=None, compare=False)
    _finite: tuple[int, ...] = field(init=False, repr=False)
    _capacity: Float64Array = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        lengths = [child.length for child in self.children]
        capacity = np.array([np.inf if length is None else length for length in lengths])
        finite = (number for number, length in enumerate(lengths) if length is not None)
        object.__setattr__(self, "_finite", tuple(finite))
        object.__setattr__(self, "_capacity", capacity)
        if len(self.weights) != len(self.children) or not self.children:
            raise ConfigError("a blend needs one weight for each dataset, and at least one dataset")
        if any(0 < length < math.inf for length in capacity) and (
            self.changes or self.even or not all(weight > 0 for weight in self.weights)
        ):
            raise ConfigError(
                "datasets that end cannot have weights of 0, weights that change, or even draws",
                hint="every weight must be positive and finite, or every dataset repeated without end",
            )
        for change in (WeightChange(0, self.weights), *self.changes):
            check_weights(change.weights)
            if (capacity > 0).any() and not (np.array(change.weights) * (capacity > 0)).any():
                raise EmptyStreamError(
                    f"from reference {change.begin} on, a stream has no sample of the datasets with a weight",
                    hint="use fewer workers or ranks, or give a larger dataset some weight",
                )

    @property
    def length(self) -> int | None:
        return _total(child.length for child in self.children)

    def begin(self, epoch: int = 0) -> BlendCursor:
        return BlendCursor(epoch, 0, tuple(child.begin(epoch) for child in self.children), self.fresh(0))

    def next_pass(self, cursor: BlendCursor, epoch: int) -> BlendCursor:
        pairs = zip(self.children, cursor.children, strict=True)
        return BlendCursor(epoch, 0, tuple(child.next_pass(at, epoch) for child, at in pairs), self.fresh(0))

    def fresh(self, step: int) -> EvenState:
        """Return :attr:`BlendCursor.even` where even draws are counted anew."""
        return () if self.even is None else self.even.fresh(step)

    def _segment(self, step: int) -> int:
        """Return how many changes of the weights there were before a reference."""
        return bisect_right(self.changes, step, key=lambda change: change.begin)

    def _weights(self, segment: int) -> tuple[float, ...]:
        return self.changes[segment - 1].weights if segment else self.weights

    def is_even(self, cursor: BlendCursor) -> bool:
        """Return True if even draws may stand where a cursor says."""
        return not cursor.even if self.even is None else self.even.is_state(cursor.even)

    def remaining(self, cursor: BlendCursor) -> int | None:
        return _total(child.remaining(at) for child, at in zip(self.children, cursor.children, strict=True))

    def length_at(self, cursor: BlendCursor) -> int | None:
        left = self.remaining(cursor)
        return None if left is None else cursor.step + left

    def _choices(self, cursor: BlendCursor, count: int) -> tuple[Int64Array, EvenState]:
        """Return the child that supplies each of the next references, and where even draws stand after."""
        epoch, step, inner, even, _ = cursor
        if self.even is not None and (self._capacity > 0).any():
            if isinstance(self.even, CostDraws):
                return self.even.take(step, even, count, self.children, inner)
            return self.even.take(step, even, count)
        key = derive_key(self.key, "blend", epoch)
        left = self._capacity.copy()
        for number in self._finite:
            left[number] = cast("int", self.children[number].remaining(inner[number]))
        parts: list[Int64Array] = []
        while count > 0 and (left > 0).any():
            segment = self._segment(step)
            # The draws hold until the weights change, or some finite child supplies its last reference.
            size = count if segment == len(self.changes) else min(count, self.changes[segment].begin - step)
            bounds = np.cumsum(np.where(left > 0, self._weights(segment), 0.0))
            draws = uniform(key, np.arange(step, step + size, dtype=np.int64)) * bounds[-1]
            choices = np.searchsorted(bounds, draws, side="right").astype(np.int64)
            uses_of = np.bincount(choices, minlength=len(left))
            for child in np.flatnonzero((uses_of >= left) & (left > 0)):
                uses = np.flatnonzero(choices[:size] == child)
                if len(uses) >= left[child]:
                    size = int(uses[int(left[child]) - 1]) + 1
            parts.append(choices[:size])
            left -= np.bincount(choices[:size], minlength=len(left))
            step, count = step + size, count - size
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64), even

    def take(self, cursor: BlendCursor, count: int) -> tuple[Refs, BlendCursor]:
        choices, even = self._choices(cursor, count)
        leaf = np.zeros(len(choices), dtype=np.int32)
        index = np.zeros(len(choices), dtype=np.int64)
        # Cursors of children that supplied nothing stay the same objects: CursorCodec packs the others only.
        children = list(cursor.children)
        for number in distinct(choices).tolist():
            places = np.flatnonzero(choices == number)
            refs, children[number] = self.children[number].take(children[number], len(places))
            leaf[places], index[places] = refs.leaf, refs.index
        step = cursor.step + len(choices)
        return Refs(leaf, index), cursor._replace(step=step, children=tuple(children), even=even)

    def advance(self, cursor: BlendCursor, count: int) -> BlendCursor:
        choices, even = self._choices(cursor, count)
        children = list(cursor.children)
        for number, uses in enumerate(np.bincount(choices).tolist()):
            if uses:
                children[number] = self.children[number].advance(children[number], uses)
        step = cursor.step + len(choices)
        return cursor._replace(step=step, children=tuple(children), even=even)


def pass_length(schedule: Schedule) -> int:
    """Return how many references a repeated pass has, or those of a blend together; 0 if there are none."""
    if isinstance(schedule, RepeatSchedule):
        return schedule.inner.length or 0
    return sum(map(pass_length, schedule.children)) if isinstance(schedule, BlendSchedule) else 0


def left_in_pass(schedule: Schedule, cursor: Cursor) -> int:
    """Return how many references a repeated pass has left, those of a blend as many as it has."""
    left = schedule.inner.remaining(cursor.inner) if isinstance(schedule, RepeatSchedule) else None
    return left or pass_length(schedule)


def samples_by_leaf(schedule: Schedule, cursor: Cursor, epochs: int = 0) -> Counter[int]:
    """Count the references consumed of each leaf, in passes as long as now, and up to a cursor."""
    return _times(_whole(schedule), epochs) + _consumed(schedule, cursor)


def _consumed(schedule: Schedule, cursor: Cursor) -> Counter[int]:
    if isinstance(schedule, RepeatSchedule):
        done = _times(_whole(schedule.inner), cursor.current - cursor.first)
        return done + _consumed(schedule.inner, cursor.inner)
    if isinstance(schedule, ConcatSchedule):
        done = _sum(map(_whole, schedule.children[: cursor.child]))
        return done + _consumed(schedule.children[cursor.child], cursor.inner)
    if isinstance(schedule, BlendSchedule):
        return _sum(map(_consumed, schedule.children, cursor.children))
    if not isinstance(schedule, LeafSchedule):
        raise TypeError(f"a {type(schedule).__name__}")
    return Counter({schedule.leaf: cursor.position})


def _whole(schedule: Schedule) -> Counter[int]:
    """Count the references of one pass; none if it never ends."""
    if isinstance(schedule, RepeatSchedule):
        whole = _whole(schedule.inner)
        times = schedule.repeats or 0.0
        part = {leaf: math.floor(count * (times % 1)) for leaf, count in whole.items()}
        return _times(whole, math.floor(times)) + Counter(part)
    if isinstance(schedule, (ConcatSchedule, BlendSchedule)):
        return _sum(map(_whole, schedule.children))
    if not isinstance(schedule, LeafSchedule):
        raise TypeError(f"a {type(schedule).__name__}")
    return Counter({schedule.leaf: schedule.length})


def _times(counts: Counter[int], number: int) -> Counter[int]:
    return Counter({leaf: count * number for leaf, count in counts.items()})


def _sum(counts: Iterable[Counter[int]]) -> Counter[int]:
    total: Counter[int] = Counter()
    for each in counts:
        total.update(each)
    return total
