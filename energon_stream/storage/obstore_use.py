"""Effects of obstore on a process: its runtime, and the memory of its answers.

The runtime does not survive a fork: its threads do not exist in the child, but it believes that they run, so
the child's first request would never end.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Callable
from typing import Any, TypeVar

from energon_stream.fork import run_isolated

T = TypeVar("T")

_started_in: int | None = None  # process


def mark_obstore_used() -> None:
    """Note that this process starts obstore's runtime."""
    global _started_in
    if _started_in is None:
        _started_in = os.getpid()


def obstore_started() -> bool:
    """Return True if this process has started obstore's runtime, so that children cannot use it."""
    return _started_in == os.getpid()


def obstore_usable() -> bool:
    """Return False in a child of a process that had started obstore's runtime before the fork."""
    return _started_in in (None, os.getpid())


def run_forkable(function: Callable[..., T], *args: Any) -> T:
    """Call ``function(*args)`` so that this process may fork workers afterwards, if it may now.

    That takes a child, except where this process has started obstore already: then it gains nothing by one,
    and the child could not use obstore.
    """
    return function(*args) if obstore_started() else run_isolated(function, *args)


@functools.cache
def share_arenas() -> None:
    """Let all threads of this process share two of glibc's arenas, unless the user has set their number.

    Call this before the threads start: arenas that exist remain. By default, glibc makes one arena per
    thread, up to eight per core. Each keeps up to twice the largest block that was freed from it, which
    another thread's next block cannot use. With 64 threads that read blocks of some MB, that was 75 to 110
    MiB beside a budget of 256 MiB, and more on more cores. Sharing also saves a third of the page faults.
    """
    if "MALLOC_ARENA_MAX" in os.environ or "arena_max" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    with contextlib.suppress(AttributeError, OSError, TypeError):  # a C library without mallopt
        ctypes.CDLL(None).mallopt(-8, 2)  # M_ARENA_MAX of glibc's malloc.h
