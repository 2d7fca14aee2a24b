"""The queue of planned samples that are not consumed yet. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from energon_stream.read.read_plan import LargeSample, PlannedSamples, Row


class ReadySamples:
    """Planned samples in order. The row of a sample is made when it is taken, so none is held in memory.

    Attributes:
        left: Number of samples.
        ends_large: Whether the last sample is read alone.
    """

    __slots__ = ("_plans", "_rows", "ends_large", "left")

    def __init__(self) -> None:
        self._rows: Iterator[Row | LargeSample] = iter(())
        self._plans: deque[Iterator[Row | LargeSample]] = deque()
        self.left = 0
        self.ends_large = False

    def add(self, samples: PlannedSamples | tuple[LargeSample, ...]) -> None:
        """Add the samples of a plan."""
        self.ends_large = isinstance(samples, tuple)
        self._plans.append(iter(samples) if isinstance(samples, tuple) else samples.rows())
        self.left += len(samples)

    def pop(self) -> Row | LargeSample:
        """Remove and return the next sample. There must be one."""
        self.left -= 1
        while True:
            for row in self._rows:
                return row
            self._rows = self._plans.popleft()

    def first(self) -> Row | LargeSample:
        """Return the next sample, which stays. There must be one."""
        row = self.pop()
        self._plans.appendleft(self._rows)
        self._rows = iter((row,))
        self.left += 1
        return row
