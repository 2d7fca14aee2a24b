"""Small video and audio files, made with PyAV, of which each frame says its number."""

from __future__ import annotations

import os
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from energon_stream.imports import LazyModule

if TYPE_CHECKING:
    import av
    from numpy.typing import NDArray
else:
    av = LazyModule("av", "av")

_MARK = 8  # pixels of the side of a square that shows a bit


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoFile:
    """Form of a video file for tests and examples.

    Attributes:
        frames: Number of frames; 0 for a file of audio alone.
        fps: Frames per second.
        size: Width and height in pixels, both even; at least 64 by 8.
        codec: Name of libav's encoder.
        group: Distance of key frames, in frames.
        b_frames: Most frames in a row that are decoded after one that is displayed later.
        milliseconds: Begin of each frame, for a variable frame rate; None for a constant one.
        audio_codec: Name of libav's encoder; None for a file without audio.
        audio_rate: Samples per second.
        audio_channels: 1 or 2.
        audio_seconds: Length of the audio; None for that of the video.
        noise: Largest random change of a pixel, which makes a file large.
        container: Name of libav's muxer; None for that of the file's extension.
        options: Options of the muxer.

    Example:
        >>> from energon_stream.testing.media_files import VideoFile
        >>> VideoFile(frames=50, audio_codec="aac").write("tone.mp4")
    """

    frames: int = 50
    fps: int = 25
    size: tuple[int, int] = (64, 48)
    codec: str = "libx264"
    group: int = 12
    b_frames: int = 2
    milliseconds: tuple[int, ...] | None = None
    audio_codec: str | None = None
    audio_rate: int = 16_000
    audio_channels: int = 1
    audio_seconds: float | None = None
    noise: int = 0
    container: str | None = None
    options: tuple[tuple[str, str], ...] = ()

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the file. Raises MissingPackageError if PyAV is not installed."""
        with av.open(os.fspath(path), "w", format=self.container, options=dict(self.options)) as container:
            video = self._video_stream(container) if self.frames else None
            audio = self.audio_codec and container.add_stream(self.audio_codec, rate=self.audio_rate)
            if audio:
                audio.layout = "stereo" if self.audio_channels == 2 else "mono"
                if self.audio_codec == "aac":
                    audio.options = {"aac_coder": "fast"}
            packets = [*self._video_packets(video)] if video else []
            packets += self._audio_packets(audio) if audio else []
            for packet in sorted(packets, key=lambda packet: packet.dts * packet.time_base):
                container.mux(packet)

    def _video_stream(self, container: Any) -> Any:
        stream = container.add_stream(self.codec, rate=self.fps)
        stream.width, stream.height = self.size
        stream.pix_fmt = "yuv420p"
        stream.codec_context.gop_size = self.group
        stream.codec_context.max_b_frames = self.b_frames
        stream.codec_context.thread_count = 1  # the bytes of any machine; threads of libvpx would spin
        if self.codec == "libx264":
            parameters = f"keyint={self.group}:scenecut=0:bframes={self.b_frames}"
            stream.options = {"x264-params": parameters, "preset": "ultrafast"}
        elif self.codec.startswith("libvpx"):
            stream.options = {"deadline": "realtime", "cpu-used": "8"}
        if self.milliseconds is not None:
            stream.codec_context.time_base = Fraction(1, 1000)
        return stream

    def _video_packets(self, stream: Any) -> Any:
        for number in range(self.frames):
            image = numbered_frame(number, *self.size, noise=self.noise)
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            if self.milliseconds is None:
                frame.pts, frame.time_base = number, Fraction(1, self.fps)
            else:
                frame.pts, frame.time_base = self.milliseconds[number], Fraction(1, 1000)
            yield from stream.encode(frame)
        yield from stream.encode(None)

    def _audio_packets(self, stream: Any) -> Any:
        length = self.frames / self.fps if self.audio_seconds is None else self.audio_seconds
        layout = stream.layout
        samples = tone(int(length * self.audio_rate), self.audio_rate, self.audio_channels)
        frame = av.AudioFrame.from_ndarray(samples.T.reshape(1, -1).copy(), format="s16", layout=layout)
        frame.rate, frame.pts, frame.time_base = self.audio_rate, 0, Fraction(1, self.audio_rate)
        codec = stream.codec_context
        resampler = av.AudioResampler(codec.format.name, layout, self.audio_rate, codec.frame_size or 1024)
        for part in (frame, None):
            for piece in resampler.resample(part):
                yield from stream.encode(piece)
        yield from stream.encode(None)


def numbered_frame(number: int, width: int, height: int, *, noise: int = 0) -> NDArray[np.uint8]:
    """Return an image of shape ``(height, width, 3)`` that shows a number below 256 in its first rows.

    Example:
        >>> numbered_frame(5, 64, 48).shape
        (48, 64, 3)
    """
    image = np.zeros((height, width, 3), np.uint8)
    image[..., 0] = number * 5 % 256
    image[..., 1] = np.linspace(0, 255, width).astype(np.uint8)[None]
    image[..., 2] = np.linspace(0, 255, height).astype(np.uint8)[:, None]
    if noise:
        change = np.random.default_rng(number).integers(0, noise, image.shape)
        image = np.clip(image + change, 0, 255).astype(np.uint8)
    for bit in range(8):
        image[:_MARK, bit * _MARK : (bit + 1) * _MARK] = 255 if number >> bit & 1 else 0
    return image


def number_of_frame(frame: Any) -> int:
    """Return the number that a decoded frame of shape ``(3, height, width)`` shows.

    Example:
        >>> import torch
        >>> number_of_frame(torch.from_numpy(numbered_frame(5, 64, 48)).permute(2, 0, 1))
        5
    """
    marks = frame[:, :_MARK, : 8 * _MARK].float().mean(0).reshape(_MARK, 8, _MARK).mean((0, 2))
    return sum(1 << bit for bit in range(8) if marks[bit] > 128)


def tone(samples: int, rate: int, channels: int = 1) -> NDArray[np.int16]:
    """Return a rising tone, of shape ``(channels, samples)``, in which no two places are equal.

    Example:
        >>> tone(100, 16_000, 2).shape
        (2, 100)
    """
    time = np.arange(samples) / rate
    waves = [np.sin(2 * np.pi * (220 + 110 * channel + 40 * time) * time) for channel in range(channels)]
    return (np.stack(waves) * 20_000).astype(np.int16)
