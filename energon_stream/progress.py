"""Progress of long work, on standard error."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tqdm import tqdm

_SECONDS = 60.0
"""Time between two lines where standard error is no terminal."""


class Progress:
    """Shows how far some work is: a bar with rate and time left on a terminal, a line a minute elsewhere.

    Nothing is written before the first unit of work is done, and nothing where standard error is neither a
    terminal nor asked to be written to.

    Args:
        total: Units of all the work; None if that is not known. It may be set later.
        unit: Name of a unit, such as ``"tar"``; ``"B"`` for bytes.
        enabled: Whether to show progress. None: only on a terminal.

    Attributes:
        total: As above.
        done: Units done so far.
    """

    def __init__(self, total: float | None = None, *, unit: str = "it", enabled: bool | None = None) -> None:
        self.total, self.done = total, 0
        self._unit = unit
        self._on_terminal = sys.stderr.isatty()
        self._enabled = self._on_terminal if enabled is None else enabled
        self._bar: tqdm[Any] | None = None
        self._next_line = time.monotonic() + _SECONDS

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def advance(self, units: int = 1) -> None:
        """Report that more units are done."""
        self.done += units
        if not self._enabled:
            return
        if self._on_terminal:
            self._show_bar(units)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _SECONDS
            of = "" if not self.total else f" of {self.total:,.0f}"
            sys.stderr.write(f"{self.done:,}{of} {self._unit}\n")

    def reach(self, done: int, total: float | None = None) -> None:
        """Report how many units are done so far."""
        self.total = self.total if total is None else total
        self.advance(done - self.done)

    def _show_bar(self, units: int) -> None:
        if self._bar is None:
            from tqdm import tqdm

            self._bar = tqdm(unit=self._unit, unit_scale=self._unit == "B")
        self._bar.total = self.total
        self._bar.update(units)
