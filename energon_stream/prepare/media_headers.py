"""Reads the size and format of images, video and audio from the headers of their files."""

from __future__ import annotations

import fnmatch
import io
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Literal, NamedTuple, cast

import numpy as np

from energon_stream.errors import ConfigError, StorageError
from energon_stream.imports import LazyModule
from energon_stream.media.av import AVDecoder
from energon_stream.media.av.container import open_container, read_index
from energon_stream.media.file_layout import FileLayout
from energon_stream.media.metadata import AVMetadata, ImageMetadata
from energon_stream.storage import ByteRange, Store, plan_fetches, shared_fetcher

if TYPE_CHECKING:
    from PIL import Image
else:
    Image = LazyModule("PIL.Image")

_IMAGES = frozenset(["bmp", "gif", "ico", "j2k", "jp2", "jpx", "jpeg", "jpg", "png", "tif", "tiff", "webp"])
_AV = frozenset(["aac", "avi", "flac", "m4a", "m4v", "mkv", "mov", "mp3", "mp4", "ogg", "wav", "webm"])
# Formats of the extensions. Rarer ones of Pillow mistake other data for theirs, or start programs.
_FORMATS = ("BMP", "GIF", "ICO", "JPEG", "JPEG2000", "PNG", "TIFF", "WEBP")
_HEAD_BYTES = 64 << 10
_MAX_GAP = 64 << 10  # one request fetches small adjacent files; large files are never read whole
_MAX_FETCH = 4 << 20
_COUNTED_BYTES = 4 << 20  # in files of up to this size frames are counted, if the header does not say it


@dataclass(frozen=True, slots=True)
class MediaFilter:
    """Selects media files.

    Attributes:
        strategy: ``"EXTENSION"`` selects files with a usual extension, ``"GLOB"`` files whose name matches a
            pattern, ``"HEADER"`` all files that begin like an image.
        patterns: Patterns for ``"GLOB"``. They match ``samplekey.part`` in prepared datasets and the relative
            path in plain folders; ``*`` also matches slashes.

    Raises:
        ConfigError: ``"GLOB"`` has no patterns, or another strategy has some.

    Example:
        >>> MediaFilter("GLOB", ("*.left.jpg",)).matches("folder/0001.left.jpg")
        True
    """

    strategy: Literal["EXTENSION", "HEADER", "GLOB"]
    patterns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.strategy == "GLOB") != bool(self.patterns) or not all(self.patterns):
            raise ConfigError(
                f"the media filter {self.strategy} has the patterns {self.patterns!r}",
                hint="GLOB needs one or more, such as *.jpg; the other filters have none",
            )

    def matches(self, name: str) -> bool:
        """Return True if the header of a file is to be read."""
        if self.strategy == "GLOB":
            return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.patterns)
        return self.strategy == "HEADER" or _extension(name) in _IMAGES | _AV


class MediaFile(NamedTuple):
    """Location of a file: ``size`` bytes from ``start`` in the object at ``path``, of version ``etag``."""

    name: str
    path: str
    start: int
    size: int
    etag: str | None

    @property
    def is_av(self) -> bool:
        """True if the extension is one of audio or video."""
        return _extension(self.name) in _AV


def read_image(data: bytes) -> ImageMetadata | None:
    """Read the header of an image; return None for data that is no image."""
    return _header(io.BytesIO(data))


def read_images(store: Store, files: Sequence[MediaFile]) -> list[ImageMetadata | None]:
    """Read the headers of images; return None for files that are not images.

    The first 64 KiB of all files, which must fit into memory, are requested concurrently, adjacent files
    together. More is read only if Pillow needs it.
    """
    numbers: dict[str, int] = {}
    objects = np.array([numbers.setdefault(file.path, len(numbers)) for file in files], dtype=np.int64)
    starts = np.array([file.start for file in files], dtype=np.int64)
    stops = starts + np.array([min(file.size, _HEAD_BYTES) for file in files], dtype=np.int64)
    plan = plan_fetches(objects, starts, stops, stops > starts, max_gap=_MAX_GAP, max_bytes=_MAX_FETCH)
    paths, etags = list(numbers), {file.path: file.etag for file in files}
    fetcher = shared_fetcher()
    bodies = [
        fetcher.submit(store, path, ByteRange(int(start), int(stop)), etag=etags[path])
        for path, start, stop in zip(
            map(paths.__getitem__, plan.objects), plan.starts, plan.stops, strict=True
        )
    ]
    found: list[ImageMetadata | None] = []
    for file, fetch, stop in zip(files, plan.fetch_of, stops, strict=True):
        if file.size == 0:
            found.append(None)
            continue
        first = int(plan.starts[fetch])
        head = bodies[fetch].result().data[file.start - first : int(stop) - first]
        found.append(_header(cast("BinaryIO", _Payload(store, file, head))))
    return found


def read_av(store: Store, file: MediaFile) -> tuple[AVMetadata, FileLayout]:
    """Read the metadata of a video or audio file, and where the bytes are that opening it needs, by range.

    The number of frames is left out where the header does not say it: counting would read the whole file.
    Raises DecodeError if the file cannot be read, MissingPackageError if PyAV is not installed.
    """
    payload = _Payload(store, file, memoryview(b""))
    stream = cast("BinaryIO", payload)
    with open_container(stream) as container:
        read_index(container)
    layout = FileLayout.of_reads(file.size, payload.reads)
    frames = file.size <= _COUNTED_BYTES or file.name.lower().endswith((".mp4", ".mov", ".m4v", ".avi"))
    return AVDecoder(stream).get_metadata(get_video_frame_count=frames), layout


def _header(file: BinaryIO) -> ImageMetadata | None:
    try:
        with Image.open(file, formats=_FORMATS) as image:
            return ImageMetadata(image.width, image.height, str(image.format), image.mode)
    except StorageError:
        raise  # an OSError too, but Pillow has not failed
    except (OSError, ValueError, SyntaxError, EOFError, OverflowError, Image.DecompressionBombError):
        return None


def _extension(name: str) -> str:
    return posixpath.splitext(name)[1][1:].lower()


class _Payload:
    """A byte range of an object, with what Pillow needs of a file.

    Bytes outside the present window are read in growing windows, and never more than the file has, whatever
    length a damaged header claims.
    """

    def __init__(self, store: Store, file: MediaFile, head: memoryview) -> None:
        self._store, self._file = store, file
        self._window, self._window_start, self._position = head, 0, 0
        self._length = _HEAD_BYTES
        self.reads: list[ByteRange] = []  # what was asked for

    def read(self, size: int | None = -1) -> bytes:
        """Return bytes from the position on, fewer at the end."""
        left = max(self._file.size - self._position, 0)
        size = left if size is None or size < 0 else min(size, left)
        start = self._position - self._window_start
        if size and not 0 <= start <= start + size <= len(self._window):
            self._length *= 2
            first = self._file.start + self._position
            stop = first + min(max(size, self._length), left)
            body = self._store.get_range(self._file.path, ByteRange(first, stop), etag=self._file.etag)
            self._window, self._window_start, start = body.data, self._position, 0
        self.reads.append(ByteRange(self._position, self._position + size))
        self._position += size
        return bytes(self._window[start : start + size])

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position, and return it."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.size}[whence]
        if base + offset < 0:
            raise ValueError(f"byte {base + offset} is before the file")
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position
