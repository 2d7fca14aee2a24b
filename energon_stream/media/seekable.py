"""Files that are read by range: their base, and one for readers such as Arrow's."""

from __future__ import annotations

import io
from abc import abstractmethod

from energon_stream.storage import ByteRange, Store


class SeekableFile(io.RawIOBase):
    """A file with a position. Classes that derive from it add ``size``, and ``read`` or ``readinto``."""

    _position = 0

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of bytes."""

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position, and return it. A place before the file means its begin."""
        if whence not in (io.SEEK_SET, io.SEEK_CUR, io.SEEK_END):
            raise ValueError(f"whence is {whence}")
        base = 0 if whence == io.SEEK_SET else self._position if whence == io.SEEK_CUR else self.size
        self._position = max(base + offset, 0)
        return self._position


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
