"""An object of a store as a file, for readers such as Arrow's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from energon_stream.media.seekable import SeekableFile
from energon_stream.storage import ByteRange

if TYPE_CHECKING:
    from energon_stream.storage import Store


class StoreFile(SeekableFile):
    """A file of a store, all of one version, that is read by ranges. Nothing is kept."""

    def __init__(self, store: Store, path: str, size: int, etag: str | None) -> None:
        super().__init__()
        self._store, self._path, self._size, self._etag = store, path, size, etag

    @property
    def size(self) -> int:
        """Number of bytes."""
        return self._size

    def read(self, size: int | None = -1, /) -> bytes:
        """Return the bytes from the position on: as many as asked for, or all that are left."""
        left = max(0, self._size - self._position)
        size = left if size is None or size < 0 else min(size, left)
        if not size:
            return b""
        wanted = ByteRange(self._position, self._position + size)
        self._position += size
        return bytes(self._store.get_range(self._path, wanted, etag=self._etag).data)
