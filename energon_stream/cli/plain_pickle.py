"""Pickles of built-in values, read without executing anything, in memory bounded by the file."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from typing import IO, Any


def _plain_bytes(text: str = "", encoding: str = "latin1") -> bytes:
    """Return what torch's pickles write for bytes; the arguments may come from a hostile file."""
    if not isinstance(text, str) or encoding != "latin1":
        raise pickle.UnpicklingError("no plain value")
    return text.encode("latin1")


_PLAIN: dict[tuple[str, str], Callable[..., Any]] = {
    ("_codecs", "encode"): _plain_bytes,
    ("__builtin__", "bytes"): _plain_bytes,
    ("builtins", "bytes"): _plain_bytes,
    ("collections", "OrderedDict"): OrderedDict,
}
"""Names that a pickle of built-in values refers to, and what stands for them."""


class Record:
    """Stands for an object of a class that is not built in: keeps what the pickle says of it.

    Attributes:
        fields: The attributes of the object; empty if the pickle has none by name.
    """

    def __new__(cls, *_: Any, **__: Any) -> Record:
        """Ignore the arguments of the class."""
        return super().__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None:
        self.fields: dict[str, Any] = {}

    def __setstate__(self, state: Any) -> None:
        self.fields = dict(state) if isinstance(state, dict) else {}


class _PlainUnpickler(pickle._Unpickler):
    """Reads built-in values in memory bounded by the file.

    The unpickler in C, and one instruction of this one, would reserve any amount of memory that a file names.
    """

    dispatch = {
        code: load for code, load in pickle._Unpickler.dispatch.items() if code != pickle.BYTEARRAY8[0]
    }
    other: type[Record] | None = None

    def find_class(self, module: str, name: str) -> Any:
        found: Callable[..., Any] | None = _PLAIN.get((module, name), self.other)
        if found is None:
            raise pickle.UnpicklingError(f"{module}.{name} is no plain value")
        return found


class _RecordUnpickler(_PlainUnpickler):
    other = Record


def load_records(data: bytes) -> Any:
    """Read a pickle in which a :class:`Record` stands for each object that is not of a built-in type.

    Raises any Exception if it is damaged.
    """
    return _RecordUnpickler(io.BytesIO(data)).load()


def load_plain(file: IO[bytes]) -> Any:
    """Read a zip file of torch.save that holds no tensors, without the second that importing torch takes.

    Raises any Exception if it is damaged or holds something else.
    """
    with zipfile.ZipFile(file) as archive:
        (entry,) = (entry for entry in archive.infolist() if entry.filename.endswith("/data.pkl"))
        if entry.compress_type != zipfile.ZIP_STORED:
            raise zipfile.BadZipFile("torch does not compress")
        return _PlainUnpickler(io.BytesIO(archive.read(entry))).load()
