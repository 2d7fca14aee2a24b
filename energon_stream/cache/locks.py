"""Locks between processes that end with the process: byte-range locks of open file descriptions.

The kernel keeps them by open file (``F_OFD_SETLK`` of ``fcntl(2)``), so threads exclude each other as processes
do, and whoever is killed leaves none. They are polled, never waited for in the kernel: a process that was stopped
while it held one must not stop others for ever.
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
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from energon_stream.errors import ConfigError
from energon_stream.storage.fork import PerProcess

__all__ = ["LockedFile", "Turns", "require_locks"]

_FLOCK = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux: type, whence, start, length, pid
_FIRST_WAIT, _LONGEST_WAIT = 0.0005, 0.02

_open: weakref.WeakSet[LockedFile] = weakref.WeakSet()


def require_locks() -> None:
    """Check that this system has such locks.

    Raises:
        ConfigError: It has not.
    """
    if not sys.platform.startswith("linux") or not hasattr(fcntl, "F_OFD_SETLK"):
        raise ConfigError(
            "the cache needs locks of open file descriptions, which only Linux has",
            hint="Run without a cache here.",
        )


class LockedFile:
    """An open file, and the locks on its bytes. Closing it gives them back, unless the file is mapped.

    A forked child closes its copy at once: it would keep the parent's locks.

    Args:
        path: The file.
        flags: As for ``os.open``.

    Raises:
        OSError: It cannot be opened.
    """

    def __init__(self, path: str, flags: int) -> None:
        self.fd = -1
        self.fd = os.open(path, flags | os.O_CLOEXEC, 0o666)
        _open.add(self)

    def try_lock(self, start: int, stop: int, *, shared: bool = False) -> bool:
        """Lock bytes, which need not exist; False while another description has them locked."""
        kind = fcntl.F_RDLCK if shared else fcntl.F_WRLCK
        try:
            fcntl.fcntl(self.fd, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, start, stop - start, 0))
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True

    def lock(self, start: int, stop: int, *, seconds: float, shared: bool = False) -> bool:
        """Lock bytes, within some seconds; False if it did not come to that."""
        deadline, wait = time.monotonic() + seconds, _FIRST_WAIT
        while not self.try_lock(start, stop, shared=shared):
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(wait, left))
            wait = min(2 * wait, _LONGEST_WAIT)
        return True

    def unlock(self, start: int, stop: int) -> None:
        """Give locks back."""
        fcntl.fcntl(
            self.fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, start, stop - start, 0)
        )

    def close(self) -> None:
        """Close the file."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)

    def __enter__(self) -> LockedFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class Turns:
    """Locks of files as :meth:`LockedFile.lock` takes them, for which the threads of this process queue up first.

    Polling is for other processes; threads that all poll would wake each other's cores up, and find the lock late.

    Args:
        start: First byte that is locked of each file.
        stop: One past the last.
        apart: How much further the bytes are for each of 64 kinds of names; 0 where each file has one name.
    """

    def __init__(self, start: int, stop: int, apart: int = 0) -> None:
        self._start, self._stop, self._apart = start, stop, apart
        self._locks = PerProcess(_make_locks, drop_inherited=True)

    @contextmanager
    def hold(self, file: LockedFile, name: str, seconds: float) -> Iterator[bool]:
        """Lock the bytes of a file within some seconds; gives False if it did not come to that.

        Args:
            file: The file, open.
            name: Tells the file from others, or what is locked in one file from other things.
            seconds: How long to wait.
        """
        deadline = time.monotonic() + seconds
        stripe = zlib.crc32(name.encode()) % _STRIPES  # the same in all processes
        start, stop = self._start + stripe * self._apart, self._stop + stripe * self._apart
        turn = self._locks.get()[stripe]
        if not turn.acquire(timeout=seconds):
            yield False
            return
        try:
            if not file.lock(start, stop, seconds=deadline - time.monotonic()):
                yield False
                return
            try:
                yield True
            finally:
                file.unlock(start, stop)
        finally:
            turn.release()


_STRIPES = 64  # two names may share a lock: whoever holds one of a kind takes no other of that kind


def _make_locks() -> list[threading.Lock]:
    return [threading.Lock() for _ in range(_STRIPES)]


def _begin_child() -> None:
    for file in list(_open):
        file.close()


os.register_at_fork(after_in_child=_begin_child)
