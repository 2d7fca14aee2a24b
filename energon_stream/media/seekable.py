"""The base of files that are read by range."""

from __future__ import annotations

import io
from abc import abstractmethod


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
