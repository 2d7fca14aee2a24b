"""The bytes that a cache takes of the disk, counted in a file that all processes share.

Bytes are counted before they are written and given back after they are gone, so whoever is killed at whatever
moment, no more is on the disk than is counted. What is counted and not yet finished is *pending*: when nobody
writes and something is pending, somebody was killed, and the bytes are counted anew from the files.

To count takes nine system calls under a lock, and after each of them Python's own lock has to be had again. Where several
threads write they therefore count ahead, for those who come next, and give back what nobody took when none writes any more.
"""

from __future__ import annotations

import functools
import os
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from energon_stream.cache.ahead import Ahead
from energon_stream.cache.locks import LockedFile, Turns
from energon_stream.cache.records import PAGE_BYTES

__all__ = [
    "COUNT_FILE",
    "OBJECT_BYTES",
    "PATIENCE",
    "ROOT_BYTES",
    "Books",
    "Busy",
    "Ledger",
    "Limits",
    "Usage",
]

ROOT_BYTES = 4 * PAGE_BYTES
"""What a dataset's folder takes: the folder, two small files, its entry in the folder above."""

OBJECT_BYTES = 2 * PAGE_BYTES
"""What an object's folder takes, with the file in it that describes it."""

_FIXED_BYTES = 8 * PAGE_BYTES  # the cache's own folders and this file
_MAGIC = b"ESCACHE1"
_FIELDS = struct.Struct("<8sqq16s")
_COUNT = struct.Struct("<q")
COUNT_FILE = "bytes"
"""File in a dataset's folder that says how many bytes are counted for it."""

_AHEAD_BYTES = 64 << 20
_AHEAD_SHARE = 64
"""Counted ahead is at most a 64th of the room there is: others find it taken."""

_books = Turns(0, 1)  # bytes of the file that are locked
_WRITING, _EVICTING = (1, 2), (2, 3)
_names = Turns(3, 4, apart=1)
PATIENCE = 5.0
"""Seconds to wait for what others do in micro- or milliseconds; whoever takes longer was stopped, or the disk is."""


class Busy(Exception):
    """Another process keeps a lock for much longer than it should."""


class Usage(NamedTuple):
    """What the ledger says.

    Attributes:
        bytes: Counted bytes, an upper bound of those on disk.
        pending: Those of them that somebody is about to write, or to remove.
    """

    bytes: int
    pending: int


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may be taken.

    Attributes:
        quota: Bytes of the whole cache; None for no limit.
        floor: Bytes of the disk to leave free.
        shares: Bytes of some datasets, by the names of their folders.
    """

    quota: int | None = None
    floor: int = 0
    shares: Mapping[str, int] = field(default_factory=dict)


class Ledger:
    """The ledger of a cache. Its file stays open from the first change on: many are made, a few a request.

    Safe to call from several threads; not to be used across a fork.

    Args:
        path: Its file.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._file: LockedFile | None = None
        self._counting = threading.Lock()
        self._writers = 0  # threads of this process; they share the lock that says so
        self._written: deque[int] = deque()
        self._ahead = Ahead()

    def usage(self) -> Usage | None:
        """What is counted; None where nobody has counted since the machine started."""
        file = self._file
        if file is not None and _is_there(file):
            return _read(file)
        try:
            with LockedFile(self._path, os.O_RDONLY) as file:
                return _read(file)
        except FileNotFoundError:
            return None

    @contextmanager
    def writing(self) -> Iterator[Books]:
        """Hold off recounts while something changes.

        Raises:
            Busy: A recount takes long.
        """
        books = Books(self._begin(), self._written, self._ahead, self._has_several)
        try:
            yield books
        finally:
            self._end(books)

    def _begin(self) -> LockedFile:
        file = self._join()
        if file is not None:
            return file
        if not self._lock.acquire(timeout=PATIENCE):  # another thread waits for the file's lock
            raise Busy
        try:
            file = self._join()
            if file is None:
                file = self._open()
                if not file.lock(*_WRITING, seconds=PATIENCE, shared=True):
                    raise Busy
                self._file = file
                self._count(1)
            return file
        finally:
            self._lock.release()

    def _join(self) -> LockedFile | None:
        """The file, where other threads hold its lock already."""
        with self._counting:
            if not self._writers:
                return None
            self._writers += 1
            return self._file

    def _open(self) -> LockedFile:
        file = self._file
        if file is None or not _is_there(file):
            self._file = None  # closed when nobody reads it
            file = LockedFile(self._path, os.O_RDWR)
        return file

    def _count(self, more: int) -> int:
        with self._counting:
            self._writers += more
            return self._writers

    def _has_several(self) -> bool:
        return self._writers > 1

    def _end(self, books: Books) -> None:
        with self._counting:
            if self._writers > 1:
                self._writers -= 1
                return
        with self._lock:
            if not self._count(-1):
                try:
                    books.settle()
                finally:
                    books.file.unlock(*_WRITING)

    def close(self) -> None:
        """Close the file, unless somebody writes. It is opened again when it is needed."""
        with self._lock:
            if not self._writers:
                self._file = None

    @contextmanager
    def evicting(self) -> Iterator[bool]:
        """Be the one who makes room; gives False where another one is."""
        with LockedFile(self._path, os.O_RDWR) as file:
            yield file.try_lock(*_EVICTING)

    def recount(
        self, measure: Callable[[], Mapping[str, int]], *, seconds: float = 0.0, always: bool = False
    ) -> bool:
        """Count anew if somebody was killed; nobody writes meanwhile.

        Args:
            measure: Gives the bytes of each dataset's folder, by its path.
            seconds: How long to wait for those who write.
            always: Count anyway.

        Returns:
            Whether the count is right now; False while others write.
        """
        with LockedFile(self._path, os.O_RDWR | os.O_CREAT) as file:
            if not file.lock(*_WRITING, seconds=seconds):
                return False
            usage = _read(file)
            if always or usage is None or usage.pending:
                counts = measure()
                for folder, count in counts.items():
                    _write_count(folder, count)
                _write(file, Usage(_FIXED_BYTES + sum(counts.values()), 0))
            return True


class Books:
    """The ledger, opened to change it.

    Args:
        file: Its file.
        written: Bytes that this process has counted and written since the file was told so.
        ahead: Bytes that it has counted for whoever writes next.
        has_others: Tells whether another of its threads writes, too.
    """

    def __init__(
        self, file: LockedFile, written: deque[int], ahead: Ahead, has_others: Callable[[], bool]
    ) -> None:
        self.file = file
        self._written = written
        self._ahead = ahead
        self._has_others = has_others

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Exclude others for a moment. Datasets' folders appear and vanish only under this lock.

        Raises:
            Busy: Another process keeps the lock.
        """
        with _books.hold(self.file, "", PATIENCE) as is_held:
            if not is_held:
                raise Busy
            yield

    @contextmanager
    def naming(self, folder: str) -> Iterator[None]:
        """Exclude others from an object's folder: names appear and vanish in it, and it itself, only under this lock, which is
        taken before :meth:`locked`. (To make a file may take a file system a quarter of a second.)

        Raises:
            Busy: Another process keeps the lock.
        """
        with _names.hold(self.file, os.path.basename(folder), PATIENCE) as is_held:
            if not is_held:
                raise Busy
            yield

    def take(self, root_folder: str, amount: int, limits: Limits) -> bool:
        """Count bytes that are about to be written; False where the limits forbid it.

        Raises:
            Busy: Another process keeps the lock.
        """
        if self._ahead.take(root_folder, amount):
            return True
        with self.locked():
            return self.take_locked(root_folder, amount, limits)

    def take_locked(self, root_folder: str, amount: int, limits: Limits) -> bool:
        """The same, for who has the lock."""
        if self._ahead.take(root_folder, amount):  # another thread has counted meanwhile
            return True
        if not _is_there(self.file):  # removed, and maybe made anew
            raise Busy
        usage = self._usage()
        disk = os.fstatvfs(self.file.fd)
        room = disk.f_bavail * disk.f_frsize - limits.floor
        if limits.quota is not None:
            room = min(room, limits.quota - usage.bytes)
        share = limits.shares.get(os.path.basename(root_folder))
        if share is not None:
            room = min(room, share - root_bytes(root_folder))
        if room < amount:
            return False
        ahead = min(_AHEAD_BYTES, (room - amount) // _AHEAD_SHARE) if self._has_others() else 0
        counted = amount + ahead
        self._write(Usage(usage.bytes + counted, usage.pending + counted))
        _add(root_folder, counted)
        self._ahead.add(root_folder, ahead)
        return True

    def is_written(self, amount: int) -> None:
        """What was counted is written. The file hears of it with the next change, or when nobody writes any more: until
        then it only says that somebody writes."""
        self._written.append(amount)

    def settle(self) -> None:
        """Tell the file what was written, and what was counted ahead for nobody.

        Raises:
            Busy: Another process keeps the lock.
        """
        ahead = {folder: amount for folder, amount in self._ahead.take_all().items() if amount}
        if not self._written and not ahead:
            return
        with self.locked():
            usage, amount = self._usage(), sum(ahead.values())
            for folder, its in ahead.items():  # first, while something is pending
                with suppress(FileNotFoundError):  # it was removed, and counts no more
                    _add(folder, -its, make=False)
            self._write(Usage(usage.bytes - amount, usage.pending - amount))

    @contextmanager
    def giving_back(self, root_folder: str | None, amount: int) -> Iterator[None]:
        """Around the removal of files that were counted as ``amount`` bytes. Needs the lock.

        Args:
            root_folder: Dataset that they belong to; None where its folder itself goes.
            amount: The bytes.
        """
        usage = self._usage()
        self._write(Usage(usage.bytes, usage.pending + amount))
        yield
        usage = self._usage()
        self._write(Usage(usage.bytes - amount, usage.pending - amount))
        if root_folder is not None:
            _add(root_folder, -amount)

    def _usage(self) -> Usage:
        usage = _read(self.file)
        if usage is None:  # nobody has counted yet
            raise Busy
        return usage

    def _write(self, usage: Usage) -> None:
        written = sum(self._written.popleft() for _ in range(len(self._written)))
        _write(self.file, Usage(usage.bytes, usage.pending - written))


def root_bytes(root_folder: str) -> int:
    """Bytes counted for one dataset."""
    try:
        raw = Path(root_folder, COUNT_FILE).read_bytes()
    except FileNotFoundError:
        return 0
    return _count_in(raw)


def _count_in(raw: bytes) -> int:
    return int(_COUNT.unpack(raw)[0]) if len(raw) == _COUNT.size else 0


def _add(root_folder: str, amount: int, *, make: bool = True) -> None:
    with _open_count(root_folder, make=make) as file:
        count = _count_in(os.pread(file.fd, _COUNT.size, 0))
        os.pwrite(file.fd, _COUNT.pack(count + amount), 0)


def _write_count(root_folder: str, count: int) -> None:
    with _open_count(
        root_folder
    ) as file:  # without cutting it off first, which file systems answer with a flush
        os.pwrite(file.fd, _COUNT.pack(count), 0)


def _open_count(root_folder: str, *, make: bool = True) -> LockedFile:
    path, flags = os.path.join(root_folder, COUNT_FILE), os.O_RDWR | (os.O_CREAT if make else 0)
    try:
        return LockedFile(path, flags)
    except FileNotFoundError:
        if not make:
            raise
        os.makedirs(root_folder, exist_ok=True)
        return LockedFile(path, flags)


def _is_there(file: LockedFile) -> bool:
    return os.fstat(file.fd).st_nlink > 0


def _read(file: LockedFile) -> Usage | None:
    raw = os.pread(file.fd, _FIELDS.size, 0)
    if len(raw) < _FIELDS.size:
        return None
    magic, count, pending, boot = _FIELDS.unpack(raw)
    return Usage(count, pending) if (magic, boot) == (_MAGIC, _boot_id()) else None


def _write(file: LockedFile, usage: Usage) -> None:
    os.pwrite(file.fd, _FIELDS.pack(_MAGIC, *usage, _boot_id()), 0)


@functools.cache
def _boot_id() -> bytes:
    """Differs after a crash of the machine, when files may not have what was written to them."""
    text = Path("/proc/sys/kernel/random/boot_id").read_text()
    return bytes.fromhex(text.strip().replace("-", ""))
