"""One block on disk: data at their places, and after them the records of what is there.

Data are written before the records that tell of them, and a record tells the hash of its data, so whatever a
killed writer left behind is not read.
"""

from __future__ import annotations

import errno
import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

import xxhash

from energon_stream.cache.identity import BlockPlace
from energon_stream.cache.ledger import PATIENCE, Busy, Ledger, Limits
from energon_stream.cache.locks import LockedFile, Turns
from energon_stream.cache.records import (
    PAGE_BYTES,
    RECORD_BYTES,
    Piece,
    PieceTable,
    encode_pieces,
    page_ceil,
)

__all__ = ["BlockFile", "DamagedError"]

_IN_USE = (1 << 62, (1 << 62) + 1)
"""Locked by all who have the file open or mapped, and by who removes it to make room."""
_appending = Turns((1 << 62) + 1, (1 << 62) + 2)
_MOST_RECORDS = 1 << 14
_MAPPED_FROM = 1 << 20
"""Reads of more bytes get a map of the file; fewer are copied, which takes no file descriptor for the time of use."""
_TOUCH_SECONDS = 60.0
_POPULATE_READ = (
    22  # madvise(2), Linux 5.14: reads ahead, and says when the disk fails instead of raising SIGBUS
)


_tables: dict[tuple[str, int, int, int], PieceTable] = {}
_MOST_TABLES = 512
"""Tables of whole blocks that are kept; one of 32 MiB in pieces of 128 KiB takes 6 kB."""


class DamagedError(Exception):
    """Bytes are not those that were written.

    Args:
        file_id: Which file they are in.
    """

    def __init__(self, file_id: int) -> None:
        super().__init__(file_id)
        self.file_id = file_id


class BlockFile:
    """A block's file, open. Its bytes are never overwritten nor cut off: views of them stay valid.

    Args:
        place: The block.
        file: Its file, as a rule marked as in use.
    """

    def __init__(self, place: BlockPlace, file: LockedFile) -> None:
        self.place = place
        self._file = file
        self._seen = os.fstat(file.fd)
        self._raw = b""
        self._map: mmap.mmap | None = None

    @classmethod
    def open(cls, place: BlockPlace, *, writable: bool = False) -> BlockFile | None:
        """Open the file; None if it is not there, or just being removed."""
        try:
            file = LockedFile(place.path, os.O_RDWR if writable else os.O_RDONLY)
        except FileNotFoundError:
            return None
        if file.try_lock(*_IN_USE, shared=True):
            block = cls(place, file)
            if block._seen.st_nlink:
                return block
        file.close()
        return None

    @classmethod
    def look_at(cls, place: BlockPlace) -> BlockFile:
        """Open the file whoever is about to remove it, while nobody may."""
        return cls(place, LockedFile(place.path, os.O_RDONLY))

    @classmethod
    def open_unused(cls, place: BlockPlace) -> BlockFile | None:
        """Open the file to remove it; None if it is not there, or somebody has it open."""
        try:
            file = LockedFile(place.path, os.O_RDWR)
        except FileNotFoundError:
            return None
        if file.try_lock(*_IN_USE):
            return cls(place, file)
        file.close()
        return None

    def __enter__(self) -> BlockFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; views of it stay valid."""
        self._map = None  # it would keep the locks
        self._file.close()

    def look_again(self) -> bool:
        """Note what the file is now; False if it was removed since it was opened."""
        seen = self._seen = os.fstat(self._file.fd)
        return seen.st_nlink > 0

    @property
    def file_id(self) -> int:
        """Differs from that of a file that has the same name later."""
        return self._seen.st_ino

    @property
    def file_bytes(self) -> int:
        """Length of the file, which grows with what is there."""
        return os.fstat(self._file.fd).st_size

    def table(self, start: int = 0, stop: int | None = None) -> PieceTable:
        """What the file holds now, of all the block or of a part."""
        self.look_again()
        return self._decode(start, stop)

    def _decode(self, start: int = 0, stop: int | None = None) -> PieceTable:
        raw, size = self._raw, max(0, self._seen.st_size - self.place.data_bytes)
        if size != len(raw):  # records are only added
            raw = self._raw = os.pread(self._file.fd, size, self.place.data_bytes)
        return PieceTable.decode(self.place.key, raw, start, stop)

    def table_as_seen(self) -> PieceTable:
        """What the file held when it was looked at, or a little later. Not read again while the file stays as it is."""
        seen = self._seen
        key = self.place.path, seen.st_ino, seen.st_size, seen.st_mtime_ns
        table = _tables.get(key)
        if table is None:
            table = _tables[key] = self.table()
            for oldest in list(_tables)[:-_MOST_TABLES]:
                _tables.pop(oldest, None)
        return table

    def disk_bytes(self) -> int:
        """What the file was counted as, or what it takes of the disk if a killed writer left more."""
        return max(self.table().disk_bytes(), 512 * os.fstat(self._file.fd).st_blocks)

    def touch(self) -> None:
        """Note that the block is used; now and then, the order of minutes is enough."""
        if time.time() - self._seen.st_mtime > _TOUCH_SECONDS:
            try:
                os.utime(self._file.fd)
            except OSError as error:
                if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
                    raise

    def read(self, run: list[Piece], start: int, stop: int) -> memoryview:
        """Bytes of pieces that follow each other, verified.

        Args:
            run: The pieces.
            start: First byte that is wanted.
            stop: One past the last; both within the pieces.

        Raises:
            DamagedError: A piece is not what its record says.
            OSError: The disk fails.
        """
        base = run[0][0]
        data = self._view(base, run[-1][1])
        for first, last, digest in run:
            if xxhash.xxh3_64_intdigest(data[first - base : last - base]) != digest:
                raise DamagedError(self.file_id)
        return data[start - base : stop - base]

    def is_in_memory(self, start: int, stop: int) -> bool:
        """Whether the system has the first and the last of some bytes in memory; False also if it cannot tell."""
        byte = [bytearray(1)]
        try:
            return all(
                os.preadv(self._file.fd, byte, place, os.RWF_NOWAIT) == 1 for place in (start, stop - 1)
            )
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
                raise DamagedError(self.file_id) from error
        begin = start - start % PAGE_BYTES
        try:
            mapped.madvise(_POPULATE_READ, begin, stop - begin)
        except OSError as error:
            if error.errno != errno.EINVAL:  # an older kernel
                raise
        return memoryview(mapped)[start:stop]

    def try_claim(self, start: int, stop: int) -> bool:
        """Become the one who fetches some bytes; False while another one is."""
        return self._file.try_lock(start, stop)

    def unclaim(self, start: int, stop: int) -> None:
        """Let others fetch them, or find them."""
        self._file.unlock(start, stop)

    @contextmanager
    def appending(self) -> Iterator[None]:
        """Keep others from writing the file, or from removing it.

        Raises:
            Busy: Another process keeps the lock.
        """
        with _appending.hold(self._file, self.place.path, PATIENCE) as is_held:
            if not is_held:
                raise Busy
            yield

    def store(self, start: int, data: memoryview, ledger: Ledger, limits: Limits) -> int:
        """Write what of some bytes is not there.

        Args:
            start: Where in the block they begin.
            data: The bytes.
            ledger: Where to count them.
            limits: How much there may be.

        Returns:
            Bytes written: none where there is no room, or the block was removed.

        Raises:
            Busy: Others keep locks.
            OSError: The disk is full or fails.
        """
        stop = start + len(data)
        all_records = encode_pieces(self.place.key, start, data)  # hashed before others have to wait
        with self.appending():
            if not self.look_again():
                return 0
            table = self._decode(start - start % PAGE_BYTES, page_ceil(stop))  # what it may share pages with
            gaps = table.gaps(start, stop)
            if not gaps:
                return 0
            pieces = [(first, data[first - start : last - start]) for first, last in gaps]
            records = all_records
            if gaps != [(start, stop)]:
                records = b"".join(encode_pieces(self.place.key, first, piece) for first, piece in pieces)
            count = len(records) // RECORD_BYTES
            if table.num_records + count > _MOST_RECORDS:
                return 0
            amount = table.disk_bytes(gaps, count) - table.disk_bytes()
            with ledger.writing() as books:
                if not books.take(self.place.root_folder, amount, limits):
                    return 0
                pieces.append((self.place.data_bytes + table.num_records * RECORD_BYTES, memoryview(records)))
                for offset, piece in pieces:
                    _write_all(self._file.fd, piece, offset)
                books.is_written(amount)
            return sum(last - first for first, last in gaps)


def _write_all(fd: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(fd, data, offset)
        data, offset = data[written:], offset + written
