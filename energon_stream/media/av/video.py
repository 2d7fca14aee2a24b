"""Decodes clips of a video stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from energon_stream.errors import DecodeError
from energon_stream.imports import LazyModule
from energon_stream.media.av.seeking import LAST, MediaStream, decoded, ticks

if TYPE_CHECKING:
    import torch

    from energon_stream.storage import ByteRange
else:
    torch = LazyModule("torch")

VideoUnit: TypeAlias = Literal["frames", "seconds"]
Range: TypeAlias = tuple[float, float]
FrameSize: TypeAlias = tuple[int, int]


class VideoClip(NamedTuple):
    """Frames of a clip, and when the first one begins and the last one ends, in seconds."""

    frames: torch.Tensor
    timestamps: Range


class _FrameSpan(NamedTuple):
    """Frames of a clip, by number or by tick of the stream's clock; both ends belong to it."""

    by_number: bool
    first: int
    last: int


class VideoStream(MediaStream):
    """The video stream of an open container; see :class:`MediaStream`."""

    unit = "frames"

    def __init__(self, container: Any, stream: Any) -> None:
        super().__init__(container, stream)
        self._is_mov = container.format.name.startswith("mov")

    def clip(self, clip_range: Range, unit: VideoUnit, size: FrameSize | None) -> VideoClip | None:
        """Decode a clip, first and last frame included; a time means the frame that is displayed then.

        ``size`` is the width and height to which frames are scaled. Returns None after the end of the video.
        """
        wanted = self._wanted(clip_range, unit)
        frames: list[Any] = []
        begin = end = 0.0
        for frame in self._numbered(wanted) if wanted.by_number else self._timed(wanted):
            pts = _pts(frame)
            if not frames:
                begin = float(pts * self._stream.time_base)
            end = float((pts + self._length(frame)) * self._stream.time_base)
            frames.append(_pixels(frame, size))
        if wanted.by_number:
            self.is_short |= len(frames) < min(wanted.last, self._packets.count - 1) - wanted.first + 1
        else:
            self.is_short |= self._packets.is_at_end
        if not frames:
            return None
        return VideoClip(torch.from_numpy(np.stack(frames)).permute(0, 3, 1, 2), (begin, end))

    def span(self) -> Range:
        """Return when the first frame begins and the last one ends, in seconds."""
        stream = self._stream
        is_even = stream.average_rate == stream.guessed_rate and not self._packets.hidden
        length = float((stream.duration or 0) * stream.time_base) if self._is_mov and is_even else 0.0
        begin = float(self._packets.start * stream.time_base)
        return begin, begin + (length or self.end_of_last_group() or self.extent()[0])

    @property
    def frames(self) -> int:
        """Number of frames, hidden ones too, as far as header and index tell; 0 if they do not."""
        return self._packets.count

    def bytes_of(self, clip_range: Range, unit: VideoUnit, size: int) -> list[ByteRange]:
        """Return the bytes of the file, which has ``size`` of them, that a clip needs."""
        wanted = self._wanted(clip_range, unit)
        if wanted.by_number:
            return self._packets.bytes_of_numbers(wanted.first, wanted.last)
        return self._packets.bytes_of_times(wanted.first, wanted.last, size)

    def extent(self) -> tuple[float, int]:
        """Return the length in seconds and the number of frames, by reading all packets."""
        start, end, number = LAST, -LAST, 0
        for packet in self._packets.from_time(self._packets.start):
            number += 1
            pts = packet.dts if packet.pts is None else packet.pts
            if pts is not None:
                start, end = min(start, pts), max(end, pts + self._length(packet))
        if not number:
            raise DecodeError("the video has no frames")
        return float(max(end - start, 0) * self._stream.time_base), number

    def end_of_last_group(self) -> float:
        """Return the length in seconds, by reading the packets from the last key frame on."""
        end = self._packets.start
        for packet in self._packets.from_time(LAST):
            if packet.pts is not None:
                end = max(end, packet.pts + self._length(packet))
        return float((end - self._packets.start) * self._stream.time_base)

    def _wanted(self, clip_range: Range, unit: VideoUnit) -> _FrameSpan:
        first, last = self._checked(clip_range, unit)
        if unit == "frames":
            numbers = (int(max(first, 0)), int(min(last, LAST)))
            if self._packets.are_numbered:
                return _FrameSpan(True, *numbers)
            rate = self._stream.guessed_rate
            if not rate:
                raise DecodeError("frames cannot be counted: the file has no index and no frame rate")
            begin = float(self._packets.start * self._stream.time_base)
            first, last = (begin + float(number / rate) for number in numbers)
        base, start = self._stream.time_base, self._packets.start
        return _FrameSpan(False, *(max(ticks(time, base), start) for time in (first, last)))

    def _numbered(self, wanted: _FrameSpan) -> Iterator[Any]:
        if wanted.first >= self._packets.count:
            return
        number, key, packets = self._packets.from_number(wanted.first, wanted.last)
        for frame in self._decoded(packets):
            if key is not None and _pts(frame) < key:
                continue  # it needs the group before
            if wanted.first <= number <= wanted.last:
                yield frame
            number += 1

    def _timed(self, wanted: _FrameSpan) -> Iterator[Any]:
        held = None  # the last frame that begins at or before the clip's begin; the next one ends it
        # Clocks may begin before the first frame, which then counts as displayed from their begin on.
        is_first = wanted.first <= self._packets.start <= wanted.last
        for frame in self._decoded(self._packets.from_time(wanted.first, wanted.last)):
            pts = _pts(frame)
            if pts <= wanted.first:
                held = frame
                continue
            if held is not None:
                yield held
                held, is_first = None, False
            if is_first or pts <= wanted.last:
                yield frame
            is_first = False
        if held is not None:
            is_over = wanted.first >= _pts(held) + self._length(held)
            if not (self._packets.is_at_end and is_over):
                yield held

    def _decoded(self, packets: Iterator[Any]) -> Iterator[Any]:
        """Decode packets. Raises DecodeError if there are none, or none can be decoded."""
        frame = None
        for frame in decoded(self._stream, packets):
            yield frame
        if frame is None:
            raise DecodeError("no frame can be decoded: the video has no key frame there, or it is damaged")

    def _length(self, frame: Any) -> int:
        """Return for how many ticks a frame or packet is displayed."""
        if frame.duration:
            return int(frame.duration)
        rate = self._stream.average_rate
        return round(1 / rate / self._stream.time_base) if rate else 0


def _pts(frame: Any) -> int:
    pts = frame.dts if frame.pts is None else frame.pts
    if pts is None:
        raise DecodeError("a frame has no time")
    return int(pts)


def _pixels(frame: Any, size: FrameSize | None) -> Any:
    if size is None:
        return frame.to_ndarray(format="rgb24")
    return frame.reformat(width=size[0], height=size[1], format="rgb24").to_ndarray()
