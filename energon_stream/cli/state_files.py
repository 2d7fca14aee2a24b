"""Files of saved states, in every form that users write. Nothing in them is executed."""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from energon_stream.cli.plain_pickle import load_plain, read_dcp
from energon_stream.errors import ConfigError, StateError, StateMismatchError
from energon_stream.printable import counted
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
    dcp_key: str | None = None  # the loader's key, if the path is a folder of torch.distributed.checkpoint

    @property
    def form(self) -> str:
        """The form of the file in words."""
        content = {
            "rank": "a rank's state",
            "list": f"a list of {len(self.ranks)} ranks' states",
            "streams": f"a state dict by stream, of {counted(len(self.ranks), 'rank')}",
        }[self.kind]
        if self.dcp_key is not None:
            return f"{content} under {self.dcp_key!r}, torch.distributed.checkpoint, {self.size:,} bytes"
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


def read_states(path: Path) -> list[StateFile]:
    """Read a file, or each loader's part of a folder of torch.distributed.checkpoint.

    Raises :class:`StateError` if it holds something else, or is damaged.
    """
    try:
        if path.is_dir():
            return [_of_loader(path, key, content) for key, content in read_dcp(path).items()]
        return [_read_file(path)]
    except StateError as error:
        where = str(path) if error.where is None else f"{error.where} in {path}"
        raise type(error)(error.what, where=where, hint=error.hint) from error


def _of_loader(folder: Path, key: str, content: Mapping[str, Any]) -> StateFile:
    size = sum(map(len, content["streams"].values()))
    return StateFile(folder, size, True, None, "streams", tuple(ranks_of_streams(content)), key)


def _read_file(path: Path) -> StateFile:
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


def _load(path: Path) -> Any:
    # Unless it has tensors, is older, or is damaged: then torch reads it, or names the problem.
    with suppress(Exception), path.open("rb") as file:
        return load_plain(file)
    import torch

    try:
        return torch.load(path, weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError, ValueError) as error:
        raise StateError(
            f"torch.load cannot read the file as plain values: {type(error).__name__}",
            hint="pass files that hold nothing but a loader's state; their code is never executed",
        ) from error


def check_dealable(files: Sequence[StateFile]) -> None:
    """Raise :class:`ConfigError` for folders, which need no dealing."""
    for file in files:
        if file.dcp_key is not None:
            raise ConfigError(
                "a folder of torch.distributed.checkpoint needs no dealing",
                where=str(file.path),
                hint='load {"loader": loader} from it with torch.distributed.checkpoint.load, on any number of '
                "ranks that divides the streams",
            )


def like(files: Sequence[StateFile], states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the states of all ranks as contents by file name, in the form of the files that were dealt.

    Raises StateMismatchError if the files differ in form.
    """
    first = files[0]
    for file in files:
        differ = (file.by_torch, file.kind) != (first.by_torch, first.kind)
        if differ or (file.wrapper is None) != (first.wrapper is None):
            raise StateMismatchError(
                f"the files are of different kinds: {first.form}; {file.form}",
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
