"""Headers and indices of media files, kept in the process and on this node.

A file on disk holds MessagePack of the size, the version and the pieces, packed with zlib; see
:mod:`energon_stream.cache.kept_files`. Files lie in 256 folders. When one of them is full, the files that
were last used longest ago make room.
"""

from __future__ import annotations

import contextlib
import os
import threading
import zlib
from collections import OrderedDict
from dataclasses import dataclass

import msgpack

from energon_stream.cache.config import node_directory
from energon_stream.cache.kept_files import KeptFiles, kept_name
from energon_stream.fork import PerProcess
from energon_stream.printable import strip_credentials

_MAX_MEMORY = 32 << 20  # bytes of all openings in a process
_MAX_OPENING = 16 << 20  # larger ones are not kept
_MAX_FOLDER = 16 << 20  # of 256 folders: 4 GiB


@dataclass(frozen=True, slots=True)
class Opening:
    """Bytes of a file that a reader needs to open it."""

    size: int  # length of the file
    etag: str | None  # version of the object
    pieces: tuple[tuple[int, bytes], ...]  # places in the file, and the bytes there

    @property
    def data_bytes(self) -> int:
        """Number of bytes of all pieces."""
        return sum(len(data) for _, data in self.pieces)


class _Memory:
    """The openings that a process used last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bytes = 0
        self._found: OrderedDict[str, Opening] = OrderedDict()

    def get(self, key: str) -> Opening | None:
        with self._lock:
            found = self._found.get(key)
            if found is not None:
                self._found.move_to_end(key)
            return found

    def put(self, key: str, opening: Opening) -> None:
        with self._lock:
            self._pop(key)
            self._found[key] = opening
            self._bytes += opening.data_bytes
            while self._bytes > _MAX_MEMORY:
                self._pop(next(iter(self._found)))

    def forget(self, key: str) -> None:
        with self._lock:
            self._pop(key)

    def _pop(self, key: str) -> None:
        gone = self._found.pop(key, None)
        self._bytes -= 0 if gone is None else gone.data_bytes


in_process: PerProcess[_Memory] = PerProcess(_Memory, drop_inherited=True)


def kept_opening(url: str, path: str, start: int) -> Opening | None:
    """Return the opening of the file from byte ``start`` of an object; None if it is not kept."""
    key = _key(url, path, start)
    found = in_process.get().get(key)
    if found is None and (content := _kept().read(key)) is not None:
        size, etag, pieces = msgpack.unpackb(zlib.decompress(content))
        found = Opening(size, etag, tuple((start, data) for start, data in pieces))
        in_process.get().put(key, found)
    return found


def keep_opening(url: str, path: str, start: int, opening: Opening) -> None:
    """Keep the opening of a file. A disk without room, or without permission, is not an error."""
    if opening.data_bytes > _MAX_OPENING:
        return
    key = _key(url, path, start)
    in_process.get().put(key, opening)
    content = zlib.compress(msgpack.packb((opening.size, opening.etag, opening.pieces)), 1)
    with contextlib.suppress(OSError):
        _make_room(os.path.dirname(_kept().path(key)), len(content))
        _kept().write(key, content)


def forget_opening(url: str, path: str, start: int) -> None:
    """Forget the opening of a file that was replaced."""
    key = _key(url, path, start)
    in_process.get().forget(key)
    _kept().remove(key)


def _kept() -> KeptFiles:
    return KeptFiles(node_directory(), "openings")


def _key(url: str, path: str, start: int) -> str:
    name = kept_name(strip_credentials(url).rstrip("/"), path, str(start))
    return f"{name[:2]}/{name[2:]}"


def _make_room(folder: str, size: int) -> None:
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        files = sorted((entry.stat().st_mtime, entry.stat().st_size, entry.path) for entry in entries)
        used = sum(length for _, length, _ in files)
        for _, length, path in files:
            if used + size <= _MAX_FOLDER:
                break
            os.unlink(path)
            used -= length
