"""A limit on the time that one call of Python code takes, by a timer of the process."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn, TypeVar

from energon_stream.errors import ConfigError, SampleTimeoutError

T = TypeVar("T")
_AGAIN_SECONDS = 0.1  # seconds after which a call that went on in spite of the error gets it again


class TimeLimit:
    """Calls functions, and raises SampleTimeoutError in one that takes too long.

    The system's timer (SIGALRM) interrupts Python code of the main thread. In a C function, the error is
    raised when it returns.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._has_rung = False

    def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Return ``function(*arguments)``. Raises ConfigError without such a timer, or in another thread."""
        if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
            raise ConfigError(
                "sample_timeout works in the main thread of a process, on systems with SIGALRM",
                hint="use worker processes (num_workers), or leave sample_timeout out",
            )
        began, outer = time.monotonic(), signal.getitimer(signal.ITIMER_REAL)
        handler, self._has_rung = signal.signal(signal.SIGALRM, self._ring), False

        def stop() -> None:
            left = outer[0] and max(outer[0] - (time.monotonic() - began), 1e-6)
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, handler)
            signal.setitimer(signal.ITIMER_REAL, left, outer[1])

        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, self._seconds, _AGAIN_SECONDS)
                return function(*arguments)
            finally:
                stop()
        except Exception as error:
            if isinstance(error, SampleTimeoutError) or not self._has_rung:
                raise
            raise self._error() from error  # a library made another error of it
        finally:  # the timer may ring just before it is stopped
            stop()

    def pause(self, function: Callable[..., T], *arguments: Any) -> T:
        """Return ``function(*arguments)``, whose time does not count, within a call of :meth:`run`."""
        left = signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            return function(*arguments)
        finally:
            signal.setitimer(signal.ITIMER_REAL, *left)

    def _ring(self, number: int, frame: FrameType | None) -> NoReturn:
        self._has_rung = True
        raise self._error()

    def _error(self) -> SampleTimeoutError:
        return SampleTimeoutError(f"it took longer than {self._seconds:g} s")
