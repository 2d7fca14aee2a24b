"""Bytes of parts for values of other formats: images, arrays, structs with bytes and path, lists of these."""

from __future__ import annotations

import datetime
import io
import json
import posixpath
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

_TEXTS = frozenset({"txt", "text", "transcript", "caption", "md", "csv", "html", "xml", "yaml", "srt", "vtt"})
_NUMBERS = frozenset({"cls", "cls2", "class", "count", "index", "inx", "id"})
_JSON = frozenset({"json", "jsn"})

AUTO = "auto"
"""Part of a column whose extension is found out for each value."""

IMAGES = frozenset({"jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "ppm", "avif"})
_VIDEOS = frozenset({"mp4", "avi", "mov", "webm", "mkv"})
_SOUNDS = frozenset({"mp3", "wav", "flac", "ogg", "opus", "m4a", "aac"})
_DOCUMENTS = frozenset({"pdf", "txt", "json", "npy", "npz", "pt", "html", "xml", "svg"})
_FILES = IMAGES | _VIDEOS | _SOUNDS | _DOCUMENTS
_STRUCT = frozenset({"bytes", "path"})
_MAGIC = (
    (b"\xff\xd8\xff", 0, "jpg"),
    (b"\x89PNG\r\n\x1a\n", 0, "png"),
    (b"GIF8", 0, "gif"),
    (b"WEBP", 8, "webp"),
    (b"WAVE", 8, "wav"),
    (b"AVI ", 8, "avi"),
    (b"BM", 0, "bmp"),
    (b"II*\0", 0, "tif"),
    (b"MM\0*", 0, "tif"),
    (b"ftypavif", 4, "avif"),
    (b"ftypM4A", 4, "m4a"),
    (b"ftypqt", 4, "mov"),
    (b"ftyp", 4, "mp4"),
    (b"\x1aE\xdf\xa3", 0, "mkv"),
    (b"fLaC", 0, "flac"),
    (b"OggS", 0, "ogg"),
    (b"ID3", 0, "mp3"),
    (b"\xff\xfb", 0, "mp3"),
    (b"%PDF-", 0, "pdf"),
    (b"\x93NUMPY", 0, "npy"),
)

Read = Callable[[str], bytes]
"""Reads a file that a row names by its path."""


def extension(path: str) -> str:
    """Return the extension of a path, in lower case and without the dot; empty without an extension."""
    return posixpath.splitext(path)[1][1:].lower()


def is_file_path(text: str) -> bool:
    """Return True if a text looks like the path of a file that is a part.

    Example:
        >>> is_file_path("images/0001.JPG"), is_file_path("A dog. It runs"), is_file_path("see the e.jpg")
        (True, False, False)
    """
    return extension(text) in _FILES and len(text) < 1024 and not any(sign.isspace() for sign in text)


def find_extension(data: bytes) -> str:
    """Return the extension for a file's bytes; ``bin`` if unknown.

    Example:
        >>> find_extension(b"%PDF-1.7"), find_extension(b"text")
        ('pdf', 'bin')
    """
    head = bytes(data[:16])
    return next((name for magic, place, name in _MAGIC if head.startswith(magic, place)), "bin")


def is_struct(value: Any) -> bool:
    """Return True for ``{"bytes": …, "path": …}``, as Hugging Face keeps images and sounds."""
    return isinstance(value, Mapping) and "bytes" in value and set(value) <= _STRUCT


def is_image(value: Any) -> bool:
    """Return True for an image of Pillow."""
    return hasattr(value, "tobytes") and hasattr(value, "mode") and hasattr(value, "save")


def is_array(value: Any) -> bool:
    """Return True for an array of numpy, or a tensor."""
    return isinstance(value, np.ndarray) or (hasattr(value, "numpy") and hasattr(value, "dtype"))


def value_extension(value: Any) -> str | None:
    """Return the extension of a value that is a file, image, array or list of these; None for others."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return find_extension(bytes(value[:16]))
    if is_struct(value):
        found = "bin" if value["bytes"] is None else find_extension(value["bytes"])
        return extension(value.get("path") or "") or found if found == "bin" else found
    if is_image(value):
        return "jpg" if getattr(value, "format", None) == "JPEG" else "png"
    if is_array(value):
        return "npy"
    if isinstance(value, list) and value and all(_is_file(item) for item in value):
        return value_extension(value[0])
    return None


def parts_of_value(part: str, value: Any, read: Read) -> Iterator[tuple[str, bytes]]:
    """Yield the parts that a value becomes: none for None, numbered ones for a list of files or images.

    Raises TypeError if the part cannot hold the value, and ValueError if its text is not a number where one
    is needed, or not Unicode.
    """
    if value is None or (is_struct(value) and value["bytes"] is None and not value.get("path")):
        return
    kind = part.rpartition(".")[2].lower()
    if isinstance(value, list) and value and kind not in _JSON and all(_is_file(item) for item in value):
        for number, item in enumerate(value):
            yield from parts_of_value(f"{number}.{part}", item, read)
        return
    if kind == AUTO:
        kind = value_extension(value) or ("txt" if isinstance(value, str) else "json")
        part = part[: -len(AUTO)] + kind
    yield part, bytes(encode_part(part, _fitting(kind, value, read)))


def _is_file(value: Any) -> bool:
    return isinstance(value, bytes) or is_struct(value) or is_image(value)


def _fitting(kind: str, value: Any, read: Read) -> Any:
    """Return a value that the encoder of parts knows."""
    if is_struct(value) and kind not in _JSON:
        return read(value["path"]) if value["bytes"] is None else value["bytes"]
    if is_image(value):
        return _image_bytes(kind, value)
    if is_array(value):
        value = value if isinstance(value, np.ndarray) else value.numpy()
        if kind in IMAGES and value.dtype == np.uint8:
            from PIL import Image

            return _image_bytes(kind, Image.fromarray(value))
        return value
    if kind in _NUMBERS and isinstance(value, str):
        return int(value)
    if kind not in _JSON and isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    return value


def _image_bytes(kind: str, image: Any) -> bytes:
    """Return an image's file: as it was read if the format fits, else encoded without loss where possible."""
    from PIL import Image

    name = Image.registered_extensions().get(f".{kind}")
    if name is None:
        raise TypeError(f"the part {kind!r:.40} cannot hold an image")
    file = getattr(image, "fp", None)
    if getattr(image, "format", None) == name and file is not None and not file.closed:
        file.seek(0)
        data: bytes = file.read()
        return data
    buffer = io.BytesIO()
    lossless = {"lossless": True} if name == "WEBP" else {"quality": 95} if name == "JPEG" else {}
    try:
        image.save(buffer, name, **lossless)
    except OSError as error:  # such as transparency in a JPEG
        raise TypeError(f"the part {kind!r:.40} cannot hold the image: {error}") from error
    return buffer.getvalue()


def encode_part(name: str, value: Any) -> bytes | memoryview:
    """Return the bytes of a part.

    Bytes are taken as they are. The extension, which is what follows the last dot of the part's name, decides
    on other values: ``json`` takes what JSON can hold, ``txt`` and other texts take a ``str`` or a number,
    ``cls`` and other numbers an ``int``, ``npy`` an array. Raises TypeError if the part cannot hold it.

    Example:
        >>> encode_part("json", {"width": 3}), encode_part("txt", "naïve"), encode_part("cls", 7)
        (b'{"width": 3}', b'na\\xc3\\xafve', b'7')
    """
    if isinstance(value, bytes):
        return value
    if isinstance(value, (bytearray, memoryview)):
        return memoryview(value).cast("B")
    extension = name.rpartition(".")[2].lower()
    if extension in _JSON:
        return json.dumps(value, default=_plain).encode()
    if extension == "npy" and isinstance(value, (np.ndarray, np.generic, list)):
        array, buffer = np.asarray(value), io.BytesIO()
        if array.dtype.hasobject:
            raise TypeError("an array of Python objects cannot be written as npy")
        np.save(buffer, array, allow_pickle=False)
        return buffer.getvalue()
    if extension in _TEXTS and isinstance(value, (str, int, float, np.number)):
        return str(value).encode()
    if extension in _NUMBERS and isinstance(value, (int, np.integer)):
        return str(int(value)).encode()
    raise TypeError(f"the part {name!r:.80} cannot hold a value of type {type(value).__name__}")


def _plain(value: Any) -> Any:
    """Return a value for JSON: of an array or a number of numpy, of a date."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if hasattr(value, "isoformat"):
        return value.isoformat()
    raise TypeError(f"JSON cannot hold a value of type {type(value).__name__}")
