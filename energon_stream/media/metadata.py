"""Metadata of images, video and audio, as ``index.sqlite`` has it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from types import NoneType
from typing import Any, ClassVar, Self

from energon_stream.errors import MetadataError

_TYPES: Mapping[str, tuple[type, ...]] = {  # of values by annotation
    "int": (int,),
    "str": (str,),
    "float | None": (float, int, NoneType),
    "int | None": (int, NoneType),
}


class MediaMetadataType(StrEnum):
    """Kind of media.

    Example:
        >>> MediaMetadataType("image")
        <MediaMetadataType.IMAGE: 'image'>
    """

    AV = "av"
    IMAGE = "image"


@dataclass(frozen=True, slots=True)
class MediaMetadataBase:
    """Base of the metadata of a media file.

    Attributes:
        metadata_type: Kind of media.

    Example:
        >>> from energon_stream import ImageMetadata
        >>> isinstance(ImageMetadata(640, 480, "JPEG", "RGB"), MediaMetadataBase)
        True
    """

    metadata_type: ClassVar[MediaMetadataType]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that are known, by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    @classmethod
    def from_dict(cls, payload: Mapping[str, Any]) -> Self:
        """Make an object from its fields.

        Raises:
            MetadataError: A field is missing or unknown, or has a wrong type.
        """
        types = {field.name: _TYPES[str(field.type)] for field in fields(cls)}
        try:
            made = cls(**payload)
        except TypeError as error:
            raise MetadataError(f"these are not the fields of {cls.__name__}: {payload!r:.200}") from error
        for name, value in payload.items():
            if isinstance(value, bool) or not isinstance(value, types[name]):
                raise MetadataError(f"the field {name!r} of {cls.__name__} is {value!r:.80}")
        return made

    def to_json(self) -> str:
        """Return the JSON text that ``index.sqlite`` stores."""
        return json.dumps(self.to_dict(), separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class ImageMetadata(MediaMetadataBase):
    """Size and format of an image.

    Attributes:
        width: Width in pixels.
        height: Height in pixels.
        format: Pillow's name of the file format, such as ``"PNG"``.
        mode: Pillow's name of the pixel format, such as ``"RGB"``.

    Example:
        >>> from energon_stream import ImageMetadata
        >>> ImageMetadata(640, 480, "JPEG", "RGB").to_json()
        '{"width":640,"height":480,"format":"JPEG","mode":"RGB"}'
    """

    metadata_type = MediaMetadataType.IMAGE

    width: int
    height: int
    format: str
    mode: str


@dataclass(frozen=True, slots=True)
class AVMetadata(MediaMetadataBase):
    """Length and format of video and audio; None for what is unknown or absent.

    Attributes:
        video_duration: Length of the video in seconds.
        video_num_frames: Number of frames.
        video_fps: Frames per second.
        video_width: Width in pixels.
        video_height: Height in pixels.
        audio_duration: Length of the audio in seconds.
        audio_channels: Number of channels.
        audio_sample_rate: Samples per second.
        audio_num_samples: Number of samples of each channel.

    Example:
        >>> from energon_stream import AVMetadata
        >>> AVMetadata(video_fps=25.0, audio_channels=2).to_dict()
        {'video_fps': 25.0, 'audio_channels': 2}
    """

    metadata_type = MediaMetadataType.AV

    video_duration: float | None = None
    video_num_frames: int | None = None
    video_fps: float | None = None
    video_width: int | None = None
    video_height: int | None = None
    audio_duration: float | None = None
    audio_channels: int | None = None
    audio_sample_rate: int | None = None
    audio_num_samples: int | None = None


_CLASSES: Mapping[str, type[MediaMetadataBase]] = {
    kind.metadata_type.value: kind for kind in (ImageMetadata, AVMetadata)
}


def media_fields(metadata_type: str) -> dict[str, str]:
    """Return the fields of a kind of metadata, with their annotations."""
    return {field.name: str(field.type) for field in fields(_class_of(metadata_type))}


def _class_of(kind: str) -> type[MediaMetadataBase]:
    if kind not in _CLASSES:
        raise MetadataError(f"the kind of media is {kind!r:.80}", hint=f"known are {', '.join(_CLASSES)}")
    return _CLASSES[kind]


def serialize_media_metadata(metadata: MediaMetadataBase) -> tuple[MediaMetadataType, str]:
    """Return the kind and the JSON text of metadata, as ``index.sqlite`` stores them.

    Example:
        >>> serialize_media_metadata(AVMetadata(video_fps=25.0))
        (<MediaMetadataType.AV: 'av'>, '{"video_fps":25.0}')
    """
    return metadata.metadata_type, metadata.to_json()


def deserialize_media_metadata(
    metadata_type: str | MediaMetadataType, metadata_json: str
) -> MediaMetadataBase:
    """Return the metadata of a kind and a JSON text; the inverse of :func:`serialize_media_metadata`.

    Raises:
        MetadataError: The kind is unknown, or the text does not fit it.

    Example:
        >>> deserialize_media_metadata("av", '{"video_fps":25.0}').video_fps
        25.0
    """
    kind = metadata_type.value if isinstance(metadata_type, MediaMetadataType) else metadata_type
    found = _class_of(kind)
    try:
        payload = json.loads(metadata_json)
    except (ValueError, TypeError, RecursionError) as error:
        raise MetadataError(f"the media metadata cannot be parsed: {metadata_json!r:.200}") from error
    if not isinstance(payload, dict):
        raise MetadataError(f"the media metadata is no mapping: {metadata_json!r:.200}")
    return found.from_dict(payload)
