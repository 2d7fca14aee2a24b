"""The files of loader states that Megatron's programs write, one for each data-parallel rank.

``iter_0000010/train_dataloader_dprank000.pt`` holds ``{"dataloader_state_dict": state}``; Megatron-LM has a
folder ``mp_rank_00`` between. A program looks for the file of its rank, and restores what is in it. This
works on another number of ranks, too. Where the job had fewer ranks, a loader adds the file of its rank.
Where it is given a state of another number, it takes its streams from the files of all ranks.
"""

from __future__ import annotations

import functools
import logging
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from energon_stream.atomic_files import replacing
from energon_stream.compat.aliased_program import STATES_VARIABLE
from energon_stream.errors import StateError, StateMismatchError
from energon_stream.imports import LazyModule
from energon_stream.loader import factories
from energon_stream.state import join_streams, read_rank_state, split_streams, world_sizes
from energon_stream.state.rank import use_sizes
from energon_stream.worker import WorkerConfig

torch: Any = LazyModule("torch")
_log = logging.getLogger(__name__)

_KEY = "dataloader_state_dict"
_HINT = "use a checkpoint that has the loader states of all data-parallel ranks"
_READ_ONLY = "let the job write there, name a copy of the folder, or write the files with `energon-stream checkpoint redist`"
_TRACKER = "latest_checkpointed_iteration.txt"
_PLACES = ("iter_*", "iter_*/mp_rank_*", "energon/iter_*", "", "mp_rank_*")


def rank_file(folder: Path, rank: int) -> Path:
    """Return the file of a data-parallel rank."""
    return folder / f"train_dataloader_dprank{rank:03d}.pt"


@functools.wraps(factories.get_savable_loader)
def get_savable_loader(*args: Any, **options: Any) -> Any:  # noqa: D103
    loader = factories.get_savable_loader(*args, **options)
    add_rank_file(loader.worker_config)
    loader.before_restore = of_this_rank
    return loader


def state_folders() -> list[Path]:
    """Return the folders that have states, the latest step first."""
    roots = [root for root in os.environ.get(STATES_VARIABLE, "").split(os.pathsep) if root]
    files = [rank_file(Path(place), 0) for place in _PLACES]
    found = {path.parent for root in roots for file in files for path in Path(root).glob(str(file))}
    return sorted(found, key=lambda folder: folder.parts[::-1], reverse=True)


def add_rank_file(config: WorkerConfig) -> None:
    """Write the file of this rank where the job had fewer ranks, with its state of that step, dealt.

    Raises StateError if this cannot be for the step that the program loads; for others, a warning says so.
    """
    folders = state_folders()
    loaded = _loaded(folders)
    for folder in folders:
        first, own = rank_file(folder, 0), rank_file(folder, config.rank)
        try:
            if config.rank < _read(first)["topology"]["world_size"] or _is_dealt(own, first, config):
                continue
            state = dealt(folder, config)
            try:
                with replacing(own) as temporary:
                    torch.save({_KEY: state}, temporary)
            except OSError as error:
                raise StateError(
                    f"the file of rank {config.rank} cannot be written ({error})",
                    where=str(own),
                    hint=_READ_ONLY,
                ) from error
        except StateError as error:
            if folder == loaded:
                raise
            _log.warning("no loader state for rank %d in %s: %s", config.rank, folder, error)


def _loaded(folders: Sequence[Path]) -> Path | None:
    """Return the folder of the step that Megatron's file names, not of a later one; or the latest."""
    for folder in folders:
        step = next((part for part in folder.parts[:-3:-1] if part.startswith("iter_")), "")
        for parent in list(folder.parents)[:3]:
            with suppress(OSError, ValueError):
                if step == f"iter_{int((parent / _TRACKER).read_text()):07d}":
                    return folder
    return folders[0] if folders else None


def of_this_rank(state: Any, config: WorkerConfig) -> Any:
    """Return this rank's state where a program passes that of a job with another number of ranks.

    Raises StateMismatchError if the files of the other ranks are not found.
    """
    topology = state.get("topology") if isinstance(state, Mapping) else None
    if not isinstance(topology, Mapping) or topology.get("world_size") == config.world_size:
        return state
    read = read_rank_state(state)
    before = read["topology"]
    for folder in state_folders():
        path = rank_file(folder, before["rank"])
        if path.exists() and _read(path)["digest"] == read["digest"]:
            return dealt(folder, config)
    _check(before, config)
    raise StateMismatchError(
        f"the state was saved on {before['world_size']} data-parallel ranks, and this job has {config.world_size}",
        hint="name the folder where the files of all ranks are, so that they are dealt again: python -m "
        f"energon_stream.run_megatron --states FOLDER …, or {STATES_VARIABLE}=FOLDER",
    )


def dealt(folder: Path, config: WorkerConfig) -> dict[str, Any]:
    """Return the state with which a rank goes on, from the files of the job's ranks, of any number.

    Raises StateError if a file is missing or damaged, or if the streams do not fit this number of ranks.
    """
    before = _read(rank_file(folder, 0))["topology"]
    _check(before, config, str(folder))
    streams, ranks = before["num_streams"], before["world_size"]
    step = math.gcd(ranks, config.world_size)  # other files have no stream of this rank
    parts = []
    for rank in range(config.rank % step, ranks, step):
        state = _read(rank_file(folder, rank))
        if state["topology"] != {**before, "rank": rank}:
            raise StateMismatchError(
                f"the file is not of rank {rank} of {ranks}", where=str(rank_file(folder, rank)), hint=_HINT
            )
        parts.append(split_streams(state))
    entries = {stream: entry for part in parts for stream, entry in part["streams"].items()}
    try:
        return join_streams({**parts[0], "streams": entries}, config.rank, config.world_size, streams)
    except StateError as error:
        raise type(error)(error.what, where=str(folder), hint=error.hint) from error


def _check(before: Mapping[str, int], config: WorkerConfig, where: str | None = None) -> None:
    """Raise StateMismatchError if the streams of a job cannot be dealt to this number of ranks."""
    if before["num_streams"] % config.world_size:
        raise StateMismatchError(
            f"{before['num_streams']} streams cannot be dealt to {config.world_size} ranks",
            where=where,
            hint=use_sizes(world_sizes(before["num_streams"])),
        )


def _is_dealt(own: Path, first: Path, config: WorkerConfig) -> bool:
    """Return True if a rank's file was added for this number of ranks, after the job saved the others."""
    is_newer = own.exists() and own.stat().st_mtime_ns >= first.stat().st_mtime_ns
    return is_newer and bool(_read(own)["topology"]["world_size"] == config.world_size)


def _read(path: Path) -> dict[str, Any]:
    try:
        content = torch.load(path, weights_only=True)
        return read_rank_state(content[_KEY])
    except StateError as error:
        raise type(error)(error.what, where=str(path), hint=error.hint) from error
    except Exception as error:  # of many kinds, for a damaged file
        what = (
            "there is no such file"
            if isinstance(error, FileNotFoundError)
            else "the file has no loader state"
        )
        raise StateError(f"{what} ({type(error).__name__})", where=str(path), hint=_HINT) from error
