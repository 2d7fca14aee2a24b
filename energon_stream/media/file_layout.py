"""The place of the header in mp4 and mov files, a pure function of their first bytes."""

from __future__ import annotations

import struct

from energon_stream.storage import ByteRange

_BOX = struct.Struct(">I4s")
_LARGE = struct.Struct(">Q")
_MAX_HEADER = 64 << 20


def header_range(head: memoryview | bytes, size: int) -> ByteRange | None:
    """Return the bytes of the index of an mp4 or mov file, as far as its first bytes tell.

    Args:
        head: The first bytes of the file.
        size: Length of the file.

    Returns:
        The box ``moov``, or all bytes from the first box on that begins after ``head``, which is usually
        ``moov`` after ``mdat``. None for other files.

    Example:
        >>> box = lambda size, kind: size.to_bytes(4, "big") + kind
        >>> header_range(box(8, b"ftyp") + box(1000, b"moov"), 9000)
        ByteRange(start=8, stop=1008)
        >>> header_range(box(8, b"ftyp") + box(8000, b"mdat"), 9000)
        ByteRange(start=8008, stop=9000)
    """
    position = 0
    while position + _BOX.size <= len(head):
        length, kind = _BOX.unpack_from(head, position)
        if position == 0 and kind not in (b"ftyp", b"moov", b"free", b"skip", b"wide", b"mdat"):
            return None
        if length == 1 and position + _BOX.size + _LARGE.size <= len(head):
            (length,) = _LARGE.unpack_from(head, position + _BOX.size)
        if length < _BOX.size:  # the box goes to the end of the file, or the file is damaged
            return None
        if kind == b"moov":
            return _bounded(position, position + length, size)
        position += length
    return _bounded(position, size, size)


def _bounded(start: int, stop: int, size: int) -> ByteRange | None:
    stop = min(stop, size)
    return ByteRange(start, stop) if 0 < stop - start <= _MAX_HEADER else None
