"""The interface of a store, and the values that pass through it.

To add a store, implement :class:`Store`, raise the errors of ``energon_stream.errors`` (``_answers.py`` maps
HTTP answers to them), and name it in the table of ``transports.py``, or call ``register_store`` from outside.
Test it with ``energon_stream.testing.store_suite.StoreConformance``. ``managed.py`` and ``fetcher.py`` add
retries, counters, concurrency and second requests. A store that can drop an answer between its header and its
body, or has bytes at hand without a request, inherits ``ScheduledStore``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True, order=True)
class ByteRange:
    """Bytes ``start`` (inclusive) to ``stop`` (exclusive) of an object; ``len()`` is their number."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    """Metadata of an object."""

    size: int
    # Version of the content, spelled as the store spells it, quotes included; None if the store has no
    # versions. Local files have one made of inode, size and modification time.
    etag: str | None
    last_modified: datetime | None = field(default=None, compare=False)  # with a time zone; None if unknown


@dataclass(frozen=True, slots=True)
class ListEntry:
    """One object of a listing: path relative to the store's root, and metadata."""

    path: str
    meta: ObjectMeta


@dataclass(frozen=True, slots=True)
class Body:
    """Bytes of an object, or of a range of it."""

    data: memoryview  # keeps the viewed memory alive
    etag: str | None  # content version that the answer named
    total_size: int | None  # length of the whole object in bytes; None if the answer did not tell


@runtime_checkable
class Store(Protocol):
    """Objects below one root URL, read and written by relative path.

    All methods block and are thread-safe. They raise the errors of ``energon_stream.errors`` only; a fault
    that another attempt may cure is a ``TransientStorageError``.
    """

    @property
    def url(self) -> str:
        """Root URL without credentials and without a trailing slash."""

    @property
    def is_local(self) -> bool:
        """True if reads are as fast as memory and need neither threads nor look-ahead."""

    def get(self, path: str, *, etag: str | None = None) -> Body:
        """Read a whole object; the path ``""`` is the root object itself.

        Raises ObjectNotFoundError if object, bucket or file do not exist, AccessDeniedError if the store
        refuses access, and ObjectChangedError if the object has another version than ``etag``.
        """

    def get_range(self, path: str, byte_range: ByteRange, *, etag: str | None = None) -> Body:
        """Read exactly ``len(byte_range)`` bytes, or raise an error (``RangeError`` beyond the end)."""

    def get_suffix(self, path: str, length: int, *, etag: str | None = None) -> Body:
        """Read the last ``length`` bytes, or all bytes of a shorter object."""

    def head(self, path: str) -> ObjectMeta:
        """Return the metadata of one object."""

    def list(self, prefix: str = "") -> Iterator[ListEntry]:
        """List all objects below a folder, recursively, sorted by path. An absent folder yields nothing."""

    def put(self, path: str, data: bytes) -> None:
        """Write a whole object. Readers see all of it or nothing."""

    def put_file(self, path: str, local_path: str, *, move: bool = False) -> None:
        """Upload a local file as an object, in several requests if it is large.

        With ``move``, the caller needs the local file no more: a store on its disk may rename it.
        """

    def delete(self, path: str) -> None:
        """Remove one object; an absent one is not an error."""

    def close(self) -> None:
        """Release the resources of this store alone, such as memory maps. The store may be used again."""
