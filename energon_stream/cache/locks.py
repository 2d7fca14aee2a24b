"""Locks between threads and processes that end with their holder: byte-range locks of open file descriptions.

The kernel attaches these locks to the open file (``F_OFD_SETLK`` of ``fcntl(2)``). So threads exclude each
other as processes do, and the locks of a killed process are gone. Waiting means polling, never blocking in
the kernel: a process that was stopped while it held a lock must not stop others forever.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import sys
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

from energon_stream.fork import PerProcess

PATIENCE = 5.0  # seconds to wait for a lock that is held for milliseconds, unless the holder was stopped
_FLOCK = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux: type, whence, start, length, pid
_FIRST_WAIT, _LONGEST_WAIT = 0.0005, 0.02
_STRIPES = 64

_open: weakref.WeakSet[LockedFile] = weakref.WeakSet()


class Busy(Exception):
    """Another process holds a lock for much longer than it should."""


def patience() -> float:
    """Return :data:`PATIENCE`, as it is now."""
    return PATIENCE


def has_locks() -> bool:
    """Return True if this system has locks of open file descriptions."""
    return sys.platform.startswith("linux") and hasattr(fcntl, "F_OFD_SETLK")


class LockedFile:
    """A file, opened like by ``os.open`` but never through a link, and the locks on its bytes.

    Closing it releases the locks, unless the file is mapped. A forked child closes its copy at once, because
    the copy would keep the parent's locks.
    """

    def __init__(self, path: str, flags: int) -> None:
        self.fd: int = -1
        self.fd = self._open(path, flags)
        _open.add(self)

    @staticmethod
    def _open(path: str, flags: int) -> int:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)

    def try_lock(self, start: int, stop: int, *, shared: bool = False) -> bool:
        """Lock bytes, which need not exist; return False if another open file has locked them."""
        try:
            self._set_lock(fcntl.F_RDLCK if shared else fcntl.F_WRLCK, start, stop)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True

    def lock(
        self,
        start: int,
        stop: int,
        *,
        seconds: float,
        shared: bool = False,
        unless: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Lock bytes; return False if others hold a lock on them for ``seconds``, or ``unless()``."""
        deadline, wait = time.monotonic() + seconds, _FIRST_WAIT
        while not self.try_lock(start, stop, shared=shared):
            left = deadline - time.monotonic()
            if left <= 0 or unless():
                return False
            time.sleep(min(wait, left))
            wait = min(2 * wait, _LONGEST_WAIT)
        return True

    def unlock(self, start: int, stop: int) -> None:
        """Release locks on bytes."""
        self._set_lock(fcntl.F_UNLCK, start, stop)

    def _set_lock(self, kind: int, start: int, stop: int) -> None:
        fcntl.fcntl(self.fd, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, start, stop - start, 0))

    def close(self) -> None:
        """Close the file."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    __del__ = close


class StripedLocks:
    """Locks by name. Threads of this process queue for a lock first; then one of them polls the file.

    If all threads polled, they would keep waking each other's cores and find the lock late. Two names may
    share a lock, so a thread must not hold two locks of one object. The bytes of the 64 stripes of names lie
    from ``start`` on, ``apart`` bytes from each other: 0 if each file has one name.
    """

    def __init__(self, start: int, apart: int = 0) -> None:
        self._start, self._apart = start, apart
        self._queues = PerProcess(lambda: [threading.Lock() for _ in range(_STRIPES)], drop_inherited=True)

    @contextmanager
    def hold(self, file: LockedFile, name: str, seconds: float | None = None) -> Iterator[None]:
        """Hold the lock of a name, which distinguishes files, or things to lock in one file.

        Raises Busy if others hold the lock for ``seconds``, or for :data:`PATIENCE`.
        """
        seconds = PATIENCE if seconds is None else seconds
        deadline = time.monotonic() + seconds
        stripe = zlib.crc32(name.encode()) % _STRIPES  # not hash(), which differs between processes
        byte = self._start + stripe * self._apart
        queue = self._queues.get()[stripe]
        if not queue.acquire(timeout=seconds):
            raise Busy
        try:
            if not file.lock(byte, byte + 1, seconds=deadline - time.monotonic()):
                raise Busy
            try:
                yield
            finally:
                file.unlock(byte, byte + 1)
        finally:
            queue.release()


def _begin_child() -> None:
    for file in list(_open):
        file.close()


os.register_at_fork(after_in_child=_begin_child)
