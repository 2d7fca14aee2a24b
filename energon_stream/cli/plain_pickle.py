"""Files of ``torch.save`` and folders of ``torch.distributed.checkpoint``, read without torch.

Pickles in them are read without executing anything, in memory bounded by the file. The file ``.metadata`` of
a folder is a pickle, too: records stand for its objects. It names each entry's file, offset and length; a
loader that was saved as ``{"loader": loader}`` has the entries ``loader.format``, ``loader.version`` and
``loader.streams.<stream>``.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from energon_stream.errors import StateError
from energon_stream.state import STREAMS_FORMAT

_METADATA = ".metadata"


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


class _Record:
    """Stands for an object of a class that is not built in: keeps its attributes, if the pickle has them."""

    def __new__(cls, *_: Any, **__: Any) -> _Record:
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
    other: type[_Record] | None = None

    def find_class(self, module: str, name: str) -> Any:
        found: Callable[..., Any] | None = _PLAIN.get((module, name), self.other)
        if found is None:
            raise pickle.UnpicklingError(f"{module}.{name} is no plain value")
        return found


class _RecordUnpickler(_PlainUnpickler):
    other = _Record


def load_plain(file: IO[bytes]) -> Any:
    """Read a zip file of torch.save that holds no tensors, without the second that importing torch takes.

    Raises any Exception if it is damaged or holds something else.
    """
    with zipfile.ZipFile(file) as archive:
        (entry,) = (entry for entry in archive.infolist() if entry.filename.endswith("/data.pkl"))
        if entry.compress_type != zipfile.ZIP_STORED:
            raise zipfile.BadZipFile("torch does not compress")
        return _PlainUnpickler(io.BytesIO(archive.read(entry))).load()


def read_dcp(folder: Path) -> dict[str, dict[str, Any]]:
    """Read the state dicts of all loaders in a folder, by the keys under which they were saved.

    Raises StateError if the folder is no checkpoint, is damaged, or has no loader.
    """
    if not (folder / _METADATA).is_file():
        raise StateError(
            f"the folder has no {_METADATA}, so torch.distributed.checkpoint did not write it",
            hint="pass the files in it, or the folder that has the file",
        )
    found: dict[str, dict[str, Any]] = {}
    try:
        places = _places(_RecordUnpickler(io.BytesIO((folder / _METADATA).read_bytes())).load())
        loaders = {path[:-1] for path in places if path[-1] == "format" and (*path[:-1], "version") in places}
        for loader in sorted(loaders):
            if _entry(folder, places[*loader, "format"]) != STREAMS_FORMAT:
                continue
            streams = {path[-1]: place for path, place in places.items() if path[:-1] == (*loader, "streams")}
            found[".".join(loader)] = {
                "format": STREAMS_FORMAT,
                "version": _entry(folder, places[*loader, "version"]),
                "streams": {stream: _entry(folder, place) for stream, place in streams.items()},
            }
    except Exception as error:  # whatever a damaged pickle leads to
        raise StateError(
            f"the checkpoint is damaged: {type(error).__name__}: {error!s:.200}",
            hint="restore an earlier checkpoint",
        ) from error
    if not found:
        raise StateError(
            "the checkpoint has no state of a loader",
            hint='save {"loader": loader} with torch.distributed.checkpoint.save, on all ranks',
        )
    return found


def _places(metadata: Any) -> dict[tuple[str, ...], Mapping[str, Any]]:
    """Return file, offset and length of each entry, by its path in the state dict."""
    paths = metadata.fields.get("planner_data") or {}
    places = {}
    for index, place in metadata.fields["storage_data"].items():
        name = index.fields["fqn"]
        places[tuple(map(str, paths.get(name) or name.split(".")))] = place.fields
    return places


def _entry(folder: Path, place: Mapping[str, Any]) -> Any:
    """Read one entry, which torch.save wrote."""
    name, offset, length = place["relative_path"], place["offset"], place["length"]
    if Path(name).name != name or place.get("transform_descriptors"):
        raise ValueError(f"an entry in {name!r:.100}, which is compressed or outside the folder")
    with (folder / name).open("rb") as file:
        if not 0 <= offset <= offset + length <= file.seek(0, io.SEEK_END):
            raise ValueError(f"{name} is shorter than {_METADATA} says")
        file.seek(offset)
        return load_plain(io.BytesIO(file.read(length)))
