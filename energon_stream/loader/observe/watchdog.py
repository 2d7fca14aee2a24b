"""A watchdog, which calls a function if a step takes too long."""

from __future__ import annotations

import faulthandler
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Self, TypeVar

from energon_stream.errors import ConfigError

T = TypeVar("T")


class Watchdog:
    """Calls a function if nothing happens for some seconds. Each :meth:`reset` begins the time anew.

    ``dump_stacks`` writes the stacks of all threads to standard error first. The time runs from the beginning
    if the watchdog is ``enabled``, and until the first reset for ``initial_timeout``.

    Example:
        >>> barked = threading.Event()
        >>> with Watchdog(0.01, callback=barked.set, dump_stacks=False):
        ...     barked.wait(10)
        True
    """

    def __init__(
        self,
        timeout: float,
        initial_timeout: float | None = None,
        callback: Callable[[], None] | None = None,
        dump_stacks: bool = True,
        enabled: bool = True,
    ) -> None:
        first = timeout if initial_timeout is None else initial_timeout
        if not (timeout > 0 and first > 0):
            raise ConfigError(f"the watchdog's times are {timeout} and {first}", hint="use positive numbers")
        self._timeout, self._next_timeout = timeout, first
        self._callback, self._dump = callback, dump_stacks
        self._changed = threading.Condition()
        self._deadline: float | None = None  # None: the time does not run
        self._finished = False
        self._thread: threading.Thread | None = None
        if enabled:
            self.enable()

    def enable(self) -> None:
        """Begin the time."""
        with self._changed:
            self._begin()

    def reset(self) -> None:
        """Begin the time anew, if it runs."""
        with self._changed:
            self._next_timeout = self._timeout
            if self._deadline is not None:
                self._begin()

    def disable(self) -> None:
        """Stop the time."""
        with self._changed:
            self._next_timeout = self._timeout
            self._deadline = None

    def finish(self) -> None:
        """End the watch; the time cannot begin again."""
        with self._changed:
            self._finished = True
            self._changed.notify()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def watch_iter(self, iterable: Iterable[T]) -> Iterator[T]:
        """Iterate; the time runs while the next element is made, and not while it is used."""
        iterator = iter(iterable)
        while True:
            self.enable()
            try:
                element = next(iterator)
            except StopIteration:
                return
            finally:
                self.disable()
            yield element

    def _begin(self) -> None:
        self._deadline = time.monotonic() + self._next_timeout
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        # A deadline lies a time-out ahead when it is set. So the thread need not be woken for it: it sleeps
        # no longer than a time-out, and sees each deadline in time. Steps cost no switch of threads.
        longest = min(self._timeout, self._next_timeout)
        with self._changed:
            while not self._finished:
                left = longest if self._deadline is None else self._deadline - time.monotonic()
                if left > 0:
                    self._changed.wait(min(left, longest))
                else:
                    self._deadline = None
                    if self._dump:
                        faulthandler.dump_traceback(all_threads=True)
                    if self._callback is not None:
                        self._callback()
