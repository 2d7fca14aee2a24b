"""The storage seam: what every store offers, and the values that cross it.

A store is rooted at a URL and hands out bytes by relative path. All methods block and are safe to
call from several threads; concurrency is the fetcher's job. Stores raise the errors of
``energon_stream.errors`` only; a fault worth another try is a ``TransientStorageError``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

__all__ = ["Body", "ByteRange", "ListEntry", "ObjectMeta", "Store"]


@dataclass(frozen=True, slots=True, order=True)
class ByteRange:
    """Bytes ``start`` (inclusive) to ``stop`` (exclusive) of an object."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    """What a store knows about an object without reading it.

    Attributes:
        size: Length in bytes.
        etag: Version of the content as the store names it, quotes included; None where the store
            has no such thing. For local files it is made of inode, size and modification time.
    """

    size: int
    etag: str | None


@dataclass(frozen=True, slots=True)
class ListEntry:
    """One object of a listing: path relative to the store's root, and its metadata."""

    path: str
    meta: ObjectMeta


@dataclass(frozen=True, slots=True)
class Body:
    """Bytes of an object, or of a range of it.

    Attributes:
        data: The bytes. May be a view of memory that the view keeps alive (no copy is made).
        etag: The content version the answer carried, or None.
        total_size: Length of the whole object where the answer told it, else None.
    """

    data: memoryview
    etag: str | None
    total_size: int | None


@runtime_checkable
class Store(Protocol):
    """Bytes by (path, range) below one root URL."""

    @property
    def url(self) -> str:
        """Root URL without credentials and without a trailing slash."""

    @property
    def is_local(self) -> bool:
        """True when reads are memory-speed and need neither threads nor look-ahead."""

    def get(self, path: str, *, etag: str | None = None) -> Body:
        """Read a whole object.

        Args:
            path: Path relative to the root; ``""`` is the root object itself.
            etag: Content version that the object must have (sent as ``If-Match``).

        Raises:
            ObjectNotFoundError: No such object, bucket or file.
            AccessDeniedError: Refused.
            ObjectChangedError: The object has another version than ``etag``.
            TransientStorageError: A fault that another try may cure.
        """

    def get_range(self, path: str, byte_range: ByteRange, *, etag: str | None = None) -> Body:
        """Read a byte range; exactly ``len(byte_range)`` bytes, or an error (``RangeError`` beyond the end)."""

    def get_suffix(self, path: str, length: int, *, etag: str | None = None) -> Body:
        """Read the last ``length`` bytes (all of a shorter object)."""

    def head(self, path: str) -> ObjectMeta:
        """Metadata of one object."""

    def list(self, prefix: str = "") -> Iterator[ListEntry]:
        """All objects below a folder, recursively, sorted by path. An absent folder yields nothing."""

    def put(self, path: str, data: bytes) -> None:
        """Write a whole object, visible at once or not at all."""

    def put_file(self, path: str, local_path: str) -> None:
        """Upload a local file as an object, in parts where it is large."""

    def delete(self, path: str) -> None:
        """Remove one object; an absent one is not an error."""

    def close(self) -> None:
        """Release what this store alone holds (memory maps; clients are shared). It may be used again."""
