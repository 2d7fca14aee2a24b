"""Decoded clips of a video or audio file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(kw_only=True)
class AVData:
    """Clips of a file.

    Attributes:
        video_clips: A ``uint8`` tensor for each clip, of shape ``(frames, 3, height, width)``, RGB, 0 to 255.
        video_timestamps: Begin of the first and end of the last frame of each clip, in seconds.
        audio_clips: A tensor for each clip, of shape ``(channels, samples)``. The type is that of the codec:
            ``float32`` in -1 to 1 for most, ``int16`` or ``int32`` for WAV and FLAC.
        audio_timestamps: Begin and end of each clip, in seconds.

    Example:
        >>> AVData(video_timestamps=[(0.0, 1.5)]).video_timestamps
        [(0.0, 1.5)]
    """

    video_clips: list[torch.Tensor] | None = None
    video_timestamps: list[tuple[float, float]] | None = None
    audio_clips: list[torch.Tensor] | None = None
    audio_timestamps: list[tuple[float, float]] | None = None


class VideoData(AVData):
    """An older name of ``AVData``.

    Example:
        >>> isinstance(VideoData(), AVData)
        True
    """
