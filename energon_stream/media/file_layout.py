"""Places of the bytes that opening a media file reads, and the length that the file says it has."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Self

from energon_stream.errors import DecodeError
from energon_stream.storage import ByteRange

_BOX = struct.Struct(">I4s")
_LARGE = struct.Struct(">Q")
_MAX_HEADER = 64 << 20
_MAX_GAP = 4 << 10
_FIRST_BOXES = (b"ftyp", b"moov", b"free", b"skip", b"wide", b"mdat")
_PARENTS = frozenset({
    b"clip", b"dinf", b"edts", b"hoov", b"mdia", b"meta", b"minf", b"moof", b"moov", b"mvex", b"stbl", b"traf", b"trak", b"udta",
})  # fmt: skip
_MOST_SAMPLES = 10_000_000
_WITHOUT_CHUNKS = frozenset({b"vide", b"subp", b"clcp"})
_LEAST_FRAME = 160  # samples of sound without a codec for which libav makes an entry
_BOXES = 8  # fragments may be many
_EBML = b"\x1aE\xdf\xa3"
_SEGMENT = b"\x18S\x80g"


@dataclass(frozen=True, slots=True)
class FileLayout:
    """Places of the bytes that are read to open a media file; a wrong one costs further requests alone."""

    size: int  # length of the file
    ranges: tuple[ByteRange, ...]

    @classmethod
    def of_reads(cls, size: int, reads: Iterable[ByteRange]) -> Self:
        """Make the layout of what was read, close ranges together.

        Example:
            >>> FileLayout.of_reads(9000, [ByteRange(8000, 9000), ByteRange(0, 8), ByteRange(8, 40)]).ranges
            (ByteRange(start=0, stop=40), ByteRange(start=8000, stop=9000))
        """
        merged: list[ByteRange] = []
        for found in sorted(reads):
            if merged and found.start - merged[-1].stop <= _MAX_GAP:
                found = ByteRange(merged[-1].start, max(merged.pop().stop, found.stop))
            merged.append(found)
        return cls(size, tuple(merged))

    def to_json(self) -> str:
        """Write as text."""
        ranges = [[found.start, found.stop] for found in self.ranges]
        return json.dumps([self.size, ranges], separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Self | None:
        """Read what :meth:`to_json` wrote; None for other text, and for more bytes than a header may have.

        Example:
            >>> FileLayout.from_json(FileLayout(9000, (ByteRange(0, 40),)).to_json())
            FileLayout(size=9000, ranges=(ByteRange(start=0, stop=40),))
        """
        try:
            size, ranges = json.loads(text)
            places = tuple(ByteRange(int(start), int(stop)) for start, stop in ranges)
        except (ValueError, TypeError, OverflowError, RecursionError):
            return None
        if type(size) is not int or not all(0 <= place.start <= place.stop <= size for place in places):
            return None
        return cls(size, places) if sum(map(len, places)) <= _MAX_HEADER else None


def header_range(head: memoryview | bytes, size: int) -> ByteRange | None:
    """Return the bytes of the index of an mp4 or mov file of ``size`` bytes, as far as its first bytes tell.

    They are the box ``moov``, or all bytes from the first box on that begins after ``head``, which is usually
    ``moov`` after ``mdat``. Return None for other files.

    Example:
        >>> box = lambda size, kind: size.to_bytes(4, "big") + kind
        >>> header_range(box(8, b"ftyp") + box(1000, b"moov"), 9000)
        ByteRange(start=8, stop=1008)
        >>> header_range(box(8, b"ftyp") + box(8000, b"mdat"), 9000)
        ByteRange(start=8008, stop=9000)
    """
    end = 0
    for start, length, kind in _boxes(lambda position, length: head[position : position + length]):
        if not length:
            return None
        if kind == b"moov":
            return _bounded(start, start + length, size)
        end = start + length
    return _bounded(end, size, size)


def _boxes(read: Callable[[int, int], bytes | memoryview]) -> Iterator[tuple[int, int, bytes]]:
    """Yield place, length and kind of each box; length 0 for the last one, or for other data."""
    position = 0
    while len(box := read(position, _BOX.size + _LARGE.size)) >= _BOX.size:
        length, kind = _BOX.unpack_from(box)
        if length == 1 and len(box) == _BOX.size + _LARGE.size:
            (length,) = _LARGE.unpack_from(box, _BOX.size)
        if length < _BOX.size or (position == 0 and kind not in _FIRST_BOXES):
            yield position, 0, kind
            return
        yield position, length, kind
        position += length


def _bounded(start: int, stop: int, size: int) -> ByteRange | None:
    stop = min(stop, size)
    return ByteRange(start, stop) if 0 < stop - start <= _MAX_HEADER else None


def full_size(read: Callable[[int, int], bytes], size: int) -> int:
    """Return the length that a media file says it has: more than ``size`` if it was cut off.

    mp4, mov, mkv, webm, avi and wav say it, unless they were written as streams. Of other files, ``size`` is
    returned. ``read`` returns bytes of the file, from a position on, fewer at its end.

    Example:
        >>> data = (8).to_bytes(4, "big") + b"ftyp" + (9000).to_bytes(4, "big") + b"mdat" + bytes(100)
        >>> full_size(lambda position, length: data[position : position + length], len(data))
        9008
    """
    head = read(0, 64)
    if head[:4] == b"RIFF":
        length = int.from_bytes(head[4:8], "little")
        return size if length in (0, 2**32 - 1) else max(size, 8 + length)
    if head[:4] == _EBML:
        at, length = _vint(head, 4)
        at += length
        if head[at : at + 4] != _SEGMENT:
            return size
        at, length = _vint(head, at + 4)
        return max(size, at + length)
    end = 0
    for start, length, _ in islice(_boxes(read), _BOXES):
        end = start + length
    return max(size, end)


def check_index(read: Callable[[int, int], bytes], size: int, boxes: int | None = None) -> None:
    """Raise DecodeError if an mp4 or mov file claims more samples than any recording has.

    libav makes an entry of 24 bytes for each. A file of 684 bytes may claim billions: samples of equal size,
    an edit list that repeats them, or samples of a fragment without a size. Other tables take as many bytes.
    ``boxes`` limits how many boxes are looked at; None for all.
    """
    claimed = 0
    for start, length, kind in islice(_all_boxes(read, size), boxes):
        if kind not in _PARENTS:
            continue
        header = read(start, length)
        if b"cmov" in header:
            raise DecodeError("the header of the file is compressed, as QuickTime wrote it until 2005")
        claimed += sum(count for flags, count, *_ in _numbers(header, b"trun") if not flags & 0xF00)
        claimed += sum(map(_claimed, header.split(b"trak")[1:]))
    if claimed > _MOST_SAMPLES:
        raise DecodeError(f"the index of the file claims {claimed:,} samples, more than {_MOST_SAMPLES:,}")


def _claimed(track: bytes) -> int:
    """Return how many entries libav may make for a track whose samples take no bytes of its index."""
    edits = max((edits for _, edits, *_ in _numbers(track, b"elst")), default=1) or 1
    kinds = {kind.to_bytes(4, "big") for _, _, kind, _ in _numbers(track, b"hdlr")}
    lengths = [(found, each) for _, found, _, each in _numbers(track, b"stts")]
    if b"soun" in kinds and not kinds & _WITHOUT_CHUNKS and set(lengths) == {(1, 1)}:  # sound without a codec
        chunks = max(
            (found for kind in (b"stco", b"co64") for _, found, *_ in _numbers(track, kind)), default=0
        )
        return _samples_of_chunk(track) * chunks // _LEAST_FRAME * edits
    return (
        max((count for _, size, count, _ in _numbers(track, b"stsz") if size or edits > 1), default=0) * edits
    )


def _samples_of_chunk(track: bytes) -> int:
    most = 0
    for at in _places(track, b"stsc"):
        (count,) = struct.unpack_from(">I", track[at + 8 : at + 12].ljust(4, b"\0"))
        table = track[at + 12 :][: 12 * min(count, (len(track) - at - 12) // 12)]
        most = max(most, max((found for _, found, _ in struct.iter_unpack(">3I", table)), default=0))
    return most


def _all_boxes(read: Callable[[int, int], bytes], size: int) -> Iterator[tuple[int, int, bytes]]:
    """Yield place, length and kind of each box of the file, whatever it begins with."""
    position = 0
    while position < size and len(box := read(position, _BOX.size + _LARGE.size)) >= _BOX.size:
        length, kind = _BOX.unpack_from(box)
        if length == 1 and len(box) == _BOX.size + _LARGE.size:
            (length,) = _LARGE.unpack_from(box, _BOX.size)
        length = min(length or size, size - position)
        if length < _BOX.size:
            return
        yield position, length, kind
        position += length


def _numbers(header: bytes, kind: bytes) -> Iterator[tuple[int, ...]]:
    """Yield the first four numbers in the boxes of a kind: version and flags, and three more."""
    for at in _places(header, kind):
        yield struct.unpack(">4I", header[at + 4 : at + 20].ljust(16, b"\0"))


def _places(header: bytes, kind: bytes) -> Iterator[int]:
    at = header.find(kind)
    while at >= 0:
        yield at
        at = header.find(kind, at + 4)


def _vint(data: bytes, at: int) -> tuple[int, int]:
    """Read a number of EBML: return the place after it, and its value; 0 for one that is unknown."""
    first = data[at] if at < len(data) else 0
    width = 9 - first.bit_length()
    value = int.from_bytes(data[at : at + width], "big") & ((1 << 7 * width) - 1)
    return at + width, 0 if width > 8 or value == (1 << 7 * width) - 1 else value
