"""Decodes clips of an audio stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from energon_stream.errors import DecodeError
from energon_stream.imports import LazyModule
from energon_stream.media.av.seeking import LAST, MediaStream, decoded, ticks

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from energon_stream.media.av.video import Range
    from energon_stream.storage import ByteRange
else:
    torch = LazyModule("torch")

AudioUnit: TypeAlias = Literal["samples", "seconds"]

_PREROLL = 0.25  # seconds decoded before a clip: lossy codecs carry sound over from packets before


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
        if not self.rate:
            raise DecodeError("the audio has no sample rate")

    def clip(self, clip_range: Range, unit: AudioUnit) -> AudioClip | None:
        """Decode a clip, from the begin of the range to just before its end; None after the audio."""
        begin, end = self._seconds(clip_range, unit)
        first, stop = self._number(begin), self._number(end)
        found: list[NDArray[Any]] = []
        start, piece = None, None
        for piece in self._pieces(begin, end):
            start = piece.number if start is None else start
            part = piece.samples[:, max(first - piece.number, 0) : max(stop - piece.number, 0)]
            if part.shape[1] or not found:
                found.append(part)
        self.is_short |= self._packets.is_at_end
        if piece is None or start is None or first >= piece.number + piece.samples.shape[1]:
            return None
        samples = np.concatenate(found, axis=1)  # a copy, also of one piece
        return AudioClip(torch.from_numpy(samples), (max(begin, start / self.rate), min(end, piece.end)))

    def bytes_of(self, clip_range: Range, unit: AudioUnit, size: int) -> list[ByteRange]:
        """Return the bytes of the file, which has ``size`` of them, that a clip needs."""
        return self._packets.bytes_of_times(*self._ticks(*self._seconds(clip_range, unit)), size)

    def count(self) -> int:
        """Return the number of samples of each channel, by decoding them all."""
        return sum(piece.samples.shape[1] for piece in self._pieces(0.0, float("inf")))

    def end(self) -> float:
        """Return the time in seconds at which the audio ends, by reading the last packets."""
        end = 0
        for packet in self._packets.from_time(LAST):
            if packet.pts is not None:
                end = max(end, packet.pts + (packet.duration or 0))
        return float(end * self._stream.time_base)

    def _seconds(self, clip_range: Range, unit: AudioUnit) -> Range:
        begin, end = self._checked(clip_range, unit)
        if unit == "samples":
            begin, end = int(max(begin, 0)) / self.rate, end if end == float("inf") else int(end) / self.rate
        return max(float(begin), 0.0), float(end)

    def _number(self, seconds: float) -> int:
        return LAST if seconds == float("inf") else round(seconds * self.rate)

    def _ticks(self, begin: float, end: float) -> tuple[int, int]:
        base = self._stream.time_base
        return max(ticks(begin - _PREROLL, base), self._packets.start), ticks(end, base)

    def _pieces(self, begin: float, end: float) -> Iterator[_AudioFrame]:
        expected = None
        for frame in decoded(self._stream, self._packets.from_time(*self._ticks(begin, end))):
            samples = _samples(frame)
            number = self._place(frame, expected)
            expected = number + samples.shape[1]
            ends = expected / self.rate
            if frame.pts is not None and frame.duration:
                ends = float((frame.pts + frame.duration) * self._stream.time_base)
            yield _AudioFrame(samples, number, ends)

    def _place(self, frame: Any, expected: int | None) -> int:
        """Return the number of a frame's first sample. Clocks of some containers are coarser than samples."""
        if frame.pts is None:
            return expected or 0
        tick = float(self._stream.time_base) * self.rate
        exact = frame.pts * tick
        if expected is None and tick > 1:  # frames have equal lengths, so count them
            start = self._packets.start * tick
            expected = round(start) + round((exact - start) / frame.samples) * frame.samples
        return expected if expected is not None and abs(exact - expected) <= max(tick, 1) else round(exact)


def _samples(frame: Any) -> NDArray[Any]:
    """Return an array of shape (channels, samples)."""
    samples: NDArray[Any] = frame.to_ndarray()
    return samples if frame.format.is_planar else samples.reshape(frame.samples, -1).T
