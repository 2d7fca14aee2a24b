"""Bytes without needless copies."""

from __future__ import annotations

import io

__all__ = ["BytesBuilder", "as_bytes"]


def as_bytes(data: bytes | memoryview) -> bytes:
    """What a view shows, as ``bytes`` that keep nothing else alive.

    Copied, except where the view shows all of a ``bytes`` object: that object is then handed out.
    """
    if isinstance(data, bytes):
        return data
    whole = data.obj
    if type(whole) is bytes and data.nbytes == len(whole) and data.c_contiguous:
        return whole
    return data.tobytes()


class BytesBuilder:
    """A ``bytes`` object that is filled piece by piece, without a copy at the end.

    ``io.BytesIO`` owns the object meanwhile: it hands it out as it is once it is filled exactly and no view
    of it lives. Its pages come from ``calloc``, so memory is used only as far as it was filled.

    Args:
        size: Length in bytes.
    """

    def __init__(self, size: int) -> None:
        self._buffer = io.BytesIO(bytes(size))
        self._view = self._buffer.getbuffer()

    def write(self, at: int, data: bytes | memoryview) -> None:
        """Copy ``data`` to the bytes from ``at``; pieces that do not overlap may come from several threads."""
        self._view[at : at + len(data)] = data

    def finish(self) -> bytes:
        """The object; nothing can be written after."""
        self._view.release()
        return self._buffer.getvalue()
