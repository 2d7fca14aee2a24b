"""Files of saved states, in every form that users write. Nothing in them is executed."""

from __future__ import annotations

import io
import pickle
import re
import zipfile
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from energon_stream.errors import ConfigError, StateError, StateMismatchError
from energon_stream.state import (
    STREAMS_FORMAT,
    dumps,
    loads,
    ranks_of_streams,
    read_rank_state,
    split_streams,
)

_WRAPPER = "dataloader_state_dict"
"""Key under which training frameworks store a rank's state."""

Kind = Literal["rank", "list", "streams"]


@dataclass(frozen=True, slots=True)
class StateFile:
    """A file with the states of one or more ranks."""

    path: Path
    size: int
    by_torch: bool  # torch.save wrote the file; otherwise it is msgpack
    wrapper: Mapping[str, Any] | None  # holds the state under _WRAPPER; None if nothing is around the state
    kind: Kind  # a rank's state, a list of them, or a state_dict()
    ranks: tuple[dict[str, Any], ...]

    @property
    def form(self) -> str:
        """The form of the file in words."""
        content = {
            "rank": "a rank's state",
            "list": f"a list of {len(self.ranks)} ranks' states",
            "streams": f"a state dict by stream, of {len(self.ranks)} ranks",
        }[self.kind]
        under = "" if self.wrapper is None else f" under {_WRAPPER!r}"
        return f"{content}{under}, {'torch.save' if self.by_torch else 'msgpack'}, {self.size:,} bytes"

    @property
    def holds_all(self) -> bool:
        """True if the file alone is a checkpoint of all ranks."""
        return self.kind == "list" or len(self.ranks) > 1

    @property
    def names(self) -> list[str]:
        """Names of the states, for errors."""
        if not self.holds_all:
            return [str(self.path)]
        return [f"rank {state['topology']['rank']} in {self.path}" for state in self.ranks]


def read_states(path: Path) -> StateFile:
    """Read a file. Raises :class:`StateError` if it holds something else, or is damaged."""
    try:
        data = path.read_bytes()
        by_torch = data[:2] in (b"PK", b"\x80\x02")  # torch's zip files, and its older format
        content = _load(path) if by_torch else loads(data)
        wrapper = content if isinstance(content, Mapping) and _WRAPPER in content else None
        inner = content if wrapper is None else wrapper[_WRAPPER]
        kind: Kind = "rank"
        states = [inner]
        if isinstance(inner, (list, tuple)):
            kind, states = "list", list(inner)
        elif isinstance(inner, Mapping) and inner.get("format") == STREAMS_FORMAT:
            kind, states = "streams", ranks_of_streams(inner)
        return StateFile(path, len(data), by_torch, wrapper, kind, tuple(map(read_rank_state, states)))
    except StateError as error:
        where = str(path) if error.where is None else f"{error.where} in {path}"
        raise type(error)(error.what, where=where, hint=error.hint) from error


def _plain_bytes(text: str = "", encoding: str = "latin1") -> bytes:
    """Return what torch's pickles write for bytes; the arguments may come from a hostile file."""
    if not isinstance(text, str) or encoding != "latin1":
        raise pickle.UnpicklingError("no plain value")
    return text.encode("latin1")


_PLAIN = {
    ("_codecs", "encode"): _plain_bytes,
    ("__builtin__", "bytes"): _plain_bytes,
    ("builtins", "bytes"): _plain_bytes,
    ("collections", "OrderedDict"): OrderedDict,
}
"""Names that a pickle of built-in values refers to, and what stands for them."""


class _PlainUnpickler(pickle._Unpickler):
    """Reads built-in values in memory bounded by the file.

    The unpickler in C, and one instruction of this one, would reserve any amount of memory that a file names.
    """

    dispatch = {
        code: load for code, load in pickle._Unpickler.dispatch.items() if code != pickle.BYTEARRAY8[0]
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _PLAIN:
            raise pickle.UnpicklingError(f"{module}.{name} is no plain value")
        return _PLAIN[module, name]


def _load_plain(path: Path) -> Any:
    """Read a zip file of torch.save that holds no tensors, without the second that importing torch takes."""
    with zipfile.ZipFile(path) as archive:
        (entry,) = (entry for entry in archive.infolist() if entry.filename.endswith("/data.pkl"))
        if entry.compress_type != zipfile.ZIP_STORED:
            raise zipfile.BadZipFile("torch does not compress")
        return _PlainUnpickler(io.BytesIO(archive.read(entry))).load()


def _load(path: Path) -> Any:
    with suppress(Exception):  # it has tensors, is older, or is damaged: torch reads it, or names the problem
        return _load_plain(path)
    import torch

    try:
        return torch.load(path, weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError, ValueError) as error:
        raise StateError(
            f"torch.load cannot read the file as plain values: {type(error).__name__}",
            hint="pass files that hold nothing but a loader's state; their code is never executed",
        ) from error


def like(files: Sequence[StateFile], states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the states of all ranks as contents by file name, in the form of the files that were dealt.

    Raises StateMismatchError if the files differ in form.
    """
    first = files[0]
    for file in files:
        differ = (file.by_torch, file.kind) != (first.by_torch, first.kind)
        if differ or (file.wrapper is None) != (first.wrapper is None):
            raise StateMismatchError(
                f"files of different forms: {first.form}; {file.form}",
                where=f"{first.path}, {file.path}",
                hint="pass the files of one checkpoint",
            )
        if file.holds_all and len(files) > 1:
            raise StateMismatchError(
                f"{len(files)} files, of which one has the states of several ranks",
                where=str(file.path),
                hint="pass one file of all ranks, or a file for each rank",
            )
    if first.kind == "streams" and first.holds_all:
        parts = [split_streams(state) for state in states]
        union = {stream: entry for part in parts for stream, entry in part["streams"].items()}
        return {first.path.name: _wrapped(first, {**parts[0], "streams": union})}
    if first.holds_all:
        return {first.path.name: _wrapped(first, list(states))}
    return {
        name: _wrapped(first, split_streams(state) if first.kind == "streams" else state)
        for name, state in zip(_names(files, len(states)), states, strict=True)
    }


def _wrapped(first: StateFile, content: Any) -> Any:
    return content if first.wrapper is None else {**first.wrapper, _WRAPPER: content}


def _names(files: Sequence[StateFile], count: int) -> list[str]:
    """Return the files' names with new ranks' numbers of equal width; or, without numbers, with ``-rank``."""
    name = files[0].path.name
    old = [(file.path.name, file.ranks[0]["topology"]["rank"]) for file in files]
    for number in reversed(list(re.finditer(r"\d+", name))):
        begin, end, width = name[: number.start()], name[number.end() :], len(number.group())
        if all(path == f"{begin}{rank:0{width}d}{end}" for path, rank in old):
            return [f"{begin}{rank:0{width}d}{end}" for rank in range(count)]
    stem, suffix = files[0].path.stem, files[0].path.suffix
    return [f"{stem}-rank{rank}{suffix}" for rank in range(count)]


def write(folder: Path, contents: Mapping[str, Any], by_torch: bool) -> list[Path]:
    """Write files into a new or existing folder. Raises :class:`ConfigError` if one of them exists."""
    paths = [folder / name for name in contents]
    for path in paths:
        if path.exists():
            raise ConfigError("the file exists already", where=str(path), hint="choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    for path, content in zip(paths, contents.values(), strict=True):
        if by_torch:
            import torch

            torch.save(content, path)
        else:
            path.write_bytes(dumps(content))
    return paths
