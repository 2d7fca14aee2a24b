"""Files that a node keeps beside the blocks, to save work; see ``docs/concepts/cache.md``.

The first 16 bytes of a file are a mark of the format, and an XXH3 hash of the name and the content: a file
that is damaged, incomplete or renamed does not count.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, get_args

import xxhash

from energon_stream.cache.locks import has_locks, patience
from energon_stream.cache.object_identity import hash_texts
from energon_stream.cache.private import (
    PrivateFile,
    make_cache_folder,
    make_folder,
    make_layout_folder,
    open_private,
    replace_private,
)
from energon_stream.fork import PerProcess
from energon_stream.logs import log_once

_log = logging.getLogger(__name__)

KeptKind: TypeAlias = Literal["indexes", "openings", "versions", "views"]

_MARK = b"ES.kept1"
_HEADER_BYTES = 16
_LOCK_FILE = "lock"
_IN_USE = (1 << 33, (1 << 33) + 1)  # a byte of the lock file; those below stand for files that are made
_TOUCH_SECONDS = 60.0

_in_use: PerProcess[PrivateFile | None] = PerProcess(drop_inherited=True)


def kept_name(*texts: str) -> str:
    """Return a hash of texts, for the name of a file."""
    return hash_texts(*texts, size=16).hex()


@dataclass(frozen=True, slots=True)
class KeptFiles:
    """Files of one kind in a cache directory, by names that may begin with a folder. A picklable value."""

    directory: str
    kind: KeptKind

    def path(self, name: str) -> str:
        """Return the path of a file, whether it exists or not."""
        return os.path.join(self.directory, "v1", self.kind, name)

    def read(self, name: str) -> memoryview | None:
        """Return the content of a file, and note its use; None if there is no such file, or it is damaged."""
        path = self.path(name)
        with suppress(OSError), open(open_private(path, os.O_RDONLY), "rb") as file:
            data = memoryview(file.read())
            if data[:_HEADER_BYTES] == _header(name, data[_HEADER_BYTES:]):
                if time.time() - os.fstat(file.fileno()).st_mtime > _TOUCH_SECONDS:
                    os.utime(file.fileno())
                return data[_HEADER_BYTES:]
            if data[: len(_MARK)] == _MARK:
                folder, message = os.path.dirname(path), "a file kept in %s is damaged, and is made again: %s"
                log_once(_log, message, folder, path, key=folder)
        return None

    def read_part(self, name: str, start: int, size: int) -> tuple[bytes, int]:
        """Return some bytes of a content, which are not verified, and the length of the whole content."""
        with open(open_private(self.path(name), os.O_RDONLY), "rb") as file:
            file.seek(_HEADER_BYTES + start)
            return file.read(size), os.fstat(file.fileno()).st_size - _HEADER_BYTES

    def write(self, name: str, content: bytes, *, alone: bool = False) -> None:
        """Keep a content, in a file that appears when it is complete; ``alone`` as :meth:`making` says."""
        writer = "" if alone else f".{os.getpid()}-{threading.get_ident()}"
        path = self._with_folders(name)
        replace_private(path, _header(name, content) + content, f"{path}{writer}.new")

    def remove(self, name: str) -> None:
        """Remove a file, if it can be removed."""
        with suppress(OSError):
            os.unlink(self.path(name))

    @contextmanager
    def making(self, name: str) -> Iterator[bool | None]:
        """Yield True to the one who is to make a file, False to others; None where files cannot be locked."""
        byte = zlib.crc32(name.encode())
        with self._lock_file(name) as file:
            is_mine: bool | None = None
            if has_locks():
                try:
                    is_mine = file.try_lock(byte, byte + 1)
                except OSError as error:
                    message = "%s: files there cannot be locked (%s), so each process makes what it needs"
                    log_once(_log, message, self.path(""), error, key=self.path(""))
            yield is_mine

    def use(self, folder: str) -> None:
        """Protect the files of a folder from :func:`clear_kept` until this process ends."""
        _in_use.map(self.path(folder), lambda: self._mark_in_use(folder))

    def _mark_in_use(self, folder: str) -> PrivateFile | None:
        with suppress(OSError):
            file = self._lock_file(f"{folder}/")
            if has_locks() and file.lock(*_IN_USE, seconds=patience(), shared=True):
                return file
            file.close()
        return None

    def _lock_file(self, name: str) -> PrivateFile:
        folder = os.path.dirname(self._with_folders(name))
        return PrivateFile(os.path.join(folder, _LOCK_FILE), os.O_RDWR | os.O_CREAT)

    def _with_folders(self, name: str) -> str:
        """Make the folders of a file, and return its path."""
        make_cache_folder(self.directory)
        folder = os.path.join(self.directory, "v1")
        make_layout_folder(folder)
        for part in (self.kind, *name.split("/")[:-1]):
            folder = os.path.join(folder, part)
            make_folder(folder)
        return self.path(name)


def _header(name: str, content: bytes | memoryview) -> bytes:
    hasher = xxhash.xxh3_64(name.encode() + b"\0")
    hasher.update(content)
    return _MARK + hasher.digest()


class KeptFile(NamedTuple):
    """A kept file."""

    kind: KeptKind
    path: str
    bytes: int
    last_use: float  # in seconds since 1970, exact to a minute


def list_kept(directory: str) -> list[KeptFile]:
    """Return the kept files of a cache directory."""
    found = []
    for kind in get_args(KeptKind):
        for folder, _, names in os.walk(KeptFiles(directory, kind).path("")):
            for name in names:
                with suppress(FileNotFoundError):
                    path = os.path.join(folder, name)
                    status = os.lstat(path)
                    if name != _LOCK_FILE:
                        found.append(KeptFile(kind, path, status.st_size, status.st_mtime))
    return found


def clear_kept(directory: str, dataset: str | None = None, *, before: float | None = None) -> list[KeptFile]:
    """Remove kept files, but for the indices that running processes use; return what was removed.

    ``dataset`` is the name of a dataset's folder, to remove only its indices and versions; ``before`` leaves
    what was used since, in seconds since 1970. Raises OSError if the disk fails, or must not be written.
    """
    old = [kept for kept in list_kept(directory) if before is None or kept.last_use <= before]
    return [kept for kept in old if dataset in (None, *kept.path.split("/")[-2:]) and _unlink(kept.path)]


def _unlink(path: str) -> bool:
    with ExitStack() as stack:
        with suppress(FileNotFoundError):
            lock = os.path.join(os.path.dirname(path), _LOCK_FILE)
            file = stack.enter_context(PrivateFile(lock, os.O_RDWR))
            if has_locks() and not file.try_lock(*_IN_USE):
                return False
        with suppress(FileNotFoundError):
            os.unlink(path)
        return True
