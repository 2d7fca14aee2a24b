"""Threads: the error of a system that starts no more, threads that repeat, safe looks at stacks of others."""

from __future__ import annotations

import contextvars
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np

from energon_stream.errors import ConfigError


@contextmanager
def thread_errors(where: str | None = None) -> Iterator[None]:
    """Raise ConfigError for Python's ``RuntimeError: can't start new thread``; ``where`` says what for."""
    try:
        yield
    except RuntimeError as error:
        if "can't start new thread" not in str(error) or isinstance(error, ConfigError):
            raise
        raise ConfigError(
            "the system starts no more threads",
            where=where,
            hint="raise its limit (`ulimit -u`, or pids of the container), or use fewer workers",
        ) from error


def context_runner() -> Callable[..., Any]:
    """Return what calls a function in another thread with the context variables of this one.

    NumPy's ``errstate`` is one of them since NumPy 2. Before, it belongs to a thread, so it is set there.
    """
    run = contextvars.copy_context().run
    if np.lib.NumpyVersion(np.__version__) >= "2.0.0":
        return run
    settings = np.geterr()
    call: Any = np.geterrcall()  # may be None, which the type of errstate leaves out

    def run_with_settings(function: Callable[..., Any], *args: Any) -> Any:
        with np.errstate(call=call, **settings):
            return run(function, *args)

    return run_with_settings


class WorkerThread(threading.Thread):
    """A thread that makes batches, with the pool that its hooks fetch with. Other threads draw beside it."""

    cache_pool: Any = None


class Repeater:
    """Calls a function at intervals in a background thread, until it is closed, or returns False.

    ``what`` is the purpose of the thread. Raises ConfigError if the system starts no more threads.
    """

    def __init__(self, function: Callable[[], object], seconds: float, what: str) -> None:
        self._function, self._seconds = function, seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"energon_stream {what}", daemon=True)
        with thread_errors(what):
            self._thread.start()

    def close(self) -> None:
        """End the thread. A finalizer may call this in that thread itself."""
        self._over.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(self._seconds) and self._function() is not False:
            pass


@contextmanager
def steady_stacks() -> Iterator[dict[int, FrameType]]:
    """Let a block walk the stacks of other threads: their innermost frames, by the number of the thread.

    A reference to a frame keeps the variables of its function and of its callers alive, and so whole batches,
    also when these have returned. The caller's own frame would refer to itself, and keep them until the
    collector runs. So it is left out, and the others are let go with the end of the block.

    On Python 3.11, ``f_back`` may collect garbage before it returns. A finalizer may let the other thread run
    meanwhile, and then the frame is gone. CPython made ``sys._current_frames()`` safe in the same way
    (gh-106883).
    """
    may_collect = sys.version_info >= (3, 12) or not gc.isenabled()
    if not may_collect:
        gc.disable()
    frames = sys._current_frames()
    try:
        frames.pop(threading.get_ident(), None)
        yield frames
    finally:
        frames.clear()
        if not may_collect:
            gc.enable()
