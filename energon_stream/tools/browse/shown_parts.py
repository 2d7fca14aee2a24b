"""Samples as they are shown: their parts, in memory or by their place in a shard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from energon_stream.index.objects import as_errors_of_shards
from energon_stream.storage import ByteRange
from energon_stream.tools.browse.kinds import Kind, kind_of
from energon_stream.tools.browse.ranges import pieces

if TYPE_CHECKING:
    from energon_stream.index.objects import ShardObject

_FIRST_PIECE = 256 << 10
_LARGEST_PIECE = 4 << 20
"""Bytes of a request while a part is sent."""


@dataclass(frozen=True, slots=True)
class Place:
    """First byte of a part."""

    shard: ShardObject
    start: int


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a sample."""

    name: str
    size: int  # in bytes
    content: memoryview | Place  # its bytes if they are in memory, else where they are

    @property
    def kind(self) -> Kind:
        """Form in which it is shown."""
        return kind_of(self.name)

    @property
    def held(self) -> int:
        """Bytes in memory."""
        return 0 if isinstance(self.content, Place) else self.size

    def read(self, wanted: ByteRange) -> memoryview:
        """Return bytes of the part, with one request unless they are in memory.

        Raises StorageError if the store does not deliver, and IndexMismatchError if the shard is too short.
        """
        if isinstance(self.content, memoryview):
            return self.content[wanted.start : wanted.stop]
        shard, start = self.content.shard, self.content.start
        if not wanted:
            return memoryview(b"")
        with as_errors_of_shards():
            return shard.get_range(ByteRange(start + wanted.start, start + wanted.stop)).data

    def stream(self, wanted: ByteRange) -> Iterator[bytes]:
        """Yield bytes of the part, request by request, as they are taken."""
        for piece in pieces(wanted, _FIRST_PIECE, _LARGEST_PIECE):
            yield bytes(self.read(piece))


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample to be shown."""

    number: int  # in its dataset
    key: str  # empty if it could not be read
    shard: str | None  # path of its tar
    parts: tuple[Part, ...]
    problem: str | None = None  # why it has no parts

    @property
    def held(self) -> int:
        """Bytes in memory."""
        return sum(part.held for part in self.parts)


def texts_span(parts: Sequence[Part], most: int) -> ByteRange | None:
    """Return the bytes of a shard from the first to the last text that is not in memory.

    A text has at most ``most`` bytes, and the span four times as many; texts behind it are left out.

    Example:
        >>> texts_span([Part("mp4", 9000, Place(None, 512)), Part("txt", 100, Place(None, 10240))], 1000)
        ByteRange(start=10240, stop=10340)
    """
    start = stop = None
    for part in parts:
        place = part.content
        if part.kind in (Kind.TEXT, Kind.JSON) and isinstance(place, Place) and part.size <= most:
            start = place.start if start is None else start
            if place.start < start or place.start + part.size - start > 4 * most:
                break
            stop = place.start + part.size
    return None if start is None or stop is None else ByteRange(start, stop)


def with_bytes(part: Part, start: int, data: memoryview) -> Part:
    """Return a part with its bytes, if they are in ``data``, which begins at byte ``start`` of the shard."""
    if not isinstance(part.content, Place):
        return part
    first = part.content.start - start
    if first < 0 or first + part.size > len(data):
        return part
    return Part(part.name, part.size, data[first : first + part.size])
