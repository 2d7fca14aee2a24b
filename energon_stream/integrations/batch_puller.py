"""Where a loader stood after batches that were fetched before they are used.

Frameworks fetch ahead: to know which batch is the last, or to copy one to a device while the other is trained on. What
they save in between has to be where the loader stood after the last batch that was *used*. So each batch is fetched
together with that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from energon_stream.errors import ConfigError
from energon_stream.loader import BasicDataLoader, SavableDataLoader
from energon_stream.pipeline import SavableDataset
from energon_stream.worker import WorkerConfig

__all__ = ["PulledBatch", "BatchPuller", "epoch_length", "of_all_ranks"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PulledBatch(Generic[T]):
    """A batch, or the end of a pass.

    Attributes:
        batch: The batch; None at an end.
        ended: Whether the pass has ended.
        state: What ``save_state_rank`` returned then; empty for loaders that have none.
    """

    batch: Any
    ended: bool
    state: dict[str, Any]


class BatchPuller(Generic[T]):
    """Takes batches from a loader one by one, over the ends of passes.

    Args:
        loader: What to take them from.
    """

    def __init__(self, loader: BasicDataLoader[T]) -> None:
        self.loader = loader
        self._batches: Iterator[T] | None = None

    def pull(self) -> PulledBatch[T]:
        """The next batch, or the end of the pass; what follows an end is of the next pass."""
        if self._batches is None:
            self._batches = iter(self.loader)
        try:
            batch, ended = next(self._batches), False
        except StopIteration:
            batch, ended, self._batches = None, True, None
        except BaseException:
            self._batches = None
            raise
        return PulledBatch(batch, ended, self.state())

    def state(self) -> dict[str, Any]:
        """Where the loader stands now; empty for loaders that cannot say."""
        return self.loader.save_state_rank() if isinstance(self.loader, SavableDataLoader) else {}

    def savable(self) -> SavableDataLoader[T]:
        """The loader, if it is one whose position can be saved.

        Raises:
            ConfigError: It is not.
        """
        if not isinstance(self.loader, SavableDataLoader):
            raise ConfigError(
                f"a {type(self.loader).__name__} has no state", hint="make it with get_savable_loader"
            )
        return self.loader

    def stop(self) -> SavableDataLoader[T]:
        """End the workers, so that the loader, which is returned, can be restored."""
        loader = self.savable()
        self._batches = None
        loader.close()
        return loader


def epoch_length(dataset: SavableDataset[Any]) -> int | None:
    """Batches of a rank in an epoch, where that is sure.

    It is for virtual epochs. Endless datasets have no epochs, so those of the framework may have any length: that of one
    pass over the data. Of other datasets the length is an estimate, as samples may be skipped.

    Args:
        dataset: What is loaded.

    Returns:
        The number, the same on all ranks; None where it is not sure.
    """
    if dataset.pass_length:
        return dataset.len_rank()
    lengths = [dataset.len_stream(stream) for stream in dataset.worker_config.streams]
    return max(1, dataset.nominal_length()) if None in lengths else None


def of_all_ranks(state_dict: Mapping[str, Any], config: WorkerConfig) -> dict[str, Any]:
    """The state dicts of all ranks as one, for checkpoints that only one process writes.

    All processes of ``torch.distributed`` have to call it, after the same step. Any rank finds its streams in it.

    Args:
        state_dict: What the loader's ``state_dict`` returned on this rank.
        config: The job's configuration.

    Raises:
        ConfigError: There are several ranks and no process group.
    """
    import torch.distributed as dist

    if config.world_size == 1:
        return dict(state_dict)
    if not (dist.is_available() and dist.is_initialized()):
        raise ConfigError(
            f"the states of {config.world_size} ranks cannot be brought together without torch.distributed",
            hint="call torch.distributed.init_process_group, or save a file for each rank",
        )
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, dict(state_dict))
    streams: dict[str, Any] = {}
    for one in everyone:
        streams.update(one["streams"])
    return {**state_dict, "streams": streams}
