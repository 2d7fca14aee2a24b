"""Local files, memory-mapped: reads are views of the page cache."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from energon_stream.atomic_files import TEMPORARY_SUFFIX, replacing, write_whole
from energon_stream.errors import (
    AccessDeniedError,
    ObjectChangedError,
    ObjectNotFoundError,
    StorageError,
)
from energon_stream.storage._answers import object_changed, short_body
from energon_stream.storage.mapping import map_file
from energon_stream.storage.store import Body, ByteRange, ListEntry, ObjectMeta
from energon_stream.system_errors import remedy
from energon_stream.urls import local_path

_MOST_MAPS = 1024  # that a process remembers; a map costs no memory, and Linux allows 65,530 of them


class LocalStore:
    """A folder (or a file, as path ``""``) of the local file system.

    Bodies are read-only views of memory maps, which they keep alive. Every read checks the file's identity,
    so a replaced file is never read from an old map. Do not shorten a file in place while views of it live:
    reading them would kill the process.

    Example:
        >>> store = LocalStore("captions/.nv-meta")
        >>> bytes(store.get_range("dataset.yaml", ByteRange(0, 11)).data)
        b'sample_type'
    """

    is_local = True

    def __init__(self, root: str) -> None:
        self.url: str = local_path(root)

    def get(self, path: str, *, etag: str | None = None) -> Body:
        view, version = self._view(path, etag)
        return Body(view, version, len(view))

    def get_range(self, path: str, byte_range: ByteRange, *, etag: str | None = None) -> Body:
        view, version = self._view(path, etag)
        start, stop = byte_range.start, byte_range.stop
        if not 0 <= start <= stop <= len(view):
            raise short_body(byte_range, f"{len(view)} bytes", self._locate(path))
        return Body(view[start:stop], version, len(view))

    def get_suffix(self, path: str, length: int, *, etag: str | None = None) -> Body:
        view, version = self._view(path, etag)
        return Body(view[max(0, len(view) - length) :], version, len(view))

    def head(self, path: str) -> ObjectMeta:
        location = self._locate(path)
        with named_errors(location):
            status = os.stat(location)
        if not os.path.isfile(location):
            raise _not_found(location)
        return _meta(status)

    def list(self, prefix: str = "") -> Iterator[ListEntry]:
        entries = []
        below_root = len(os.path.join(self.url, ""))
        for folder, below, names in os.walk(self._locate(prefix), followlinks=True):
            below[:] = [name for name in below if not _leads_back(Path(folder), name)]
            for name in names:
                if name.endswith(TEMPORARY_SUFFIX):
                    continue
                location = os.path.join(folder, name)
                try:
                    status = os.stat(location)
                except OSError as error:  # a dangling link or one to itself, or the file was just removed
                    if error.errno not in (errno.ENOENT, errno.ELOOP):
                        raise
                    continue
                entries.append(ListEntry(location[below_root:], _meta(status)))
        return iter(sorted(entries, key=lambda entry: entry.path))

    def put(self, path: str, data: bytes) -> None:
        location = self._locate(path)
        with named_errors(location):
            write_whole(location, data)

    def put_file(self, path: str, local_path: str, *, move: bool = False) -> None:
        location = self._locate(path)
        with named_errors(location), replacing(location) as temporary:
            (shutil.move if move else shutil.copyfile)(local_path, temporary)

    def delete(self, path: str) -> None:
        location = self._locate(path)
        with named_errors(location):
            Path(location).unlink(missing_ok=True)

    def close(self) -> None:
        """Forget the maps of this process; live views keep their own."""
        _map_file.cache_clear()

    def _locate(self, path: str) -> str:
        return os.path.join(self.url, path) if path else self.url

    def _view(self, path: str, etag: str | None) -> tuple[memoryview, str]:
        location = self._locate(path)
        with named_errors(location):
            while True:
                version = _etag(os.stat(location))
                if etag not in (None, version):
                    raise object_changed(location)
                try:
                    return _map_file(location, version), version
                except ObjectChangedError:  # replaced between the two lines; look again
                    continue


def _meta(status: os.stat_result) -> ObjectMeta:
    return ObjectMeta(status.st_size, _etag(status), datetime.fromtimestamp(status.st_mtime, tz=UTC))


def _etag(status: os.stat_result) -> str:
    return f'"{status.st_ino:x}-{status.st_size:x}-{status.st_mtime_ns:x}"'


# It has no lock in Python, so a fork cannot leave one locked.
@lru_cache(maxsize=_MOST_MAPS)
def _map_file(location: str, version: str) -> memoryview:
    with open(location, "rb") as file:
        status = os.fstat(file.fileno())
        if _etag(status) != version:
            raise object_changed(location)
        return map_file(file.fileno(), status.st_size)


def _leads_back(folder: Path, name: str) -> bool:
    """Return True for a link to a folder that it lies in: a listing that follows it has no end."""
    link = folder / name
    return link.is_symlink() and any(link.samefile(above) for above in (folder, *folder.parents))


def _not_found(location: str) -> ObjectNotFoundError:
    return ObjectNotFoundError("no such file", where=location, hint="Check the path.")


@contextmanager
def named_errors(location: str) -> Iterator[None]:
    """Turn errors of the file system into errors of this library."""
    try:
        yield
    except StorageError:
        raise
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise _not_found(location) from error
    except PermissionError as error:
        raise AccessDeniedError(
            "the file system refused access", where=location, hint="Check owner and mode of the file."
        ) from error
    except OSError as error:
        what = f"reading or writing failed: {error.strerror}"
        raise StorageError(what, where=location, hint=remedy(error)) from error
