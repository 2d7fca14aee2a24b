"""The ledger of a cache: a file, shared by all processes, that counts the bytes on disk.

Bytes are counted before they are written, and subtracted after they are removed. So there is never more on
the disk than the ledger counts, whichever process is killed when.

Bytes that somebody counted, or began to remove, are *pending* until the last thread of that process has ended
its :meth:`Ledger.writing`. If nothing writes and bytes are pending, a process was killed, and the files are
measured anew.
"""

from __future__ import annotations

import functools
import os
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import xxhash

from energon_stream.cache.locks import Busy, StripedLocks, patience
from energon_stream.cache.private import PrivateFile, make_folder, read_private
from energon_stream.cache.records import PAGE_BYTES

COUNT_FILE = "bytes"  # in a dataset's folder: the number of bytes counted for the dataset
ROOT_BYTES = 4 * PAGE_BYTES  # of a dataset's folder: itself, two small files, its entry in the parent
OBJECT_BYTES = 2 * PAGE_BYTES  # of an object's folder and of the file in it that describes the object
_FIXED_BYTES = 8 * PAGE_BYTES  # the cache's own folders and the ledger
_MAGIC = b"ESCACHE1"
_CHECK_BYTES = 16
_FIELDS = struct.Struct(f"<8sqq{_CHECK_BYTES}s")
_MOST_BYTES = 1 << 60  # more than this is damage
_COUNT = struct.Struct("<q")

_MOST_RESERVED = 64 << 20
_RESERVED_SHARE = 64  # at most a 64th of the free room, because other processes find that room taken

# Byte ranges of the file, which need not exist, are the locks.
_changing = StripedLocks(0)
_WRITING, _EVICTING = (1, 2), (2, 3)
_objects = StripedLocks(3, apart=1)


class Usage(NamedTuple):
    """Counted bytes, an upper bound of those on disk, and the pending ones among them."""

    bytes: int
    pending: int


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """Upper bounds on what a cache may take."""

    quota: int | None = None  # bytes of the whole cache; None for no limit
    floor: int = 0  # bytes of the disk to leave free
    shares: Mapping[str, int] = field(default_factory=dict)  # bytes of some datasets, by name of their folder

    def room(self, disk: str | int, counted: int) -> int:
        """Return the bytes that may still come to a disk (path or open file); negative if too many came."""
        room = free_bytes(disk) - self.floor
        return room if self.quota is None else min(room, self.quota - counted)

    def room_of(self, root_folder: str) -> int | None:
        """Return the bytes that may still come to one dataset; None if it has no share."""
        share = self.shares.get(os.path.basename(root_folder))
        return None if share is None else share - root_bytes(root_folder)


class Ledger:
    """The ledger of a cache. Its file stays open after the first change, because changes are frequent.

    Thread-safe; not to be used across a fork.
    """

    def __init__(self, path: str, limits: CacheLimits) -> None:
        self.limits = limits
        self._path = path
        self._file: PrivateFile | None = None
        self._lock = threading.Lock()
        self._transaction: LedgerTransaction | None = None

    def usage(self) -> Usage | None:
        """Return the content; None if the files were not measured since the machine started."""
        file = self._file
        if file is not None and _exists(file):
            return _read(file)
        try:
            with PrivateFile(self._path, os.O_RDONLY) as file:
                return _read(file)
        except FileNotFoundError:
            return None

    @contextmanager
    def writing(self) -> Iterator[LedgerTransaction]:
        """Begin a transaction, or join the one of this process's other threads. Recounts wait for its end.

        If the block raises, all that the transaction has taken stays pending, so that a recount finds out how
        much of it is on disk. Raises Busy if a recount takes long.
        """
        transaction = self._begin()
        try:
            yield transaction
        except BaseException:
            transaction.leave_pending()
            raise
        finally:
            self._end(transaction)

    def _begin(self) -> LedgerTransaction:
        if not self._lock.acquire(timeout=patience()):  # another thread waits for the file's lock
            raise Busy
        try:
            if self._transaction is None:
                file = self._file
                if file is None or not _exists(file):  # removed, and perhaps made anew
                    file = PrivateFile(self._path, os.O_RDWR)
                if not file.lock(*_WRITING, seconds=patience(), shared=True):
                    raise Busy
                self._file = file  # the old one closes when nobody reads it any more
                self._transaction = LedgerTransaction(file, self.limits)
            self._transaction.num_writers += 1
            return self._transaction
        finally:
            self._lock.release()

    def _end(self, transaction: LedgerTransaction) -> None:
        with self._lock:
            transaction.num_writers -= 1
            if not transaction.num_writers:
                self._transaction = None
                try:
                    transaction.settle()
                finally:
                    transaction.file.unlock(*_WRITING)

    def close(self) -> None:
        """Close the file unless a thread writes. The next change opens it again."""
        with self._lock:
            if self._transaction is None:
                self._file = None

    @contextmanager
    def evicting(self) -> Iterator[bool]:
        """Lock out all other processes that would make room; yield False if one is making room."""
        with PrivateFile(self._path, os.O_RDWR) as file:
            yield file.try_lock(*_EVICTING)

    def recount(
        self, measure: Callable[[], Mapping[str, int]], *, seconds: float = 0.0, always: bool = False
    ) -> bool:
        """Measure the files if a process was killed, or ``always``. All writers wait meanwhile.

        ``measure`` returns the bytes of each dataset's folder, by path. Returns True if the count is right
        now, False if others kept writing for ``seconds``.
        """
        with PrivateFile(self._path, os.O_RDWR | os.O_CREAT) as file:
            if not file.lock(*_WRITING, seconds=seconds):
                return False
            usage = _read(file)
            if always or usage is None or usage.pending:
                counts = measure()
                for folder, count in counts.items():
                    with _open_count(folder) as count_file:
                        # Without truncating it first, which file systems answer with a flush.
                        os.pwrite(count_file.fd, _COUNT.pack(count), 0)
                _write(file, Usage(_FIXED_BYTES + sum(counts.values()), 0))
            return True


class LedgerTransaction:
    """Changes to the ledger by the threads of this process that write at the same time. Thread-safe.

    Counting takes nine system calls under a lock, and after each of them the thread must get the GIL back. So
    while several threads write, the first one counts more than it needs, and the others use up these reserved
    bytes without touching the file. The last thread to end subtracts what is left. Methods raise Busy if
    another process keeps a lock.
    """

    def __init__(self, file: PrivateFile, limits: CacheLimits) -> None:
        self.file = file
        self.num_writers = 0
        self._limits = limits
        self._lock = threading.Lock()
        self._taken = 0
        self._reserved = Counter[str]()  # by dataset

    def locked(self) -> AbstractContextManager[None]:
        """Exclude others for a moment. Folders of datasets appear and vanish only under this lock."""
        return _changing.hold(self.file, "")

    def object_lock(self, folder: str) -> AbstractContextManager[None]:
        """Exclude others from an object's folder. It and its files appear and vanish only under this lock.

        Take it before :meth:`locked`, and never inside: making a file can take a quarter of a second.
        """
        return _objects.hold(self.file, os.path.basename(folder))

    def take(self, root_folder: str, amount: int) -> bool:
        """Count bytes that are about to be written; return False if the limits forbid it."""
        if self._take_reserved(root_folder, amount):
            return True
        with self.locked():
            return self.take_locked(root_folder, amount)

    def take_locked(self, root_folder: str, amount: int) -> bool:
        """Count bytes as :meth:`take` does, inside :meth:`locked`."""
        if self._take_reserved(root_folder, amount):  # another thread has counted meanwhile
            return True
        if not _exists(self.file):  # removed, and perhaps made anew
            raise Busy
        usage = self._usage()
        room, room_of_root = self._limits.room(self.file.fd, usage.bytes), self._limits.room_of(root_folder)
        if room_of_root is not None:
            room = min(room, room_of_root)
        if room < amount:
            return False
        reserved = min(_MOST_RESERVED, (room - amount) // _RESERVED_SHARE) if self.num_writers > 1 else 0
        counted = amount + reserved
        _write(self.file, Usage(usage.bytes + counted, usage.pending + counted))
        _add(root_folder, counted)
        with self._lock:
            self._taken += amount
            self._reserved[root_folder] += reserved
        return True

    def _take_reserved(self, root_folder: str, amount: int) -> bool:
        with self._lock:
            enough = self._reserved[root_folder] >= amount
            if enough:
                self._reserved[root_folder] -= amount
                self._taken += amount
            return enough

    def leave_pending(self) -> None:
        """Leave the bytes pending that were taken: some of them may not have been written."""
        with self._lock:
            self._taken = 0

    def settle(self) -> None:
        """Subtract what was reserved and not used. What was taken is on disk, and no longer pending."""
        unused = self._reserved.total()
        if not (unused or self._taken):
            return
        with self.locked():
            usage = self._usage()
            for folder, amount in self._reserved.items():
                if amount and os.path.isdir(folder):  # it may have been removed, and its count with it
                    _add(folder, -amount)  # first, while bytes are pending: a recount would correct it
            _write(self.file, Usage(usage.bytes - unused, usage.pending - unused - self._taken))

    @contextmanager
    def giving_back(self, root_folder: str | None, amount: int) -> Iterator[None]:
        """Subtract the bytes of files that the block removes, inside :meth:`locked`; None: of the folder."""
        usage = self._usage()
        _write(self.file, Usage(usage.bytes, usage.pending + amount))
        yield
        _write(self.file, Usage(usage.bytes - amount, usage.pending))
        if root_folder is not None:
            _add(root_folder, -amount)

    def _usage(self) -> Usage:
        usage = _read(self.file)
        if usage is None:  # the files were not measured yet
            raise Busy
        return usage


def free_bytes(disk: str | int) -> int:
    """Return the free bytes of the disk of a path or open file."""
    status = os.statvfs(disk)
    return status.f_bavail * status.f_frsize


def root_bytes(root_folder: str) -> int:
    """Return the bytes counted for one dataset."""
    try:
        return _parse_count(read_private(os.path.join(root_folder, COUNT_FILE)))
    except FileNotFoundError:
        return 0


def _parse_count(raw: bytes) -> int:
    count: int = _COUNT.unpack(raw)[0] if len(raw) == _COUNT.size else 0
    return count if 0 <= count < _MOST_BYTES else 0


def _add(root_folder: str, amount: int) -> None:
    with _open_count(root_folder) as file:
        count = _parse_count(os.pread(file.fd, _COUNT.size, 0))
        os.pwrite(file.fd, _COUNT.pack(count + amount), 0)


def _open_count(root_folder: str) -> PrivateFile:
    path = os.path.join(root_folder, COUNT_FILE)
    try:
        return PrivateFile(path, os.O_RDWR | os.O_CREAT)
    except FileNotFoundError:  # the dataset is new
        make_folder(os.path.dirname(root_folder))
        make_folder(root_folder)
        return PrivateFile(path, os.O_RDWR | os.O_CREAT)


def _exists(file: PrivateFile) -> bool:
    return os.fstat(file.fd).st_nlink > 0


def _read(file: PrivateFile) -> Usage | None:
    raw = os.pread(file.fd, _FIELDS.size, 0)
    if len(raw) < _FIELDS.size:
        return None
    usage = Usage(*_FIELDS.unpack(raw)[1:3])
    return usage if raw == _encode(usage) else None


def _write(file: PrivateFile, usage: Usage) -> None:
    os.pwrite(file.fd, _encode(usage), 0)


def _encode(usage: Usage) -> bytes:
    """Encode the content, with a check of the numbers and of this boot: a crash may lose what was written."""
    numbers = _FIELDS.pack(_MAGIC, *usage, b"")[:-_CHECK_BYTES]
    return numbers + xxhash.xxh3_128_digest(_boot_id() + numbers)


@functools.cache
def _boot_id() -> bytes:
    return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
