"""Headers and indices of media files, kept in the process and on this node.

A file on disk holds a mark of the format, an XXH3 hash of its path and content, and the content: MessagePack
of the size, the version and the pieces, packed with zlib. Files lie in 256 folders. When one of them is full,
its oldest files make room.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import zlib
from collections import OrderedDict
from dataclasses import dataclass

import msgpack
import xxhash

from energon_stream.atomic_files import write_whole
from energon_stream.cache.config import node_directory
from energon_stream.fork import PerProcess
from energon_stream.printable import strip_credentials

_MARK = b"ES.av.1\n"
_HASH_BYTES = 8
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


_memory = PerProcess(_Memory, drop_inherited=True)


def kept_opening(url: str, path: str, start: int) -> Opening | None:
    """Return the opening of a file; None if there is none.

    Args:
        url: Root URL of the store.
        path: Path of the object.
        start: First byte of the file in the object.
    """
    key = _key(url, path, start)
    found = _memory.get().get(key)
    if found is None:
        found = _read(key)
        if found is not None:
            _memory.get().put(key, found)
    return found


def keep_opening(url: str, path: str, start: int, opening: Opening) -> None:
    """Keep the opening of a file. A disk without room, or without permission, is not an error."""
    if opening.data_bytes > _MAX_OPENING:
        return
    key = _key(url, path, start)
    _memory.get().put(key, opening)
    with contextlib.suppress(OSError):
        _write(key, opening)


def forget_opening(url: str, path: str, start: int) -> None:
    """Forget the opening of a file that was replaced."""
    key = _key(url, path, start)
    _memory.get().forget(key)
    with contextlib.suppress(OSError):
        os.unlink(_path(key))


def _key(url: str, path: str, start: int) -> str:
    identity = "\0".join((strip_credentials(url).rstrip("/"), path, str(start)))
    return hashlib.blake2b(identity.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def _path(key: str) -> str:
    return os.path.join(node_directory(), "v1", "openings", key[:2], key[2:])


def _read(key: str) -> Opening | None:
    try:
        with open(_path(key), "rb") as file:
            content = file.read()
    except OSError:
        return None
    body = content[len(_MARK) + _HASH_BYTES :]
    if content[: len(_MARK) + _HASH_BYTES] != _MARK + _hash(key, body):
        return None  # written in part, or by another version
    size, etag, pieces = msgpack.unpackb(zlib.decompress(body))
    return Opening(size, etag, tuple((start, data) for start, data in pieces))


def _write(key: str, opening: Opening) -> None:
    body = zlib.compress(msgpack.packb((opening.size, opening.etag, opening.pieces)), 1)
    path = _path(key)
    folder = os.path.dirname(path)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    _make_room(folder, len(body))
    write_whole(path, _MARK + _hash(key, body) + body)


def _make_room(folder: str, size: int) -> None:
    with os.scandir(folder) as entries:
        files = sorted((entry.stat().st_mtime, entry.stat().st_size, entry.path) for entry in entries)
    used = sum(length for _, length, _ in files)
    for _, length, path in files:
        if used + size <= _MAX_FOLDER:
            break
        os.unlink(path)
        used -= length


def _hash(key: str, body: bytes) -> bytes:
    return xxhash.xxh3_64_digest(key.encode() + body)
