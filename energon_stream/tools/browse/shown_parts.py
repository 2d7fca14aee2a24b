"""Samples as they are shown: the form of each part, and its bytes, in memory or by their place in a shard."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from energon_stream.decode.images import IMAGE_EXTENSIONS
from energon_stream.index.objects import ShardObject, as_errors_of_shards
from energon_stream.storage import ByteRange

_FIRST_PIECE = 256 << 10
_LARGEST_PIECE = 4 << 20
"""Bytes of a request while a part is sent."""


class Kind(StrEnum):
    """Forms in which parts are shown."""

    IMAGE = "image"  # decoded and scaled by the server
    VIDEO = "video"
    AUDIO = "audio"
    JSON = "json"
    TEXT = "text"
    OTHER = "other"  # by name and size


PLAYED: Mapping[str, str] = {
    "mp4": "video/mp4",
    "m4v": "video/mp4",
    "mov": "video/mp4",
    "webm": "video/webm",
    "mkv": "video/webm",
    "ogv": "video/ogg",
    "mp3": "audio/mpeg",
    "wav": "audio/wav",
    "flac": "audio/flac",
    "ogg": "audio/ogg",
    "oga": "audio/ogg",
    "opus": "audio/ogg",
    "m4a": "audio/mp4",
    "aac": "audio/aac",
}
"""Media types of parts that the browser plays. All other bytes are downloads, whatever they are."""

DOWNLOAD = "application/octet-stream"

_TEXT = frozenset({
    "txt", "text", "md", "rst", "csv", "tsv", "xml", "html", "htm", "xhtml", "svg", "yaml", "yml", "toml", "log",
    "srt", "vtt", "py", "js", "css", "tex", "cls", "cls2", "index", "inx", "id", "caption", "transcript",
})  # fmt: skip


def kind_of(part: str) -> Kind:
    """Return the form in which a part is shown.

    Example:
        >>> [kind_of(name).value for name in ("left.JPG", "a.json", "mp4", "svg", "npy")]
        ['image', 'json', 'video', 'text', 'other']
    """
    name = part.rpartition(".")[2].lower()
    if name in IMAGE_EXTENSIONS:
        return Kind.IMAGE
    if name in PLAYED:
        return Kind(PLAYED[name].partition("/")[0])
    if name in ("json", "jsonl"):
        return Kind.JSON
    return Kind.TEXT if name in _TEXT else Kind.OTHER


def media_type(part: str) -> str:
    """Return the media type with which a part's bytes leave the server: one that is played, or a download.

    Example:
        >>> media_type("mp3"), media_type("svg"), media_type("html")
        ('audio/mpeg', 'application/octet-stream', 'application/octet-stream')
    """
    return PLAYED.get(part.rpartition(".")[2].lower(), DOWNLOAD)


@dataclass(frozen=True, slots=True)
class Place:
    """First byte of a part."""

    shard: ShardObject
    start: int


@dataclass(frozen=True, slots=True)
class ShownPart:
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
class ShownSample:
    """A sample to be shown."""

    number: int  # in its dataset
    key: str  # empty if it could not be read
    shard: str | None  # path of its tar
    parts: tuple[ShownPart, ...]
    problem: str | None = None  # why it has no parts

    @property
    def held(self) -> int:
        """Bytes in memory."""
        return sum(part.held for part in self.parts)


def texts_span(parts: Sequence[ShownPart], most: int) -> ByteRange | None:
    """Return the bytes of a shard from the first to the last text that is not in memory.

    A text has at most ``most`` bytes, and the span four times as many; texts behind it are left out.

    Example:
        >>> video, text = ShownPart("mp4", 9000, Place(None, 512)), ShownPart("txt", 100, Place(None, 10240))
        >>> texts_span([video, text], 1000)
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


def with_bytes(part: ShownPart, start: int, data: memoryview) -> ShownPart:
    """Return a part with its bytes, if they are in ``data``, which begins at byte ``start`` of the shard."""
    if not isinstance(part.content, Place):
        return part
    first = part.content.start - start
    if first < 0 or first + part.size > len(data):
        return part
    return ShownPart(part.name, part.size, data[first : first + part.size])


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
