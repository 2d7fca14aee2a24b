"""Names for video and audio. They can be imported and compared with; this version decodes neither."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from energon_stream.errors import ConfigError

__all__ = ["AVData", "AVDecoder", "VideoData"]


class AVDecoder:
    """Reads frames and samples of a video or audio file, in Megatron-Energon.

    Raises:
        ConfigError: Always: this version has no decoder.
    """

    def __init__(self, stream: Any, suppress_warnings: bool = False) -> None:
        raise ConfigError(
            "video and audio cannot be decoded by this version",
            hint="set `decoder = SampleDecoder(av_decode=None)` on the task encoder, and decode the bytes there",
        )


@dataclass
class AVData:
    """Clips of a file, for code that makes or takes such objects.

    Attributes:
        video_clips: Tensors of shape ``(frames, channels, height, width)``.
        video_timestamps: Begin and end of each, in seconds.
        audio_clips: Tensors of shape ``(channels, samples)``.
        audio_timestamps: Begin and end of each, in seconds.
    """

    video_clips: list[Any] | None = None
    video_timestamps: list[tuple[float, float]] | None = None
    audio_clips: list[Any] | None = None
    audio_timestamps: list[tuple[float, float]] | None = None


class VideoData(AVData):
    """An older name."""
