"""Schedules: pure functions from a cursor to the next sample references.

A schedule holds no position. A *cursor* is a named tuple of integers and other cursors, and everything random
is drawn from the counters in it. A reader that looks ahead keeps one cursor for what it takes, and another
for what was consumed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from energon_stream.arrays import Int64Array


class LeafCursor(NamedTuple):
    """Place in one pass over a leaf."""

    epoch: int  # number of the pass
    position: int  # references consumed in this pass
    group: int  # number of the group of slices that the next reference is in
    offset: int  # references of that group that were consumed
    # First sample, and one past the last, of the stream's share of the leaf, if the pass began before the
    # dataset grew; None for the present share.
    share: tuple[int, int] | None = None
    # Number of the leaf's place in its blend when it began, a part of the key of all random draws, if it was
    # moved since; None for the present place.
    place: int | None = None


class RepeatCursor(NamedTuple):
    """Place in repeated passes: numbers of the first and the current pass, and the place in the latter."""

    first: int
    current: int
    inner: Cursor


class ConcatCursor(NamedTuple):
    """Place in schedules that follow each other: the current one, the place in it, and the pass."""

    child: int
    inner: Cursor
    epoch: int


class BlendCursor(NamedTuple):
    """Place in a blend: number of the pass, references consumed in it, and the place in each child."""

    epoch: int
    step: int
    children: tuple[Cursor, ...]
    # With even draws: the state of EvenDraws before the batch that the reference is in; else nothing.
    even: tuple[tuple[int, ...], ...] = ()
    # True if a child that was drawn from in this pass is gone, so that the children consumed fewer in all.
    lost: bool = False


Cursor: TypeAlias = Any
"""One of the four named tuples. Each schedule takes the cursors of its own kind only."""


@dataclass(frozen=True, slots=True)
class Refs:
    """References to samples, in the order in which they are consumed."""

    leaf: npt.NDArray[np.int32]  # ``int32``, number of the leaf
    index: Int64Array  # ``int64``, number of the sample in the leaf's split part

    def __len__(self) -> int:
        return len(self.index)

    @classmethod
    def concatenate(cls, parts: list[Refs]) -> Refs:
        """Join references end to end."""
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return cls(np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int64))
        return cls(
            np.concatenate([part.leaf for part in parts]), np.concatenate([part.index for part in parts])
        )


class Schedule(Protocol):
    """One pass over some samples in a defined order."""

    @property
    def length(self) -> int | None:
        """References in one pass that begins now; None if it never ends."""

    def begin(self, epoch: int = 0) -> Cursor:
        """Return the cursor at the start of pass number ``epoch``."""

    def next_pass(self, cursor: Cursor, epoch: int) -> Cursor:
        """Return the cursor at the start of pass number ``epoch``, after one that ``cursor`` is in."""

    def take(self, cursor: Cursor, count: int) -> tuple[Refs, Cursor]:
        """Return the next ``count`` references (fewer at the end of the pass) and the cursor after them."""

    def advance(self, cursor: Cursor, count: int) -> Cursor:
        """Return the cursor after ``count`` more references; equal to ``take(cursor, count)[1]``."""

    def remaining(self, cursor: Cursor) -> int | None:
        """Count the references left in this pass; None if it never ends."""

    def length_at(self, cursor: Cursor) -> int | None:
        """Count all references of the cursor's pass, which may have begun before the dataset grew."""
