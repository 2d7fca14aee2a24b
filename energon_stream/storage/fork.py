"""Fork safety: values that each process makes for itself, and work done before a fork."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_inherited: list[object] = []
"""Values of the parent that a child must not free. Freeing an obstore client waits for threads that the child
does not have; freeing an asyncio client takes the parent's sockets out of an epoll set that both processes
share."""


class PerProcess(Generic[T]):
    """Values that each process makes for itself, on first use.

    A forked child starts without any. Threads that ask for the same key get the same object: it is made once,
    under a lock of its own. A pickled copy is empty.

    Args:
        make: Makes the value that :meth:`get` returns.
        keep: Most values that :meth:`map` remembers; the oldest ones are dropped. None for no limit.
        drop_inherited: Whether a child may free its copy of the parent's values. Clients, event loops and
            pools of threads must not be freed there; files and memory maps should be.
    """

    def __init__(
        self, make: Callable[[], T] | None = None, *, keep: int | None = None, drop_inherited: bool = False
    ) -> None:
        self._make = make
        self._keep = keep
        self._drop_inherited = drop_inherited
        self._renew()
        _instances.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        options: dict[str, Any] = {"keep": self._keep, "drop_inherited": self._drop_inherited}
        return functools.partial(PerProcess, self._make, **options), ()

    def get(self) -> T:
        """Return the one value of this process."""
        if self._make is None:
            raise TypeError("PerProcess.get() needs the argument 'make' of the constructor; use map()")
        return self.map(None, self._make)

    def map(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return this process's value of ``key``; ``make()`` is called if there is none."""
        try:
            return self._values[key]
        except KeyError:
            with self._lock:
                lock = self._locks.setdefault(key, threading.Lock())
        with lock:  # one lock per key: values that take long to make do not wait for each other
            if key in self._values:
                return self._values[key]
            value = make()
            with self._lock:
                self._values[key] = value
                for oldest in list(self._values)[: -self._keep] if self._keep else ():
                    del self._values[oldest], self._locks[oldest]
            return value

    def pop(self, key: Hashable = None) -> T | None:
        """Forget the value of ``key``, or the one value, and return it; None if there is none."""
        with self._lock:
            return self._values.pop(key, None)

    def clear(self) -> None:
        """Forget all values of this process."""
        with self._lock:
            self._values.clear()

    def _renew(self) -> None:
        self._lock = threading.Lock()
        self._locks: dict[Hashable, threading.Lock] = {}
        self._values: dict[Hashable, T] = {}

    def _begin_child(self) -> None:
        if self._values and not self._drop_inherited:
            _inherited.append(self._values)
        self._renew()  # the locks as well: a thread of the parent may have held them


_instances: weakref.WeakSet[PerProcess[Any]] = weakref.WeakSet()


def _renew_instances() -> None:
    for values in list(_instances):
        values._begin_child()


os.register_at_fork(after_in_child=_renew_instances)


_obstore_pid: int | None = None


def mark_obstore_used() -> None:
    """Note that this process starts obstore's runtime."""
    global _obstore_pid
    if _obstore_pid is None:
        _obstore_pid = os.getpid()


def obstore_usable() -> bool:
    """Return False in a child of a process that had started obstore's runtime before the fork.

    The runtime's threads do not exist in the child, but the runtime believes that they run, so the child's
    first request would never end.
    """
    return _obstore_pid in (None, os.getpid())


_preparations: dict[Callable[[], None], bool] = {}
"""Registered functions, and whether they were called."""

# An RLock, because a preparation may fork. Renewed in children, which inherit it locked.
_forking_lock = PerProcess(threading.RLock)
_is_collector_paused = False  # a child has to know whether to resume it


def before_forks(prepare: Callable[[], None]) -> None:
    """Have ``prepare`` called once before the next fork, so that the children need not do the same work each.

    Args:
        prepare: Leaves nothing behind but modules and plain data, which may cross a fork.
    """
    _preparations.setdefault(prepare, False)


def prepare_fork() -> None:
    """Call the registered preparations that were not called yet; part of :func:`forking`.

    Hooks of ``os.register_at_fork`` cannot do this: a module that is imported in a hook, and registers hooks
    of its own, sees only the second half of that fork (``concurrent.futures`` then releases a lock that it
    does not hold).
    """
    # The lock keeps forking() of other threads waiting: a fork in the middle of an import would leave the
    # import's lock locked in the child for ever.
    with _forking_lock.get():
        for prepare, is_done in list(_preparations.items()):
            if not is_done:
                with contextlib.suppress(Exception):  # a child that needs it will report what is wrong
                    prepare()
                _preparations[prepare] = True


@contextlib.contextmanager
def forking() -> Iterator[None]:
    """Surround a fork with this; the child calls :func:`begin_child` first.

    The garbage collector is paused meanwhile: garbage of the parent must not be collected in the child. The
    finalizer of s3fs's file systems, for example, waits a second for a thread that the child does not have,
    and then takes the parent's sockets out of an epoll set that both processes share.
    """
    global _is_collector_paused
    with _forking_lock.get(), warnings.catch_warnings():
        # Python 3.12 warns that a process with threads forks, because a child may wait for a lock that one of
        # them held. Our children do not take such locks: PerProcess renews those of this library, obstore is
        # not used (obstore_usable), and imports are finished (prepare_fork).
        warnings.filterwarnings("ignore", ".*multi-threaded, use of fork", DeprecationWarning)
        prepare_fork()
        was_enabled = gc.isenabled()
        if was_enabled:
            _is_collector_paused = True
            gc.disable()
        try:
            yield
        finally:
            if was_enabled:
                gc.enable()
                _is_collector_paused = False


def begin_child() -> None:
    """Leave the parent's objects alone from now on; see :func:`forking`."""
    gc.freeze()
    if _is_collector_paused:
        gc.enable()
