"""What must not cross a fork (values that every process makes for itself, obstore's runtime), and what had better."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

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
    """A value made on first use and made anew in a forked child. Meant for module level."""

    def __init__(self, factory: Callable[[], T]) -> None:
        self._factory = factory
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()  # the parent may have held the old one
        keep_inherited(getattr(self, "_value", None))
        self._value: T | None = None

    def get(self) -> T:
        """The value of this process."""
        value = self._value
        if value is None:
            with self._lock:
                value = self._value
                if value is None:
                    value = self._value = self._factory()
        return value


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
