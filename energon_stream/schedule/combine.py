"""Schedules made of schedules: repeat, blend, concatenate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import numpy.typing as npt

from energon_stream.arrays import Int64Array
from energon_stream.errors import ConfigError
from energon_stream.rng import derive_key, uniform
from energon_stream.schedule.base import Cursor, Refs, Schedule

__all__ = ["BlendSchedule", "ConcatSchedule", "RepeatSchedule"]


@dataclass(frozen=True, slots=True)
class RepeatSchedule:
    """Pass after pass of one schedule. The cursor is ``(first, pass, inner cursor)``.

    Args:
        inner: What is repeated; finite.
        repeats: Number of passes; a fraction takes the floor of that share of the last pass; None for ever.
    """

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
                "an endless schedule cannot be repeated", hint="repeat the outermost level only"
            )
        return length

    @property
    def length(self) -> int | None:
        """References in all passes together; None where it never ends."""
        inner = self._inner_length
        if self.repeats is None:
            return None if inner else 0
        whole = math.floor(self.repeats)
        return inner * whole + math.floor(inner * (self.repeats - whole))

    def begin(self, epoch: int = 0) -> Cursor:
        """Cursor at the start; an outer pass continues the numbering of the inner ones."""
        first = epoch * (1 if self.repeats is None else math.ceil(self.repeats))
        return (first, first, self.inner.begin(first))

    def remaining(self, cursor: Cursor) -> int | None:
        """References left over all passes."""
        length = self._inner_length
        if self.repeats is None and length:
            return None
        first, number, inner = cast("tuple[int, int, Cursor]", cursor)
        left = cast(int, self.inner.remaining(inner))
        if self.repeats is None:
            return left
        whole = math.floor(self.repeats)
        later = whole - (number - first) - 1
        if later < 0:  # in the last pass, of which a share is used
            in_pass = cast(int, self.inner.length_at(inner))
            return max(0, math.floor(in_pass * (self.repeats - whole)) - (in_pass - left))
        return left + length * later + math.floor(length * (self.repeats - whole))

    def length_at(self, cursor: Cursor) -> int | None:
        """References in all passes; of those that are over, as if they had been as long as the next."""
        left = self.remaining(cursor)
        if left is None:
            return None
        first, number, inner = cast("tuple[int, int, Cursor]", cursor)
        given = cast(int, self.inner.length_at(inner)) - cast(int, self.inner.remaining(inner))
        return (number - first) * self._inner_length + given + left

    def _chunks(self, cursor: Cursor, count: int) -> tuple[list[tuple[Cursor, int]], Cursor]:
        """Split ``count`` references into (inner cursor, references of that pass)."""
        left_over_all = self.remaining(cursor)
        left = count if left_over_all is None else min(count, left_over_all)
        first, number, inner = cast("tuple[int, int, Cursor]", cursor)
        chunks: list[tuple[Cursor, int]] = []
        while left > 0:
            in_pass = cast(int, self.inner.remaining(inner))
            if in_pass == 0:
                number += 1
                inner = self.inner.begin(number)
                continue
            size = min(left, in_pass)
            chunks.append((inner, size))
            left -= size
            if left > 0:
                number += 1
                inner = self.inner.begin(number)
            else:
                inner = self.inner.advance(inner, size)
        return chunks, (first, number, inner)

    def take(self, cursor: Cursor, count: int) -> tuple[Refs, Cursor]:
        """The next references and the cursor after them."""
        chunks, after = self._chunks(cursor, count)
        return Refs.concatenate([self.inner.take(inner, size)[0] for inner, size in chunks]), after

    def advance(self, cursor: Cursor, count: int) -> Cursor:
        """The cursor after some more references."""
        return self._chunks(cursor, count)[1]


@dataclass(frozen=True, slots=True)
class ConcatSchedule:
    """One schedule after the other. The cursor is ``(number of the current one, its cursor, epoch)``."""

    children: tuple[Schedule, ...]

    @property
    def length(self) -> int | None:
        """References of all together."""
        lengths = [child.length for child in self.children]
        return None if None in lengths else sum(cast("list[int]", lengths))

    def begin(self, epoch: int = 0) -> Cursor:
        """Cursor at the start of the first."""
        return (0, self.children[0].begin(epoch), epoch)

    def _chunks(self, cursor: Cursor, count: int) -> tuple[list[tuple[int, Cursor, int]], Cursor]:
        number, inner, epoch = cast("tuple[int, Cursor, int]", cursor)
        chunks: list[tuple[int, Cursor, int]] = []
        while True:
            child = self.children[number]
            left = child.remaining(inner)
            size = count if left is None else min(count, left)
            if size:
                chunks.append((number, inner, size))
                inner = child.advance(inner, size)
                count -= size
            if not count or number + 1 == len(self.children):
                return chunks, (number, inner, epoch)
            number += 1
            inner = self.children[number].begin(epoch)

    def take(self, cursor: Cursor, count: int) -> tuple[Refs, Cursor]:
        """The next references and the cursor after them."""
        chunks, after = self._chunks(cursor, count)
        return Refs.concatenate([self.children[n].take(inner, size)[0] for n, inner, size in chunks]), after

    def advance(self, cursor: Cursor, count: int) -> Cursor:
        """The cursor after some more references."""
        return self._chunks(cursor, count)[1]

    def remaining(self, cursor: Cursor) -> int | None:
        """References left in the current and all later ones."""
        number, inner, _ = cast("tuple[int, Cursor, int]", cursor)
        lengths = [self.children[number].remaining(inner), *(c.length for c in self.children[number + 1 :])]
        return None if None in lengths else sum(cast("list[int]", lengths))

    def length_at(self, cursor: Cursor) -> int | None:
        """References of all together; of those that are over, as if they had been as long as in the next pass."""
        number, inner, _ = cast("tuple[int, Cursor, int]", cursor)
        lengths = [child.length for child in self.children]
        lengths[number] = self.children[number].length_at(inner)
        return None if None in lengths else sum(cast("list[int]", lengths))


@dataclass(frozen=True, slots=True)
class BlendSchedule:
    """One weighted draw per reference among several schedules.

    The draw for reference ``t`` is a function of ``(key, epoch, t)`` and of which children still have
    references; an exhausted child has weight 0 from then on. The cursor is
    ``(epoch, t, (cursor of each child…))``.

    Args:
        children: What is blended.
        weights: Positive, not necessarily normalised.
        key: Key of the draws.
    """

    children: tuple[Schedule, ...]
    weights: tuple[float, ...]
    key: int
    _finite: tuple[int, ...] = field(init=False, repr=False)
    _capacity: npt.NDArray[np.float64] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        lengths = [child.length for child in self.children]
        capacity = np.array([np.inf if length is None else length for length in lengths])
        finite = (number for number, length in enumerate(lengths) if length is not None)
        object.__setattr__(self, "_finite", tuple(finite))
        object.__setattr__(self, "_capacity", capacity)
        if len(self.weights) != len(self.children) or not self.children:
            raise ConfigError("a blend needs one weight for each dataset, and at least one dataset")
        if not all(weight > 0 and math.isfinite(weight) for weight in self.weights):
            raise ConfigError(
                f"blend weights {list(self.weights)}", hint="every weight must be positive and finite"
            )

    @property
    def length(self) -> int | None:
        """References of all children together."""
        lengths = [child.length for child in self.children]
        return None if None in lengths else sum(cast("list[int]", lengths))

    def begin(self, epoch: int = 0) -> Cursor:
        """Cursor at the start of a pass."""
        return (epoch, 0, tuple(child.begin(epoch) for child in self.children))

    def remaining(self, cursor: Cursor) -> int | None:
        """References left in all children."""
        _, _, inner = cast("tuple[int, int, tuple[Cursor, ...]]", cursor)
        left = self._left(inner)
        return None if None in left else sum(cast("list[int]", left))

    def length_at(self, cursor: Cursor) -> int | None:
        """References given out in this pass and left in it."""
        left = self.remaining(cursor)
        return None if left is None else cast("tuple[int, int, tuple[Cursor, ...]]", cursor)[1] + left

    def _left(self, inner: Sequence[Cursor]) -> list[int | None]:
        return [child.remaining(cursor) for child, cursor in zip(self.children, inner, strict=True)]

    def _choices(self, cursor: Cursor, count: int) -> Int64Array:
        """Which child supplies each of the next references; shorter when all are exhausted."""
        epoch, step, inner = cast("tuple[int, int, tuple[Cursor, ...]]", cursor)
        key = derive_key(self.key, "blend", epoch)
        left = self._capacity.copy()
        for number in self._finite:
            left[number] = cast(int, self.children[number].remaining(inner[number]))
        parts: list[Int64Array] = []
        while count > 0 and (left > 0).any():
            bounds = np.cumsum(np.where(left > 0, self.weights, 0.0))
            draws = uniform(key, np.arange(step, step + count, dtype=np.int64)) * bounds[-1]
            choices = np.searchsorted(bounds, draws, side="right").astype(np.int64)
            # The draws hold until some finite child gives out its last reference.
            size = count
            uses_of = np.bincount(choices, minlength=len(left))
            for child in np.flatnonzero((uses_of >= left) & (left > 0)):
                uses = np.flatnonzero(choices[:size] == child)
                if len(uses) >= left[child]:
                    size = int(uses[int(left[child]) - 1]) + 1
            parts.append(choices[:size])
            left -= np.bincount(choices[:size], minlength=len(left))
            step, count = step + size, count - size
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

    def _after(self, cursor: Cursor, choices: Int64Array) -> Cursor:
        epoch, step, inner = cast("tuple[int, int, tuple[Cursor, ...]]", cursor)
        uses = np.bincount(choices, minlength=len(self.children)).tolist()
        advanced = tuple(
            child.advance(at, n) if n else at for child, at, n in zip(self.children, inner, uses, strict=True)
        )
        return (epoch, step + len(choices), advanced)

    def take(self, cursor: Cursor, count: int) -> tuple[Refs, Cursor]:
        """The next references and the cursor after them."""
        choices = self._choices(cursor, count)
        leaf = np.zeros(len(choices), dtype=np.int32)
        index = np.zeros(len(choices), dtype=np.int64)
        inner = cast("tuple[int, int, tuple[Cursor, ...]]", cursor)[2]
        for number in np.unique(choices).tolist():
            places = np.flatnonzero(choices == number)
            refs, _ = self.children[number].take(inner[number], len(places))
            leaf[places], index[places] = refs.leaf, refs.index
        return Refs(leaf, index), self._after(cursor, choices)

    def advance(self, cursor: Cursor, count: int) -> Cursor:
        """The cursor after some more references."""
        return self._after(cursor, self._choices(cursor, count))
