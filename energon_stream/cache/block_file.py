"""One block on disk: a file with data, and then, written later, the records of the ranges that it holds."""

from __future__ import annotations

import errno
import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import xxhash

from energon_stream.cache.ledger import Ledger
from energon_stream.cache.locks import StripedLocks
from energon_stream.cache.object_identity import BlockPlace
from energon_stream.cache.private import PrivateFile
from energon_stream.cache.records import (
    PAGE_BYTES,
    RECORD_BYTES,
    Record,
    RecordTable,
    encode_records,
    page_ceil,
)

MOST_RECORDS = 1 << 14  # of a block, which then takes no more bytes

# Locks are byte ranges far beyond the data. Processes that have the file open or mapped share the first one.
_IN_USE = (1 << 62, (1 << 62) + 1)
_appending = StripedLocks((1 << 62) + 1)

_MAPPED_FROM = 1 << 20  # smaller reads are copied, because each map keeps a file descriptor
_TOUCH_SECONDS = 60.0
_POPULATE_READ = 22  # for madvise(2), Linux 5.14: reads ahead, and reports a failing disk without SIGBUS

_tables: dict[tuple[str, int, int, int], RecordTable] = {}
_MOST_TABLES = 512  # of whole blocks; the table of a block of 32 MiB in records of 128 KiB takes 6 kB


class DamagedError(Exception):
    """The bytes on disk are not the bytes that were written."""


class BlockFile:
    """A block's open file. Its bytes are never overwritten or cut off, so views of them stay valid."""

    def __init__(self, place: BlockPlace, file: PrivateFile) -> None:
        self.place = place
        self._file = file
        self._status = os.fstat(file.fd)
        self._raw = b""
        self._map: mmap.mmap | None = None

    @classmethod
    def open(cls, place: BlockPlace, *, writable: bool = False, alone: bool = False) -> BlockFile | None:
        """Open the file, and mark it as in use; None if it is absent, being removed or, ``alone``, in use."""
        try:
            file = PrivateFile(place.path, os.O_RDWR if writable else os.O_RDONLY)
        except FileNotFoundError:
            return None
        if file.try_lock(*_IN_USE, shared=not alone):
            block = cls(place, file)
            if block._status.st_nlink:
                return block
        file.close()
        return None

    def __enter__(self) -> BlockFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; views of it stay valid."""
        self._map = None  # it would keep the locks
        self._file.close()

    def refresh(self) -> bool:
        """Read the file's status again; return False if the file has been removed."""
        self._status = os.fstat(self._file.fd)
        return self._status.st_nlink > 0

    @property
    def file_id(self) -> int:
        """Number of the file. A file that gets the same name later has another number."""
        return self._status.st_ino

    def table(self, start: int = 0, stop: int | None = None) -> RecordTable:
        """Read the records of the block, or of a part of it."""
        self.refresh()
        return self._decode(start, stop)

    def _decode(self, start: int = 0, stop: int | None = None) -> RecordTable:
        raw, size = self._raw, max(0, self._status.st_size - self.place.data_bytes)
        if size != len(raw):  # records are only added
            raw = self._raw = os.pread(self._file.fd, size, self.place.data_bytes)
        return RecordTable.decode(self.place.key, raw, start, stop)

    def cached_table(self) -> RecordTable:
        """Return the records as of the last :meth:`refresh` or later, from memory if possible."""
        status = self._status
        key = self.place.path, status.st_ino, status.st_size, status.st_mtime_ns
        table = _tables.get(key)
        if table is None:
            table = _tables[key] = self.table()
            for oldest in list(_tables)[:-_MOST_TABLES]:
                _tables.pop(oldest, None)
        return table

    def disk_bytes(self) -> int:
        """Return the bytes counted for the file, or its disk space if a killed writer left more."""
        return max(self.table().disk_bytes(), 512 * os.fstat(self._file.fd).st_blocks)

    def touch(self) -> None:
        """Set the time of last use, unless that happened within the last minute."""
        if time.time() - self._status.st_mtime > _TOUCH_SECONDS:
            with suppress(OSError):  # the cache may be read-only
                os.utime(self._file.fd)

    def read(self, run: list[Record], start: int, stop: int) -> memoryview:
        """Read and verify bytes ``[start, stop)`` of records that follow each other.

        Raises DamagedError if the bytes of a record do not have its hash, and OSError if the disk fails.
        """
        base = run[0][0]
        data = self._view(base, run[-1][1])
        for first, last, digest in run:
            if xxhash.xxh3_64_intdigest(data[first - base : last - base]) != digest:
                raise DamagedError
        return data[start - base : stop - base]

    def is_in_memory(self, start: int, stop: int) -> bool:
        """Return True if the system has the first and the last of some bytes in memory."""
        flag = getattr(os, "RWF_NOWAIT", None)
        if flag is None:
            return False
        byte = [bytearray(1)]
        try:
            return all(os.preadv(self._file.fd, byte, place, flag) == 1 for place in (start, stop - 1))
        except OSError:
            return False

    def _view(self, start: int, stop: int) -> memoryview:
        mapped = self._map
        if mapped is None:
            if stop - start < _MAPPED_FROM:
                return memoryview(os.pread(self._file.fd, stop - start, start))
            try:
                mapped = self._map = mmap.mmap(self._file.fd, self.place.data_bytes, prot=mmap.PROT_READ)
            except ValueError as error:  # the file was cut off
                raise DamagedError from error
        begin = start - start % PAGE_BYTES
        try:
            mapped.madvise(_POPULATE_READ, begin, stop - begin)
        except OSError as error:
            if error.errno != errno.EINVAL:  # an older kernel
                raise
        return memoryview(mapped)[start:stop]

    def try_claim(self, start: int, stop: int) -> bool:
        """Claim the fetch of some bytes; return False if somebody else has."""
        return self._file.try_lock(start, stop)

    def wait_for_claim(self, start: int, stop: int, seconds: float) -> None:
        """Claim the fetch of some bytes, unless the block grows first or the time is over."""
        size = os.fstat(self._file.fd).st_size
        self._file.lock(start, stop, seconds=seconds, unless=lambda: os.fstat(self._file.fd).st_size != size)

    def unclaim(self, start: int, stop: int) -> None:
        """Release the claim on a range."""
        self._file.unlock(start, stop)

    @contextmanager
    def appending(self) -> Iterator[None]:
        """Keep others from writing or removing the file. Raises Busy if another process keeps the lock."""
        with _appending.hold(self._file, self.place.path):
            yield

    def store(self, start: int, data: memoryview, ledger: Ledger) -> int:
        """Write the bytes from ``start`` on that the file does not have yet, and return their number.

        It is 0 if there is no room or the block was removed. Raises Busy if others keep locks, and OSError if
        the disk is full or fails.
        """
        stop = start + len(data)
        records = encode_records(self.place.key, start, data)  # hashed before others have to wait
        with self.appending():
            if not self.refresh():
                return 0
            # Records of the same pages tell how many more pages this write takes.
            table = self._decode(start - start % PAGE_BYTES, page_ceil(stop))
            gaps = table.gaps(start, stop)
            if not gaps:
                return 0
            writes = [(first, data[first - start : last - start]) for first, last in gaps]
            if gaps != [(start, stop)]:
                records = b"".join(encode_records(self.place.key, first, gap) for first, gap in writes)
            count = len(records) // RECORD_BYTES
            if table.num_records + count > MOST_RECORDS:
                return 0
            amount = table.disk_bytes(gaps, count) - table.disk_bytes()
            with ledger.writing() as transaction:
                if not transaction.take(self.place.root_folder, amount):
                    return 0
                writes.append((self.place.data_bytes + table.num_records * RECORD_BYTES, memoryview(records)))
                for offset, part in writes:
                    write_all(self._file.fd, part, offset)
            return sum(last - first for first, last in gaps)


def write_all(fd: int, data: memoryview, offset: int) -> None:
    """Write bytes at a place of a file, in as many calls as the system needs."""
    while data:
        written = os.pwrite(fd, data, offset)
        data, offset = data[written:], offset + written
