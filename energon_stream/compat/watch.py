"""Watchdogs for steps that take too long, under Megatron-Energon's names."""

from __future__ import annotations

import faulthandler
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Self, TypeVar

from energon_stream.compat.placeholders import PRINT_LOCAL_MAX_LENGTH
from energon_stream.errors import ConfigError
from energon_stream.pipeline.dataset import SavableDataset, Wrapper
from energon_stream.pipeline.node import Context, End, Item, State, WrapperNode

if TYPE_CHECKING:
    from energon_stream.worker import WorkerConfig

T = TypeVar("T")

_log = logging.getLogger(__name__)
_EXIT_CODE = 1


def repr_short(obj: Any) -> str:
    """Return the ``repr`` of an object, with the middle of a long one left out.

    Example:
        >>> len(repr_short("a" * 1000))
        253
    """
    text, half = repr(obj), PRINT_LOCAL_MAX_LENGTH // 2
    return text if len(text) <= PRINT_LOCAL_MAX_LENGTH else f"{text[:half]}...{text[-half:]}"


class Watchdog:
    """Calls a function if nothing happens for some time. Each :meth:`reset` begins the time anew.

    Args:
        timeout: Seconds.
        initial_timeout: Seconds before the first reset; None for ``timeout``.
        callback: The function; None for none.
        dump_stacks: Whether the stacks of all threads are written to standard error first.
        enabled: Whether the time runs from the beginning.

    Raises:
        ConfigError: A time is not positive.

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
        # The thread wakes at the deadline that it waits for, and looks at the present one then.
        waits = self._deadline is not None
        self._deadline = time.monotonic() + self._next_timeout
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
            self._thread.start()
        elif not waits:
            self._changed.notify()

    def _run(self) -> None:
        with self._changed:
            while not self._finished:
                left = None if self._deadline is None else self._deadline - time.monotonic()
                if left is None or left > 0:
                    self._changed.wait(left)
                else:
                    self._deadline = None
                    self._bark()

    def _bark(self) -> None:
        if self._dump:
            faulthandler.dump_traceback(all_threads=True)
        if self._callback is not None:
            self._callback()


class _WatchdogNode(WrapperNode):
    """State: ``in``."""

    def __init__(self, dataset: WatchdogDataset, context: Context, state: State | None) -> None:
        self._inner = dataset.dataset.make_node(context, None if state is None else state["in"])
        self._watchdog = dataset.watchdog(context.stream)

    def next(self) -> Item | End:
        if self._watchdog is None:
            return self._inner.next()
        self._watchdog.enable()
        try:
            return self._inner.next()
        finally:
            self._watchdog.disable()

    def state(self) -> State:
        return {"in": self._inner.state()}

    def close(self) -> None:
        if self._watchdog is not None:
            self._watchdog.finish()
        super().close()


class WatchdogDataset(Wrapper[Any]):
    """Tells if an element takes too long: writes the stacks of all threads, and may end the process.

    Loaders have such a watchdog of their own: ``get_loader(watchdog_timeout_seconds=…)``.

    Args:
        dataset: The inner dataset.
        worker_config: Must agree with the inner dataset's, if given.
        timeout_seconds: Seconds for an element; None for no watchdog.
        initial_timeout_seconds: Seconds for the first element; None for ``timeout_seconds``.
        fail_on_timeout: Whether the process ends, with exit code 1; otherwise a warning is logged.

    Example:
        >>> from energon_stream.testing.operator_suite import NumbersDataset
        >>> list(WatchdogDataset(NumbersDataset(3), timeout_seconds=60))
        [0, 1, 2]
    """

    kind = "Watchdog"
    node_type = _WatchdogNode

    def __init__(
        self,
        dataset: SavableDataset[Any],
        worker_config: WorkerConfig | None = None,
        timeout_seconds: float | None = 60,
        initial_timeout_seconds: float | None = None,
        fail_on_timeout: bool = False,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self.timeout_seconds = timeout_seconds
        self.initial_timeout_seconds = initial_timeout_seconds
        self.fail_on_timeout = fail_on_timeout

    @property
    def pass_length(self) -> int:
        """The inner dataset's: elements pass one by one."""
        return self.dataset.pass_length

    def watchdog(self, stream: int) -> Watchdog | None:
        """Make the watchdog of one stream; None if there is none."""
        if self.timeout_seconds is None:
            return None

        def tell() -> None:
            _log.warning(
                "no element of stream %d for %s s; the stacks are on stderr", stream, self.timeout_seconds
            )
            if self.fail_on_timeout:
                os._exit(_EXIT_CODE)  # the thread that hangs cannot be interrupted

        return Watchdog(self.timeout_seconds, self.initial_timeout_seconds, tell, enabled=False)
