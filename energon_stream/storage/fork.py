"""What must not cross a fork (values that every process makes for itself, obstore's runtime), and what had better."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Generic, TypeVar

__all__ = [
    "PerProcess",
    "before_forks",
    "begin_child",
    "forking",
    "keep_inherited",
    "mark_obstore_used",
    "obstore_usable",
    "prepare_fork",
]

T = TypeVar("T")

_inherited: list[object] = []


def keep_inherited(value: object) -> None:
    """Hold something of the parent's for as long as this process lives.

    Dropping an obstore client in a forked child waits for threads that the child does not have;
    dropping an asyncio one takes the parent's sockets out of an epoll set that both share.
    """
    if value is not None:
        _inherited.append(value)


class PerProcess(Generic[T]):
    """Values that each process makes for itself, on first use.

    A forked child starts without any. Threads that ask for the same value get the same object: it is made once,
    under a lock of its own. A pickled copy is empty.

    Args:
        make: Makes the value that :meth:`get` returns.
        keep: Most values that :meth:`map` remembers; the oldest ones are dropped. None for no limit.
        drop_inherited: Whether a child may free its copy of the parent's values. Clients, event loops and pools of
            threads must not be freed there (see :func:`keep_inherited`); files and memory maps should be.

    Example:
        >>> lists: PerProcess[list] = PerProcess()
        >>> lists.map("a", list) is lists.map("a", list)
        True
    """

    def __init__(
        self, make: Callable[[], T] | None = None, *, keep: int | None = None, drop_inherited: bool = False
    ) -> None:
        self._make = make
        self._keep = keep
        self._drop_inherited = drop_inherited
        self._renew()
        _per_process.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(
            PerProcess, self._make, keep=self._keep, drop_inherited=self._drop_inherited
        ), ()

    def _renew(self) -> None:
        self._lock = threading.Lock()
        self._locks: dict[Hashable, threading.Lock] = {}
        self._values: dict[Hashable, T] = {}

    def _begin_child(self) -> None:
        if self._values and not self._drop_inherited:
            keep_inherited(self._values)
        self._renew()  # locks as well: a thread of the parent may have held them

    def get(self) -> T:
        """Return the one value of this process."""
        if self._make is None:
            raise TypeError("this PerProcess has no function that makes its one value; use map()")
        return self.map(None, self._make)

    def map(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the value of ``key`` in this process; ``make()`` is called if there is none."""
        try:
            return self._values[key]
        except KeyError:
            with self._lock:
                lock = self._locks.setdefault(key, threading.Lock())
        with lock:  # one lock per key, so that values that take long to make do not wait for each other
            if key not in self._values:
                value = make()
                with self._lock:
                    self._values[key] = value
                    for oldest in list(self._values)[: -self._keep] if self._keep else ():
                        del self._values[oldest], self._locks[oldest]
                return value
            return self._values[key]

    def pop(self, key: Hashable = None) -> T | None:
        """Forget the value of ``key``, or the one value, and return it; None if there is none."""
        with self._lock:
            return self._values.pop(key, None)

    def clear(self) -> None:
        """Forget all values of this process."""
        with self._lock:
            self._values.clear()


_per_process: weakref.WeakSet[PerProcess[Any]] = weakref.WeakSet()


def _begin_child_values() -> None:
    for values in list(_per_process):
        values._begin_child()


os.register_at_fork(after_in_child=_begin_child_values)

_obstore_pid: int | None = None


def mark_obstore_used() -> None:
    """Note that this process starts obstore's runtime."""
    global _obstore_pid
    if _obstore_pid is None:
        _obstore_pid = os.getpid()


def obstore_usable() -> bool:
    """False in a child of a process that had started obstore's runtime before the fork.

    The runtime's threads are gone in the child while the runtime believes them alive, so that the
    child's first request would wait for ever.
    """
    return _obstore_pid in (None, os.getpid())


_preparations: dict[Callable[[], None], bool] = {}
"""What was registered, and whether it was done."""

_preparing = PerProcess(threading.Lock)


def before_forks(prepare: Callable[[], None]) -> None:
    """Have :func:`prepare_fork` call ``prepare`` once, so that children need not do it, each for itself.

    Args:
        prepare: Leaves nothing behind but modules and plain data, which may cross a fork.
    """
    _preparations.setdefault(prepare, False)


_is_paused = False  # a child that was forked meanwhile has to know


@contextlib.contextmanager
def forking() -> Iterator[None]:
    """Around a fork; the child calls :func:`begin_child` first.

    The collector rests meanwhile: what is garbage here and not collected yet must not be collected there. The
    finalizer of one of s3fs's file systems, for example, waits for a thread that a child does not have, a
    second for each, and then takes the parent's sockets out of an epoll set that both share.
    """
    global _is_paused
    prepare_fork()
    is_mine = gc.isenabled()
    if is_mine:
        _is_paused = True
        gc.disable()
    try:
        yield
    finally:
        if is_mine:
            gc.enable()
            _is_paused = False


def begin_child() -> None:
    """Leave the parent's objects alone from now on; see :func:`forking`."""
    gc.freeze()
    if _is_paused:
        gc.enable()


def prepare_fork() -> None:
    """Do what children would do later; part of :func:`forking`.

    Hooks of ``os.register_at_fork`` may not do it: a module that is imported there, and has hooks of
    its own, sees the second half of that fork only (``concurrent.futures`` then releases a lock that
    it does not hold).
    """
    with _preparing.get():  # a fork while another thread imports leaves the child a lock that nobody frees
        for prepare, is_done in list(_preparations.items()):
            if not is_done:
                with contextlib.suppress(Exception):  # the child that needs it will say what is wrong
                    prepare()
                _preparations[prepare] = True
