"""Batches together with the loader's state after each, for frameworks that fetch ahead.

Frameworks fetch ahead to recognize the last batch, or to copy a batch to a device while the loop uses the
one before. A state that they save has to be the one after the last batch that was *used*.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from energon_stream.atomic_files import replacing
from energon_stream.errors import ConfigError, StateError
from energon_stream.loader import BasicDataLoader, SavableDataLoader
from energon_stream.pipeline import SavableDataset
from energon_stream.state import ranks_of_streams
from energon_stream.state.streams import STREAMS_FORMAT
from energon_stream.worker import WorkerConfig

T = TypeVar("T")

_KEY = "dataloader_state_dict"  # of a loader's state in a file of a checkpoint


@dataclass(frozen=True, slots=True)
class PulledBatch(Generic[T]):
    """A batch, or the end of a pass."""

    batch: Any  # the batch; None at an end
    ended: bool  # whether the pass has ended
    state: dict[str, Any]  # result of ``save_state_rank`` after the batch; empty for loaders without state


class PullingLoader(Generic[T]):
    """Base of what takes a loader's place: pulls batches one by one, over the ends of passes."""

    def __init__(self, loader: BasicDataLoader[T]) -> None:
        self.loader = loader  # its own position may be ahead of the batch in use
        self._batches: Iterator[T] | None = None

    @property
    def worker_config(self) -> WorkerConfig:
        """The loader's configuration."""
        return self.loader.worker_config

    def __bool__(self) -> bool:
        return True

    def _pull(self) -> PulledBatch[T]:
        """Return the next batch or the end of the pass. The call after an end begins the next pass."""
        if self._batches is None:
            self._batches = iter(self.loader)
        try:
            batch, ended = next(self._batches), False
        except StopIteration:
            batch, ended, self._batches = None, True, None
        except BaseException:
            self._batches = None
            raise
        return PulledBatch(batch, ended, self._state())

    def _state(self) -> dict[str, Any]:
        """Return the loader's present state; empty for loaders without state."""
        return self.loader.save_state_rank() if isinstance(self.loader, SavableDataLoader) else {}

    def _savable(self) -> SavableDataLoader[T]:
        """Return the loader. Raises ConfigError if it has no state."""
        if not isinstance(self.loader, SavableDataLoader):
            raise ConfigError(
                f"a {type(self.loader).__name__} has no state", hint="make it with get_savable_loader"
            )
        return self.loader

    def _stop(self) -> SavableDataLoader[T]:
        """End the workers and return the loader, which can then be restored."""
        loader = self._savable()
        self._batches = None
        loader.close()
        return loader


def loader_of(batches: Any) -> BasicDataLoader[Any]:
    """Return the loader behind what a framework iterates. Raises ConfigError if it is not of this library."""
    loader = batches.loader if isinstance(batches, PullingLoader) else batches
    if not isinstance(loader, BasicDataLoader):
        raise ConfigError(
            f"the trainer iterates a {type(batches).__name__}, which has no statistics",
            hint="train on a dataset of this library, or leave out StatsCallback",
        )
    return loader


def epoch_length(dataset: SavableDataset[Any]) -> int | None:
    """Return the batches of a rank in an epoch; None if the number is not certain.

    Virtual epochs have a certain length. Endless datasets have no epochs, so the framework's epochs may have
    any length; they get that of one pass over the data. The length of other datasets is an estimate, because
    samples may be skipped.
    """
    if dataset.pass_length:
        return dataset.len_rank()
    return max(1, dataset.nominal_length()) if is_endless(dataset) else None


def go_to(loader: SavableDataLoader[Any], state: Any) -> None:
    """Let a loader that may be under way go on at a rank's state or a state dict; None is the start."""
    loader.close()
    if isinstance(state, Mapping) and state.get("format") == STREAMS_FORMAT:
        loader.load_state_dict(state)
    else:
        loader.restore_state_rank(state)


def merged(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a state dict with the streams of several, in which all else is equal."""
    known: dict[str, Any] = {"streams": {}}
    for state in states:
        known |= {**state, "streams": known["streams"] | state["streams"]}
    return known


def is_endless(dataset: SavableDataset[Any]) -> bool:
    """Return True if the passes of a stream of this rank have no end."""
    return any(dataset.len_stream(stream) is None for stream in dataset.worker_config.streams)


def of_all_ranks(state_dict: Mapping[str, Any], config: WorkerConfig) -> dict[str, Any]:
    """Merge the state dicts of all ranks, for checkpoints that only one process writes.

    All processes of ``torch.distributed`` have to call it, after the same step. Every rank finds its streams
    in it. Raises ConfigError if there are several ranks and no process group.
    """
    import torch.distributed as dist

    if config.world_size == 1:
        return dict(state_dict)
    if not (dist.is_available() and dist.is_initialized()):
        raise ConfigError(
            f"the states of {config.world_size} ranks cannot be merged without torch.distributed",
            hint="call torch.distributed.init_process_group, or save a file for each rank",
        )
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, dict(state_dict))
    return {**state_dict, **merged(everyone)}


def saved_ranks(state_dict: Mapping[str, Any]) -> int:
    """Return of how many ranks a result of :func:`of_all_ranks` is. Raises StateError if it is damaged."""
    return len(ranks_of_streams(state_dict))


def write_state(path: Path, state: Any) -> None:
    """Write a loader's state into a checkpoint. The file is complete or absent."""
    with replacing(path) as temporary:
        torch.save({_KEY: state}, temporary)


def read_state(path: Path, hint: str) -> Any:
    """Return a loader's state from a checkpoint. Raises StateError if the file is damaged or another."""
    try:
        content = torch.load(path, weights_only=True)
    except Exception as error:  # of many kinds, for a damaged file
        raise StateError(
            f"the file is damaged ({type(error).__name__})", where=str(path), hint=hint
        ) from error
    if not isinstance(content, Mapping) or _KEY not in content:
        raise StateError(f"the file has no {_KEY!r}", where=str(path), hint=hint)
    return content[_KEY]
