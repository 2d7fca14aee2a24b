"""Decodes clips of an audio stream."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from energon_stream.errors import DecodeError
from energon_stream.imports import LazyModule
from energon_stream.media.av.seeking import LAST, MediaStream, NeedsBegin, decoded, ticks

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from energon_stream.media.av.video import Range
    from energon_stream.storage import ByteRange
else:
    torch = LazyModule("torch")

AudioUnit: TypeAlias = Literal["samples", "seconds"]

_PREROLL = 1.0  # seconds decoded before a clip: lossy codecs carry sound over from packets before
_PLAIN_PREROLL = 0.25  # without a codec: two frames, to know the place of one
_EVERYTHING = (-math.inf, math.inf)


class AudioClip(NamedTuple):
    """Samples of a clip, and when it begins and ends, in seconds."""

    samples: torch.Tensor
    timestamps: Range


class _AudioFrame(NamedTuple):
    """Decoded samples, the number of the first one, and the time at which they end."""

    samples: NDArray[Any]
    number: int
    end: float


class AudioStream(MediaStream):
    """The audio stream of an open container; see :class:`MediaStream`. Raises DecodeError without a rate."""

    unit = "samples"

    def __init__(self, container: Any, stream: Any) -> None:
        super().__init__(container, stream)
        self.rate: int = int(stream.codec_context.sample_rate)  # samples per second
        if not self.rate or not stream.time_base:
            raise DecodeError("the audio has no sample rate")
        self._tick = float(stream.time_base) * self.rate  # of the stream's clock, in samples
        self.error: float = (
            float(stream.time_base) if self._tick > 1 else 0.0
        )  # of places after a seek, in seconds
        self._delay: int = stream.codec_context.delay  # samples before the start; the decoder changes it
        is_plain = stream.codec_context.name.startswith("pcm_")
        self._preroll = _PLAIN_PREROLL if is_plain else _PREROLL
        # The demuxer of wav goes by a rate of bytes that is rounded.
        self._seeks = is_plain or container.format.name != "wav"
        self._is_at_begin = False

    def clip(self, clip_range: Range, unit: AudioUnit, *, from_begin: bool = False) -> AudioClip | None:
        """Decode a clip, from the begin of the range to just before its end; None after the audio.

        Raises NeedsBegin if seeking does not lead there: open the container anew, and set ``from_begin``.
        """
        begin, end = self._seconds(clip_range, unit)
        first, stop = self._number(begin), self._number(end)
        found: list[NDArray[Any]] = []
        start, piece = None, None
        for piece in self._pieces(begin, end, from_begin):
            start = piece.number if start is None else start
            part = piece.samples[:, max(first - piece.number, 0) : max(stop - piece.number, 0)]
            if found and len(part) != len(found[0]):
                raise DecodeError(f"the audio changes from {len(found[0])} to {len(part)} channels")
            if part.shape[1] or not found:
                found.append(part)
        self.is_short |= self._packets.is_at_end
        if piece is None or start is None or first >= piece.number + piece.samples.shape[1]:
            return None
        samples = np.concatenate(found, axis=1)  # a copy, also of one piece
        end = min(end, piece.end)
        return AudioClip(torch.from_numpy(samples), (min(max(begin, start / self.rate), end), end))

    def bytes_of(self, clip_range: Range, unit: AudioUnit, size: int) -> list[ByteRange]:
        """Return the bytes of the file, which has ``size`` of them, that a clip needs."""
        return self._packets.bytes_of_times(*self._ticks(*self._seconds(clip_range, unit)), size)

    def count(self) -> int:
        """Return the number of samples of each channel, by decoding them all."""
        return sum(piece.samples.shape[1] for piece in self._pieces(*_EVERYTHING))

    def begin(self) -> float:
        """Return the time in seconds of the first sample."""
        return next((piece.number / self.rate for piece in self._pieces(*_EVERYTHING)), 0.0)

    def end(self) -> float:
        """Return the time in seconds at which the audio ends, by reading the last packets."""
        end = max(map(_end, self._packets.from_time(LAST)), default=0)
        return float(end * self._stream.time_base)

    def _seconds(self, clip_range: Range, unit: AudioUnit) -> Range:
        begin, end = self._checked(clip_range, unit)
        if unit == "samples":
            begin, end = (at if math.isinf(at) else int(at) / self.rate for at in (begin, end))
        return float(begin), float(end)

    def _number(self, seconds: float) -> int:
        return round(min(max(seconds * self.rate, -LAST), LAST))

    def _ticks(self, begin: float, end: float) -> tuple[int, int]:
        base = self._stream.time_base
        # A coarse clock may say that a packet begins after the end, and it begins just before.
        return ticks(begin - self._preroll, base), ticks(end, base) + (self._tick > 1)

    def _pieces(self, begin: float, end: float, from_begin: bool = False) -> Iterator[_AudioFrame]:
        frames = decoded(self._stream, self._read(*self._ticks(begin, end), from_begin))
        head = list(self._up_to_place(frames))
        number = self._first_number(head) if head else 0
        for frame in itertools.chain(head, frames):
            samples = _samples(frame)
            if frame.sample_rate != self.rate:
                raise DecodeError(f"the audio changes from {self.rate:,} to {frame.sample_rate:,} samples/s")
            exact = number if frame.pts is None else frame.pts * self._tick
            if abs(exact - number) > max(self._tick, 1):
                number = round(exact)  # there is a gap
            ends = (number + samples.shape[1]) / self.rate
            if frame.pts is not None and frame.duration:
                ends = float((frame.pts + frame.duration) * self._stream.time_base)
            yield _AudioFrame(samples, number, ends)
            number += samples.shape[1]

    def _read(self, first: int, last: int, from_begin: bool) -> Iterator[Any]:
        """Yield packets. At the begin of the file they are all, also those before its start.

        Codecs need those, and drop their sound. Demuxers say what to drop only before the first seek.
        """
        start = self._packets.start
        self._is_at_begin = from_begin or not self._seeks or first <= start
        if self._is_at_begin and self._packets.is_moved:
            raise NeedsBegin
        packets = self._packets.from_time(min(first, start) if self._is_at_begin else first, last)
        if self._is_at_begin:
            if not self._seeks and first > start:
                packets = itertools.dropwhile(lambda found: _end(found) <= first, packets)
        else:
            key = next(packets, None)
            if key is not None and key.pts is not None and key.pts > first:
                raise NeedsBegin
            packets = packets if key is None else itertools.chain([key], packets)
        yield from packets

    def _up_to_place(self, frames: Iterator[Any]) -> Iterator[Any]:
        """Yield frames up to one whose time counts: after a seek, some decoders cut off the first one."""
        for number, frame in enumerate(frames):
            yield frame
            if frame.pts is not None and (number or self._is_at_begin):
                return

    def _first_number(self, head: Sequence[Any]) -> int:
        """Return the number of the first sample, by the last frame of some."""
        *before, frame = head
        if frame.pts is None and self._is_at_begin:
            return 0
        if frame.pts is None:
            raise NeedsBegin
        exact = float(frame.pts * self._tick)
        number = round(exact)
        # Where the clock is coarse, frames are counted: those of most codecs are equal.
        if self._tick > 1 and frame.samples and not self._is_at_begin:
            start = round(self._packets.start * self._tick) - self._delay
            counted = start + round((exact - start) / frame.samples) * frame.samples
            number = counted if abs(exact - counted) <= self._tick else number
        return number - sum(int(frame.samples) for frame in before)


def _end(packet: Any) -> int:
    return 0 if packet.pts is None else int(packet.pts + (packet.duration or 0))


def _samples(frame: Any) -> NDArray[Any]:
    """Return an array of shape (channels, samples)."""
    samples: NDArray[Any] = frame.to_ndarray()
    return samples if frame.format.is_planar else samples.reshape(frame.samples, -1).T
