"""Decides by its name how a part is shown, and with which media type it leaves the server. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from energon_stream.decode.images import IMAGE_EXTENSIONS


class Kind(StrEnum):
    """Forms in which parts are shown."""

    IMAGE = "image"  # decoded and scaled by the server
    VIDEO = "video"
    AUDIO = "audio"
    JSON = "json"
    TEXT = "text"
    OTHER = "other"  # by name and size


PLAYED: Mapping[str, str] = {
    "mp4": "video/mp4",
    "m4v": "video/mp4",
    "mov": "video/mp4",
    "webm": "video/webm",
    "mkv": "video/webm",
    "ogv": "video/ogg",
    "mp3": "audio/mpeg",
    "wav": "audio/wav",
    "flac": "audio/flac",
    "ogg": "audio/ogg",
    "oga": "audio/ogg",
    "opus": "audio/ogg",
    "m4a": "audio/mp4",
    "aac": "audio/aac",
}
"""Media types of parts that the browser plays. All other bytes are downloads, whatever they are."""

DOWNLOAD = "application/octet-stream"

_TEXT = frozenset({
    "txt", "text", "md", "rst", "csv", "tsv", "xml", "html", "htm", "xhtml", "svg", "yaml", "yml", "toml", "log",
    "srt", "vtt", "py", "js", "css", "tex", "cls", "cls2", "index", "inx", "id", "caption", "transcript",
})  # fmt: skip


def extension(part: str) -> str:
    """Return the last extension of a part's name, in small letters.

    Example:
        >>> extension("left.JPG")
        'jpg'
    """
    return part.rpartition(".")[2].lower()


def kind_of(part: str) -> Kind:
    """Return the form in which a part is shown.

    Example:
        >>> [kind_of(name).value for name in ("jpg", "a.json", "mp4", "svg", "npy")]
        ['image', 'json', 'video', 'text', 'other']
    """
    name = extension(part)
    if name in IMAGE_EXTENSIONS:
        return Kind.IMAGE
    if name in PLAYED:
        return Kind(PLAYED[name].partition("/")[0])
    if name in ("json", "jsonl"):
        return Kind.JSON
    return Kind.TEXT if name in _TEXT else Kind.OTHER


def media_type(part: str) -> str:
    """Return the media type with which a part's bytes leave the server: one that is played, or a download.

    Example:
        >>> media_type("mp3"), media_type("svg"), media_type("html")
        ('audio/mpeg', 'application/octet-stream', 'application/octet-stream')
    """
    return PLAYED.get(extension(part), DOWNLOAD)
