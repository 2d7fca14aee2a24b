"""Bytes of a part, for values as programs have them."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np

_TEXTS = frozenset({"txt", "text", "transcript", "caption", "md", "csv", "html", "xml", "yaml", "srt", "vtt"})
NUMBER_PARTS = frozenset({"cls", "cls2", "class", "count", "index", "inx", "id"})
JSON_PARTS = frozenset({"json", "jsn"})


def encode_part(name: str, value: Any) -> bytes | memoryview:
    """Return the bytes of a part.

    Bytes are taken as they are. The extension, which is what follows the last dot of the part's name, decides
    on other values: ``json`` takes what JSON can hold, ``txt`` and other texts take a ``str`` or a number,
    ``cls`` and other numbers an ``int``, ``npy`` an array.

    Raises:
        TypeError: The part cannot hold the value.

    Example:
        >>> encode_part("json", {"width": 3}), encode_part("txt", "naïve"), encode_part("cls", 7)
        (b'{"width": 3}', b'na\\xc3\\xafve', b'7')
    """
    if isinstance(value, bytes):
        return value
    if isinstance(value, (bytearray, memoryview)):
        return memoryview(value).cast("B")
    extension = name.rpartition(".")[2].lower()
    if extension in JSON_PARTS:
        return json.dumps(value, default=_plain).encode()
    if extension == "npy" and isinstance(value, (np.ndarray, np.generic, list)):
        return _array(value)
    if extension in _TEXTS and isinstance(value, (str, int, float, np.number)):
        return str(value).encode()
    if extension in NUMBER_PARTS and isinstance(value, (int, np.integer)):
        return str(int(value)).encode()
    raise TypeError(f"the part {name!r:.80} cannot hold a value of type {type(value).__name__}")


def _plain(value: Any) -> Any:
    """Return a value for JSON: of an array or a number of numpy, of a date."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if hasattr(value, "isoformat"):
        return value.isoformat()
    raise TypeError(f"JSON cannot hold a value of type {type(value).__name__}")


def _array(value: Any) -> bytes:
    array = np.asarray(value)
    if array.dtype.hasobject:
        raise TypeError("an array of Python objects cannot be written as npy")
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()
