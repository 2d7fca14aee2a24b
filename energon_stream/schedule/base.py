"""What a schedule is: a pure function from a cursor to the next sample references.

A schedule holds no state. A *cursor* is a nested tuple of integers (and None); everything that is
random is drawn from counters inside it. ``take`` looks ahead, ``advance`` says where the cursor stands
after some references were consumed, so look-ahead never leaks into a saved state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from energon_stream.arrays import Int64Array

__all__ = ["Cursor", "Refs", "Schedule", "as_cursor"]

Cursor: TypeAlias = "int | None | tuple[Cursor, ...]"


def as_cursor(value: Any) -> Cursor:
    """Turn the lists of a deserialised cursor back into tuples."""
    if isinstance(value, (list, tuple)):
        return tuple(as_cursor(part) for part in value)
    return None if value is None else int(value)


@dataclass(frozen=True, slots=True)
class Refs:
    """References to samples, in the order in which they are wanted.

    Attributes:
        leaf: ``int32``, number of the source dataset.
        index: ``int64``, sample within the source's split part.
    """

    leaf: npt.NDArray[np.int32]
    index: Int64Array

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
        """References in one pass; None for an endless schedule.

        The pass of a cursor may have more or fewer, where it began before a dataset grew.
        """

    def begin(self, epoch: int = 0) -> Cursor:
        """Cursor at the start of pass number ``epoch``."""

    def take(self, cursor: Cursor, count: int) -> tuple[Refs, Cursor]:
        """The next ``count`` references (fewer only at the end of the pass) and the cursor after them."""

    def advance(self, cursor: Cursor, count: int) -> Cursor:
        """The cursor after ``count`` more references; equal to ``take(cursor, count)[1]``."""

    def remaining(self, cursor: Cursor) -> int | None:
        """References left in this pass; None for an endless schedule."""

    def length_at(self, cursor: Cursor) -> int | None:
        """References in the whole of the pass that the cursor is in; None for an endless schedule."""
