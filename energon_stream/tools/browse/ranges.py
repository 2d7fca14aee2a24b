"""Range headers of HTTP, as byte ranges of a part. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterator

from energon_stream.errors import RangeError
from energon_stream.storage import ByteRange

_ONE = re.compile(r"bytes=(\d{0,19})-(\d{0,19})")


def requested_range(header: str | None, size: int) -> ByteRange | None:
    """Return the bytes that a ``Range`` header asks for; None for the whole.

    Headers with several ranges, or of another form, are ignored, as HTTP allows. Raises RangeError if no byte
    of the range is within ``size``.

    Example:
        >>> requested_range("bytes=10-19", 100), requested_range("bytes=-5", 100)
        (ByteRange(start=10, stop=20), ByteRange(start=95, stop=100))
    """
    match = _ONE.fullmatch((header or "").strip())
    if match is None or match[0] == "bytes=-":
        return None
    first, last = match[1], match[2]
    if not first:
        start, stop = max(0, size - int(last)), size
    else:
        start, stop = int(first), min(size, int(last) + 1) if last else size
        if last and int(last) < int(first):
            return None
    if start >= stop:
        raise RangeError(f"{header!r:.80} has no byte of the {size:,}", hint="ask for bytes within the part")
    return ByteRange(start, stop)


def pieces(wanted: ByteRange, first: int, most: int) -> Iterator[ByteRange]:
    """Divide a range into requests: a small first one, so that a player starts soon, then larger ones.

    Example:
        >>> [(piece.start, piece.stop) for piece in pieces(ByteRange(0, 10), 2, 4)]
        [(0, 2), (2, 6), (6, 10)]
    """
    start, step = wanted.start, first
    while start < wanted.stop:
        stop = min(start + step, wanted.stop)
        yield ByteRange(start, stop)
        start, step = stop, min(2 * step, most)
