"""Queries SQLite databases in object storage without downloading them.

SQLite reads the file through a virtual file system, which fetches lines of it when SQLite touches them. Lines
stay in an unnamed temporary file of the process, so each is fetched once. If the database is larger than this
file may grow, the lines that came first stay: with random lookups, no other choice hits more often.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import threading
import weakref
from concurrent.futures import Future
from typing import Any

import apsw

from energon_stream.index.guarded_sqlite import IndexConnection
from energon_stream.storage import ByteRange, Store

# Bytes of one request. Lookups soon need neighbouring pages: at 50 ms per request, the first 200 lookups in
# an index of 214 MB took 17 s, with 64 KiB 42 s. If most of the file cannot be kept, they are not reused.
_LINE_BYTES, _SHORT_LINE_BYTES = 1 << 20, 64 << 10
_KEEP_BYTES = 4 << 30
_numbers = itertools.count()


class RemoteFile:
    """A file in a store, read in lines that are kept and of one version. Threads of a process may share it.

    ``line`` and ``first`` are the bytes of one request, and of the first, at the end of the file. ``keep`` is
    the number of bytes to keep on disk. Raises ObjectNotFoundError if the file does not exist.
    """

    def __init__(
        self,
        store: Store,
        path: str,
        *,
        line: int | None = None,
        first: int = _LINE_BYTES,
        keep: int = _KEEP_BYTES,
    ) -> None:
        self._store, self._path, self._keep = store, path, keep
        self._lock = threading.Lock()
        self._file = tempfile.TemporaryFile(prefix="energon-index-")  # noqa: SIM115
        weakref.finalize(self, self._file.close)  # at the end of the process, too
        # One request returns the size, the version, and all of a small file.
        tail = store.get_suffix(path, first)
        self.size: int = store.head(path).size if tail.total_size is None else tail.total_size
        self._line = line or (_LINE_BYTES if self.size <= keep else _SHORT_LINE_BYTES)
        self._etag = tail.etag
        start = self.size - len(tail.data)
        os.pwrite(self._file.fileno(), tail.data, start)
        present: Future[bytes | None] = Future()
        present.set_result(None)
        self._lines = dict.fromkeys(range(-(-start // self._line), -(-self.size // self._line)), present)

    def read(self, offset: int, amount: int) -> bytes:
        """Return bytes from ``offset``, fewer at the end of the file."""
        stop = min(offset + amount, self.size)
        pieces = []
        for number in range(offset // self._line, -(-stop // self._line)):
            first = number * self._line
            start, end = max(offset, first), min(stop, first + self._line)
            data = self._load(number)
            if data is None:
                pieces.append(os.pread(self._file.fileno(), end - start, start))
            else:
                pieces.append(data[start - first : end - first])
        return b"".join(pieces)

    def _load(self, number: int) -> bytes | None:
        """Fetch a line into the temporary file. Return the line only if it cannot be kept."""
        with self._lock:
            future = self._lines.get(number)
            if future is None:
                mine: Future[bytes | None] = Future()
                keep = (len(self._lines) + 1) * self._line <= self._keep
                if keep:
                    self._lines[number] = mine
        if future is not None:  # the line is present, or another thread fetches it
            return future.result()
        first = number * self._line
        part = ByteRange(first, min(first + self._line, self.size))
        try:
            data = self._store.get_range(self._path, part, etag=self._etag).data
            if keep:
                os.pwrite(self._file.fileno(), data, first)
        except BaseException as error:
            with self._lock:  # the next read tries again
                self._lines.pop(number, None)
            mine.set_exception(error)
            raise
        mine.set_result(None)
        return None if keep else bytes(data)


class _OpenFile:
    """A read-only file, as SQLite uses it."""

    def __init__(self, file: RemoteFile) -> None:
        self._file = file

    def xRead(self, amount: int, offset: int) -> bytes:
        return self._file.read(offset, amount)

    def xFileSize(self) -> int:
        return self._file.size

    def xClose(self) -> None: ...

    def xLock(self, level: int) -> None: ...

    def xUnlock(self, level: int) -> None: ...

    def xCheckReservedLock(self) -> bool:
        return False

    def xFileControl(self, op: int, ptr: int) -> bool:
        return False

    def xSectorSize(self) -> int:
        return 4096

    def xDeviceCharacteristics(self) -> int:
        return apsw.SQLITE_IOCAP_IMMUTABLE


class RemoteDatabase(apsw.VFS):
    """A database in a store."""

    def __init__(self, file: RemoteFile) -> None:
        self._name = f"energon-{os.getpid()}-{next(_numbers)}"
        self._file = file
        super().__init__(self._name, "")

    def connect(self, where: str) -> IndexConnection:
        """Return a new connection, for one thread."""
        return IndexConnection(f"file:index?immutable=1&vfs={self._name}", self._file.size, where)

    def xOpen(self, name: Any, flags: list[int]) -> Any:
        """Open the database; SQLite opens no journals of an immutable one."""
        return _OpenFile(self._file)

    def xAccess(self, pathname: str, flags: int) -> bool:
        """Report that no other file exists."""
        return False

    def xFullPathname(self, name: str) -> str:
        """Return the name, which has no meaning here."""
        return name
