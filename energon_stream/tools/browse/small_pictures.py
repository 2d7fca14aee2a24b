"""Small pictures of images, and of videos: the first frame that can be decoded alone, read by range."""

from __future__ import annotations

import io
from contextlib import ExitStack, suppress
from typing import Any, BinaryIO, cast

from energon_stream.decode.images import IMAGE_MODES, ImageTooLargeError, UnsafeImageError, decode_image
from energon_stream.errors import DecodeError, PartLimitError
from energon_stream.limits import Limits
from energon_stream.media.av.container import only_stream, open_container
from energon_stream.media.seekable import SeekableFile
from energon_stream.storage import ByteRange
from energon_stream.tools.browse.memory_budget import ANSWERS
from energon_stream.tools.browse.shown_parts import ShownPart

_PIXEL_BYTES = 20
"""Bytes that a decoded image takes for each of its pixels, at most."""
_BLOCK = 256 << 10
_MOST = 32 << 20
"""Bytes of a video that are read: those of an index of hours, and of a frame."""
_FORMATS = "mov,matroska,ogg"
"""Demuxers of the videos that browsers play. Others, such as playlists, might name files of this machine."""


def draw(data: bytes, side: int, limits: Limits, where: str) -> bytes:
    """Return an image as a JPEG file that fits a square of ``side`` pixels.

    Example:
        >>> from PIL import Image
        >>> from energon_stream.limits import Limits
        >>> buffer = io.BytesIO()
        >>> Image.new("RGB", (640, 320)).save(buffer, "PNG")
        >>> Image.open(io.BytesIO(draw(buffer.getvalue(), 100, Limits(), "here"))).size
        (100, 50)
    """
    try:
        image = decode_image(data, IMAGE_MODES["pilrgb"], limits.image_pixels, least_size=(side, side))
        image.thumbnail((side, side))
    except ImageTooLargeError as error:
        raise PartLimitError(**limits.exceeded("image_pixels", str(error)), where=where) from error
    except UnsafeImageError as error:
        raise DecodeError(f"{error} images are programs, which are not run", where=where) from error
    except Exception as error:  # whatever Pillow raises for a damaged file
        raise DecodeError(f"the image cannot be decoded: {error}", where=where) from error
    return _as_jpeg(image)


def bytes_to_draw(data: bytes, limits: Limits) -> int:
    """Return the bytes that an image takes while it is drawn: at most those of the most pixels."""
    from PIL import Image

    pixels = limits.image_pixels
    if data[8:12] != b"WEBP":  # Pillow takes their memory when it opens the file
        with suppress(Exception), Image.open(io.BytesIO(data)) as image:
            pixels = min(pixels, image.width * image.height)
    return len(data) + _PIXEL_BYTES * pixels


def _as_jpeg(image: Any) -> bytes:
    drawn = io.BytesIO()
    image.save(drawn, "JPEG", quality=85)
    return drawn.getvalue()


def draw_first_frame(part: ShownPart, side: int, limits: Limits, where: str) -> bytes:
    """Return the first key frame of a video as a JPEG file that fits a square of ``side`` pixels.

    Raises PartLimitError if a frame has more pixels than the limits allow, DecodeError if the video is
    damaged or its first frame lies behind 32 MiB, and MissingPackageError without PyAV.
    """
    file = cast("BinaryIO", _PartFile(part, where))
    with open_container(file, formats=_FORMATS) as container, ExitStack() as stack:
        stream = only_stream(container, "video")
        _check_pixels(stream, limits, where)
        stack.enter_context(ANSWERS.taken(_MOST + _PIXEL_BYTES * stream.width * stream.height))
        stream.codec_context.skip_frame = "NONKEY"
        frame = next(container.decode(stream), None)
        if frame is None:
            raise DecodeError("the video has no frame that can be decoded alone", where=where)
        _check_pixels(frame, limits, where)
        scale = min(1.0, side / max(frame.width, frame.height))
        image = frame.to_image(
            width=max(1, round(frame.width * scale)), height=max(1, round(frame.height * scale))
        )
    return _as_jpeg(image)


def _check_pixels(found: object, limits: Limits, where: str) -> None:
    width, height = getattr(found, "width", 0), getattr(found, "height", 0)
    if width * height > limits.image_pixels:
        problem = f"the video has frames of {width:,} x {height:,} pixels"
        raise PartLimitError(**limits.exceeded("image_pixels", problem), where=where)


class _PartFile(SeekableFile):
    """A part as a file, which reads it by blocks and keeps them."""

    def __init__(self, part: ShownPart, name: str) -> None:
        super().__init__()
        self.name = name
        self._part = part
        self._blocks: dict[int, memoryview] = {}

    @property
    def size(self) -> int:
        """Number of bytes."""
        return self._part.size

    def read(self, size: int | None = -1, /) -> bytes:
        """Return bytes from the position on, to the end of a block at most."""
        if size is None or size < 0:
            return self.readall()
        number, begin = divmod(self._position, _BLOCK)
        if self._position >= self.size or not size:
            return b""
        if number not in self._blocks:
            if len(self._blocks) >= _MOST // _BLOCK:
                raise DecodeError(f"no frame was found in {_MOST:,} bytes of the video", where=self.name)
            first = number * _BLOCK
            self._blocks[number] = self._part.read(ByteRange(first, min(first + _BLOCK, self.size)))
        found = bytes(self._blocks[number][begin : begin + size])
        self._position += len(found)
        return found
