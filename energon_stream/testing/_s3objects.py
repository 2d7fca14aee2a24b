"""Objects of the stand-in S3 server: in memory, or in a folder of buckets on disk."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import time
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeAlias

_ABSENT = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
_LAST = "\U0010ffff"  # sorts after all other characters


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One version of an object; a context manager, which closes the file with the bytes."""

    size: int
    etag: str  # quoted
    modified: float  # in seconds since the epoch
    source: memoryview | IO[bytes]

    def read(self, begin: int, end: int) -> memoryview:
        if isinstance(self.source, memoryview):
            return self.source[begin:end]
        return memoryview(os.pread(self.source.fileno(), end - begin, begin))

    def __enter__(self) -> StoredObject:
        return self

    def __exit__(self, *_: object) -> None:
        if not isinstance(self.source, memoryview):
            self.source.close()


def md5_etag(data: bytes | bytearray) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


class MemoryObjects:
    """Objects in memory by bucket and key; ETags are MD5 sums as on S3.

    The caller checks that a bucket exists, and closes the objects that ``open`` returns.
    """

    def __init__(self) -> None:
        self._buckets: dict[str, dict[str, StoredObject]] = {}
        self._sorted: dict[str, list[str]] = {}

    def buckets(self) -> list[str]:
        return sorted(self._buckets)

    def create_bucket(self, bucket: str) -> None:
        self._buckets.setdefault(bucket, {})

    def delete_bucket(self, bucket: str) -> None:
        self._buckets.pop(bucket, None)
        self._sorted.pop(bucket, None)

    def keys(self, bucket: str) -> Sequence[str]:
        if bucket not in self._sorted:
            self._sorted[bucket] = sorted(self._buckets[bucket])
        return self._sorted[bucket]

    def open(self, bucket: str, key: str) -> StoredObject | None:
        return self._buckets.get(bucket, {}).get(key)

    def put(self, bucket: str, key: str, data: bytes | bytearray) -> StoredObject:
        stored = StoredObject(len(data), md5_etag(data), time.time(), memoryview(data))
        self._buckets[bucket][key] = stored
        self._sorted.pop(bucket, None)
        return stored

    def delete(self, bucket: str, key: str) -> None:
        self._buckets[bucket].pop(key, None)
        self._sorted.pop(bucket, None)


class FolderObjects:
    """Objects as files ``root/bucket/key``, as they are at each request.

    ETags are made of size, modification time and inode. Keys that are no file names (``a//b``, ``a/``,
    and ``a`` beside ``a/b``) cannot be stored.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = Path(root)

    def buckets(self) -> list[str]:
        return sorted(entry.name for entry in os.scandir(self._root) if entry.is_dir())

    def create_bucket(self, bucket: str) -> None:
        (self._root / bucket).mkdir(exist_ok=True)

    def delete_bucket(self, bucket: str) -> None:
        for folder, _, _ in os.walk(self._root / bucket, topdown=False):
            os.rmdir(folder)

    def keys(self, bucket: str) -> Sequence[str]:
        base = os.path.join(self._root, bucket, "")
        walk = ((folder, name) for folder, _, names in os.walk(base) for name in names)
        return sorted(os.path.join(folder, name)[len(base) :] for folder, name in walk)

    def open(self, bucket: str, key: str) -> StoredObject | None:
        try:
            return _stored(open(self._path(bucket, key), "rb", buffering=0))  # the caller closes it
        except _ABSENT:
            return None

    def put(self, bucket: str, key: str, data: bytes | bytearray) -> StoredObject:
        path = self._path(bucket, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        # Beside the bucket, which may be a link to a folder elsewhere, so that no listing shows it.
        beside = (self._root / bucket).resolve().parent
        with tempfile.NamedTemporaryFile(dir=beside, prefix=".upload-", delete=False) as file:
            file.write(data)
            file.flush()
            os.replace(file.name, path)
            return _stored(file.file)

    def delete(self, bucket: str, key: str) -> None:
        with contextlib.suppress(*_ABSENT):
            self._path(bucket, key).unlink()

    def _path(self, bucket: str, key: str) -> Path:
        if any(part in ("", ".", "..") for part in key.split("/")):
            raise FileNotFoundError(f"{key!r} cannot be a file below a folder")
        return self._root / bucket / key


def _stored(file: IO[bytes]) -> StoredObject:
    stat = os.fstat(file.fileno())
    etag = f'"{stat.st_size:x}-{stat.st_mtime_ns:x}-{stat.st_ino:x}"'
    return StoredObject(stat.st_size, etag, stat.st_mtime, file)


Objects: TypeAlias = MemoryObjects | FolderObjects


def list_page(
    keys: Sequence[str], prefix: str, delimiter: str, after: str, limit: int
) -> tuple[list[str], list[str], str | None]:
    """Return the keys and common prefixes of a page, and after which the next begins; None on the last."""
    if delimiter and after.endswith(delimiter):
        after += _LAST  # a common prefix stands for all keys below it
    position = max(bisect_left(keys, prefix), bisect_right(keys, after))
    found: list[str] = []
    prefixes: list[str] = []
    last: str | None = None
    while position < len(keys) and keys[position].startswith(prefix):
        if len(found) + len(prefixes) >= limit:
            return found, prefixes, last
        key = keys[position]
        cut = key.find(delimiter, len(prefix)) if delimiter else -1
        if cut < 0:
            found.append(last := key)
            position += 1
        else:
            prefixes.append(last := key[: cut + len(delimiter)])
            position = bisect_left(keys, last + _LAST)
    return found, prefixes, None
