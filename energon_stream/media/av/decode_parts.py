"""Decodes parts of samples that are video or audio."""

from __future__ import annotations

from typing import Any, BinaryIO, Literal, TypeAlias

from energon_stream.errors import ConfigError
from energon_stream.limits import Limits
from energon_stream.media.av.container import AV_EXTENSIONS, as_stream, unclosed_container
from energon_stream.media.av.decoder import AVDecoder

AVDecoderType: TypeAlias = Literal["torch", "AVDecoder", "pyav"]
AV_MODES: tuple[AVDecoderType, ...] = ("AVDecoder", "torch", "pyav")
"""Values of ``av_decode``."""


def decode_av(
    data: BinaryIO | bytes | memoryview,
    mode: AVDecoderType,
    with_audio: bool = False,
    limits: Limits | None = None,
) -> Any:
    """Decode a video or audio file.

    Args:
        data: The file.
        mode: ``"AVDecoder"`` for an ``AVDecoder``, ``"torch"`` for ``AVData`` with all frames or all audio,
            ``"pyav"`` for an open ``av.container.InputContainer``.
        with_audio: Whether ``"torch"`` decodes the audio of videos too.
        limits: Bounds on frames; see ``AVDecoder``.

    Raises:
        DecodeError: (``"torch"`` and ``"pyav"``.) The file is damaged.
        MissingPackageError: (``"torch"`` and ``"pyav"``.) PyAV is not installed.
    """
    stream = as_stream(data)
    if mode == "pyav":
        return unclosed_container(stream)
    decoder = AVDecoder(stream, limits=limits)
    return decoder if mode == "AVDecoder" else decoder.get_frames(with_audio)


class AVWebdatasetDecoder:
    """Decodes parts with the extensions of video and audio, for pipelines of WebDataset.

    Args:
        video_decode_audio: Whether ``"torch"`` decodes the audio of videos too.
        av_decode: Form of the result; see ``SampleDecoder``.

    Raises:
        ConfigError: The form is unknown.

    Example:
        >>> decode = AVWebdatasetDecoder(video_decode_audio=False, av_decode="torch")
        >>> with open("clip.mp4", "rb") as file:
        ...     decode("mp4", file.read()).video_timestamps
        [(0.0, 2.0)]
    """

    def __init__(self, video_decode_audio: bool, av_decode: AVDecoderType = "AVDecoder") -> None:
        if av_decode not in AV_MODES:
            raise ConfigError(f"av_decode is {av_decode!r}", hint=f"use one of {', '.join(AV_MODES)}")
        self.video_decode_audio = video_decode_audio
        self.av_decode: AVDecoderType = av_decode

    def read_av_data(self, data: bytes) -> Any:
        """Decode a file."""
        return decode_av(data, self.av_decode, self.video_decode_audio)

    def __call__(self, key: str, data: bytes) -> Any:
        """Decode a part by its name; return None if the extension is not one of video or audio."""
        extension = key.lower().rpartition(".")[2]
        return self.read_av_data(data) if extension in AV_EXTENSIONS else None
