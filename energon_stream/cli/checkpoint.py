"""``energon-stream checkpoint``: inspect saved states, and deal them to other ranks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from energon_stream.cli.options import COUNT, ExistingPath, json_option, option
from energon_stream.cli.terminal import echo, echo_text, emit
from energon_stream.errors import StateMismatchError

if TYPE_CHECKING:
    from energon_stream.cli.state_files import StateFile


@click.group()
def checkpoint() -> None:
    """Inspect saved states, and deal them to other ranks.

    FILES were written by torch.save or state.dumps. They hold a rank's state, the list of save_state_global,
    or the result of state_dict(); each may lie under 'dataloader_state_dict'. A folder of
    torch.distributed.checkpoint can be inspected too. Nothing in them is executed.
    """


_FILES = click.argument("files", nargs=-1, required=True, type=ExistingPath())


@checkpoint.command()
@_FILES
@json_option
def info(files: tuple[Path, ...]) -> None:
    """Show what saved states contain, and to how many ranks they can be dealt."""
    from energon_stream.cli.state_files import read_states

    read = [found for file in files for found in read_states(file)]
    # Each loader in a folder is a checkpoint of its own; files may be parts of one.
    alone = [[file] for file in read if file.dcp_key is not None]
    parts = [file for file in read if file.dcp_key is None]
    verdicts = [_together(together) for together in [*alone, *([parts] if parts else [])]]
    documents = [
        {"path": str(file.path), "form": file.form, "ranks": list(map(_document, file.ranks))}
        for file in read
    ]
    emit({"files": documents, "dealing": verdicts}, lambda: _show(read, verdicts))


def _show(read: list[StateFile], verdicts: list[str]) -> None:
    from energon_stream.state import summarize

    for file in read:
        echo(f"{file.path}: {file.form}")
        for state in file.ranks:
            echo_text(f"  {summarize(state)}")
            prints = ", ".join(f"{name} {value}" for name, value in state["fingerprint"].items())
            echo(f"  format version {state['version']}, fingerprint of {prints}")
    for verdict in verdicts:
        echo_text(verdict)


def _document(state: Mapping[str, Any]) -> dict[str, Any]:
    from energon_stream.state import read_rotation

    topology, rotation = state["topology"], read_rotation(state["rotation"], state["topology"])
    return {
        **{name: topology[name] for name in ("rank", "world_size", "num_streams", "seed_offset")},
        "version": state["version"],
        "fingerprint": dict(state["fingerprint"]),
        "batches": {s: 0 if saved is None else saved["batches"] for s, saved in state["streams"].items()},
        "batches_of_pass": rotation.consumed,
        "passes": rotation.passes,
        "ended": sorted(rotation.ended),
    }


def _together(files: list[StateFile]) -> str:
    """Return to how many ranks the states can be dealt together, or why not."""
    from energon_stream.state import read_rotation, redistribute, world_sizes

    states = [state for file in files for state in file.ranks]
    names = [name for file in files for name in file.names]
    topology = states[0]["topology"]
    sizes = world_sizes(topology["num_streams"])
    try:
        redistribute(states, topology["world_size"], names=names)
    except StateMismatchError as error:
        fit = f"{topology['num_streams']} streams would fit {sizes} ranks"
        return f"cannot be dealt to other ranks: {error}\n{fit}"
    length = read_rotation(states[0]["rotation"], topology).pass_length
    if not length:
        return f"can be dealt to {sizes} ranks"
    lengths = ", ".join(f"{length // size} with {size}" for size in sizes if length % size == 0)
    return f"can be dealt to {sizes} ranks; virtual_epoch_length is {lengths} ranks then"


@checkpoint.command()
@_FILES
@click.argument("out", type=click.Path(file_okay=False, path_type=Path))
@option("--new-world-size", type=COUNT, prompt="New number of ranks")
@json_option
def redist(files: tuple[Path, ...], out: Path, new_world_size: int) -> None:
    """Deal the states of all ranks in FILES to another number of ranks, into the folder OUT.

    The result has the form of FILES: one file of all ranks stays one file; names of files for each rank get
    the new rank's number. Other content beside 'dataloader_state_dict' is copied from the first file.
    """
    from energon_stream.cli.state_files import check_dealable, like, read_states, write
    from energon_stream.state import redistribute

    read = [found for file in files for found in read_states(file)]
    check_dealable(read)
    states = [state for file in read for state in file.ranks]
    names = [name for file in read for name in file.names]
    contents = like(read, redistribute(states, new_world_size, names=names))
    written = [str(path) for path in write(out, contents, read[0].by_torch)]
    emit({"written": written}, lambda: echo_text("\n".join(f"wrote {path}" for path in written)))
