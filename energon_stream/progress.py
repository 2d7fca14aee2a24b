"""Progress of long work, on standard error."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from tqdm import tqdm

_SECONDS = 60.0  # between two lines in a log
_LINE = "{n_fmt} of {total_fmt} {unit}, {rate_noinv_fmt}, {remaining} left"
_LINE_WITHOUT_TOTAL = "{n_fmt} {unit}, {rate_noinv_fmt}"


class Progress:
    """Shows how far some work is, with rate and time left: by a bar on a terminal, a line a minute in a log,
    nothing in a pipe.

    Nothing is written before the first unit of work is done. Call the methods from one thread at a time.
    ``total`` is None for unknown, and may be set later; the unit ``"B"`` is for bytes. ``enabled=True``
    writes lines in a pipe, too.

    Example:
        >>> with Progress(3, unit="tar") as progress:
        ...     for tar in ("a.tar", "b.tar", "c.tar"):
        ...         progress.advance()
        >>> progress.done
        3
    """

    def __init__(
        self,
        total: float | None = None,
        *,
        unit: str = "it",
        enabled: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total = total
        self.done: int = 0
        self._unit, self._clock = unit, clock
        place = _place()
        self._on_terminal = place == "terminal"
        self._enabled = place != "pipe" if enabled is None else enabled
        self._bar: tqdm[Any] | None = None
        self._last_time, self._last_done = clock(), 0  # when the last line was due, and how far the work was

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
        elif (seconds := self._clock() - self._last_time) >= _SECONDS:
            sys.stderr.write(self._line(seconds) + "\n")
            sys.stderr.flush()
            self._last_time, self._last_done = self._clock(), self.done

    def reach(self, done: int, total: float | None = None) -> None:
        """Report how many units are done so far."""
        self.total = self.total if total is None else total
        self.advance(done - self.done)

    def keep(self, units: int) -> None:
        """Report units that an earlier run has done. They do not count in the rate."""
        self.done += units
        self._last_done += units
        if self._bar is not None:
            self._bar.initial += units
            self._bar.update(units)

    def _line(self, seconds: float) -> str:
        """Return a line of a log. The rate is that since the line before, ``seconds`` ago."""
        from tqdm import tqdm

        return tqdm.format_meter(
            self.done,
            self.total,  # type: ignore[arg-type] # None is allowed
            seconds,
            unit=self._unit,
            unit_scale=self._unit == "B",
            rate=(self.done - self._last_done) / seconds,
            bar_format=_LINE if self.total else _LINE_WITHOUT_TOTAL,
        )

    def _show_bar(self, units: int) -> None:
        if self._bar is None:
            from tqdm import tqdm

            self._bar = tqdm(unit=self._unit, unit_scale=self._unit == "B", initial=self.done - units)
        self._bar.total = self.total
        self._bar.update(units)


def _place() -> Literal["terminal", "log", "pipe"]:
    """Return what standard error is."""
    if sys.stderr.isatty():
        return "terminal"
    try:
        mode = os.fstat(sys.stderr.fileno()).st_mode
    except (OSError, ValueError, AttributeError):  # it is closed, or no file of the system
        return "pipe"
    return "log" if stat.S_ISREG(mode) else "pipe"
