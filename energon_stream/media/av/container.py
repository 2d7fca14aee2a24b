"""Containers of video and audio, opened with PyAV."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO

from energon_stream.errors import DecodeError, EnergonStreamError
from energon_stream.imports import LazyModule
from energon_stream.limits import Limits
from energon_stream.media.file_layout import check_index

if TYPE_CHECKING:
    import av
else:
    av = LazyModule("av", "av")

AV_EXTENSIONS: frozenset[str] = frozenset({
    "aac", "avi", "flac", "flv", "m4a", "m4v", "mkv", "mov", "mp3", "mp4", "ogg", "opus", "wav", "webm",
})  # fmt: skip
"""Extensions of parts that are decoded as video or audio."""


_FORMATS = "aac,ac3,aiff,amr,asf,au,avi,caf,eac3,flac,flv,matroska,mov,mp3,mpeg,mpegts,ogg,w64,wav,wv"
"""Demuxers of the extensions, and of what is often named like them. Others open files and ports by name."""
_FIRST_BOXES = 8
_HINT = "check whether the file is damaged or cut off, for example with ffprobe"
_OTHERS = {
    b"ffconcat": "a list of files for ffmpeg",
    b"v=0": "a session of network streams (SDP)",
    b"#extm3u": "a playlist (HLS)",
    b"<": "HTML or XML, such as an error page or a playlist",
    b"{": "JSON",
    b"version http": "a pointer of Git LFS to the real file",
    b"\x89png": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"gif8": "a GIF image",
}


@contextmanager
def open_container(stream: BinaryIO, formats: str = _FORMATS, limits: Limits | None = None) -> Iterator[Any]:
    """Open an ``av.container.InputContainer`` within a ``with`` statement.

    ``formats`` names the demuxers that may open it, with commas between them. None of them opens other files.
    """
    name = getattr(stream, "name", None)
    with translated_errors(name), unclosed_container(stream, formats, limits) as container:
        yield container


def is_rotated(data: bytes) -> bool:
    """Return whether players turn a video's frames, by its first one. Raises DecodeError."""
    with open_container(io.BytesIO(data)) as container:
        frames = container.decode(video=0) if container.streams.video else ()
        return any(frame.rotation for frame in islice(frames, 1))


def unclosed_container(stream: BinaryIO, formats: str = _FORMATS, limits: Limits | None = None) -> Any:
    """Return an ``av.container.InputContainer``; see :func:`open_container`. Raises DecodeError."""
    where = getattr(stream, "name", None)
    most = (limits or Limits.from_environment()).image_pixels
    options = {"format_whitelist": formats, "protocol_whitelist": "", "max_pixels": str(most)}
    with translated_errors(where):
        far = not getattr(stream, "is_local", True)  # its many fragments would cost requests
        check_index(partial(read_at, stream), stream.seek(0, io.SEEK_END), _FIRST_BOXES if far else None)
        stream.seek(0)
        try:
            return av.open(stream, metadata_errors="replace", options=options)
        except (av.error.ArgumentError, av.error.InvalidDataError) as error:
            stream.seek(0)
            head = stream.read(16)
            known = (f"is {what}" for begin, what in _OTHERS.items() if head.lower().startswith(begin))
            looks = next(known, f"begins with {bytes(head)!r}")
            problem = f"the video or audio cannot be decoded: the file {looks}"
            raise DecodeError(problem, where=where, hint=_HINT) from error


@contextmanager
def translated_errors(where: str | None = None) -> Iterator[None]:
    """Turn the errors of PyAV within a ``with`` statement into DecodeError; ``where`` names the file."""
    try:
        yield
    except EnergonStreamError:
        raise
    # PyAV raises the last two for streams that begin in the midst of a file, and for rare forms of samples.
    except (av.error.FFmpegError, EOFError, IndexError, ValueError) as error:
        raise DecodeError(
            f"the video or audio cannot be decoded: {type(error).__name__}: {error}",
            where=where,
            hint=_HINT,
        ) from error


def read_at(stream: BinaryIO, position: int, length: int) -> bytes:
    """Return bytes of a file from a position on, fewer at its end."""
    stream.seek(position)
    found = b""
    while len(found) < length and (data := stream.read(length - len(found))):
        found += data
    return found


def only_stream(container: Any, kind: str) -> Any:
    """Return the first video or audio stream, and let demuxers leave out all others, or raise DecodeError."""
    found = first_stream(container, kind)
    if found is None:
        kinds = ", ".join(sorted({stream.type for stream in container.streams})) or "no streams"
        raise DecodeError(f"the file has no {kind} stream; it has {kinds}")
    if found.codec_context is None:
        raise DecodeError(f"the {kind} has a codec that libav does not know")
    if not is_matroska(container):  # its streams share blocks of bytes, and a first packet would be lost
        discard = type(found.discard)
        for stream in container.streams:
            stream.discard = discard.default if stream.index == found.index else discard.all
    # Threads of libav would not survive a fork, and the cores belong to the worker processes.
    found.codec_context.thread_type = "NONE"
    found.codec_context.thread_count = 1
    return found


def is_matroska(container: Any) -> bool:
    """Return True for mkv and webm, of which the index has the key frames of the video alone."""
    return "matroska" in container.format.name


def read_index(container: Any) -> None:
    """Let the demuxer read its index, or the end of the file, which some do only when they first seek."""
    is_flac = container.format.name == "flac"  # it reads the end only for a time that it does not know
    with contextlib.suppress(av.error.FFmpegError):
        container.seek((container.duration or 0) // 2 if is_flac else 0, backward=True)


def first_stream(container: Any, kind: str) -> Any | None:
    """Return the first stream of a kind, without cover images of audio files; None if there is none."""
    for stream in getattr(container.streams, kind):
        if not stream.disposition & stream.disposition.attached_pic:
            return stream
    return None


def as_stream(file: BinaryIO | bytes | memoryview) -> BinaryIO:
    """Return a file that can be read and moved in, of a file or of bytes."""
    if isinstance(file, (bytes, bytearray, memoryview)):
        return io.BytesIO(file)
    return file
