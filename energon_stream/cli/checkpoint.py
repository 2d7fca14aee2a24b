"""``energon-stream checkpoint``: look at saved states, deal them to other ranks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from energon_stream.errors import StateError
from energon_stream.state import FORMAT, dumps, loads, read_rank_state, redistribute

__all__ = ["checkpoint"]

_WRAPPER = "dataloader_state_dict"
"""Key under which training frameworks put a rank's state in a file of its own."""


@click.group()
def checkpoint() -> None:
    """Look at saved states, deal them to other ranks.

    Files are those of torch.save or state.dumps, with one rank's state (also under
    'dataloader_state_dict') or the list of all ranks' states. Nothing in them is executed.
    """


def _load(path: Path) -> tuple[list[Any], bool]:
    """The states of a file, and whether it was written by ``torch.save``."""
    data = path.read_bytes()
    by_torch = data[:2] == b"PK"
    if by_torch:
        import torch

        content = torch.load(path, weights_only=True)
    else:
        content = loads(data)
    states = content if isinstance(content, list) else [content]
    return [state.get(_WRAPPER, state) if isinstance(state, dict) else state for state in states], by_torch


def _load_all(files: tuple[Path, ...]) -> tuple[list[Any], bool]:
    states: list[Any] = []
    by_torch = False
    for file in files:
        try:
            found, by_torch = _load(file)
        except StateError as error:
            raise StateError(error.what, where=str(file), hint=error.hint) from error
        states += found
    return states, by_torch


_FILES = click.argument(
    "files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)


@checkpoint.command()
@_FILES
def info(files: tuple[Path, ...]) -> None:
    """Show what saved states hold."""
    for file in files:
        for state in map(read_rank_state, _load(file)[0]):
            topology = state["topology"]
            batches = [saved["batches"] if saved else 0 for saved in state["streams"].values()]
            click.echo(f"{file.name}: {FORMAT} version {state['version']}, {len(dumps(state)):,} bytes")
            click.echo(
                f"  rank {topology['rank']} of {topology['world_size']}, {topology['num_streams']} streams"
            )
            click.echo(f"  seed offset {topology['seed_offset']}, batches of its streams {batches}")
            click.echo(f"  fingerprint {state['fingerprint']}")


@checkpoint.command()
@_FILES
@click.argument("out", type=click.Path(file_okay=False, path_type=Path))
@click.option("--new-world-size", type=int, required=True, help="Number of ranks to deal to.")
def redist(files: tuple[Path, ...], out: Path, new_world_size: int) -> None:
    """Deal the states of all ranks in FILES to another number of ranks, into the folder OUT.

    Names follow the first file's, with the new rank's number; a file of all ranks stays one file.
    """
    states, by_torch = _load_all(files)
    dealt = redistribute(states, new_world_size)
    out.mkdir(parents=True, exist_ok=True)
    if len(files) == 1 and len(states) > 1:
        contents: dict[str, Any] = {files[0].name: dealt}
    else:
        contents = {_name(files[0].name, rank): state for rank, state in enumerate(dealt)}
    for name, content in contents.items():
        if by_torch:
            import torch

            torch.save(content, out / name)
        else:
            (out / name).write_bytes(dumps(content))
        click.echo(f"wrote {out / name}")


def _name(name: str, rank: int) -> str:
    """The name with its last number replaced, as wide as it was; with ``-rank`` where there is none."""
    numbers = list(re.finditer(r"\d+", name))
    if not numbers:
        stem, dot, suffix = name.rpartition(".")
        return f"{stem}-rank{rank}{dot}{suffix}" if dot else f"{name}-rank{rank}"
    last = numbers[-1]
    return f"{name[: last.start()]}{rank:0{len(last.group())}d}{name[last.end() :]}"
