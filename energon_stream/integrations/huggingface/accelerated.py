"""Loaders for ``accelerate``, whose ``Accelerator.prepare`` returns them unchanged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any, TypeVar

import torch

from energon_stream.errors import ConfigError
from energon_stream.imports import of_extra
from energon_stream.integrations.batch_puller import of_all_ranks, saved_ranks
from energon_stream.integrations.device import DevicePrefetcher
from energon_stream.loader import BasicDataLoader
from energon_stream.worker import WorkerConfig

with of_extra("accelerate"):
    from accelerate.data_loader import DataLoaderStateMixin

T = TypeVar("T")

_COPIES = ("tp", "cp", "sp")
"""Dimensions of a device mesh along which processes get the same batches."""


def _data_rank(accelerator: Any) -> tuple[int, int]:
    """Return the rank and the number of ranks among which ``accelerate`` would deal batches."""
    mesh = accelerator.torch_device_mesh
    names = () if mesh is None else mesh.mesh_dim_names or ()
    copies = prod(mesh[name].size() for name in _COPIES if name in names)
    return accelerator.process_index // copies, accelerator.num_processes // copies


def worker_config_of(
    accelerator: Any, num_workers: int = 4, *, num_streams: int = 0, seed_offset: int = 0
) -> WorkerConfig:
    """Make the configuration of this process for an ``Accelerator``.

    Processes that share data, along the mesh's dimensions of tensor, context and sequence parallelism, get
    the same rank. For other arguments see :class:`WorkerConfig`.

    Example:
        >>> from accelerate import Accelerator
        >>> from energon_stream.integrations.huggingface import worker_config_of
        >>> worker_config_of(Accelerator(cpu=True), num_workers=2).num_streams
        2
    """
    rank, world_size = _data_rank(accelerator)
    return WorkerConfig(rank, world_size, num_workers, seed_offset=seed_offset, num_streams=num_streams)


class AcceleratedLoader(DevicePrefetcher[T], DataLoaderStateMixin):  # type: ignore[misc]
    """Iterates a loader for a loop with an ``Accelerator``.

    ``accelerator.prepare`` returns it unchanged, because each rank reads its own data. It does the work of
    prepared loaders itself: batches are on the accelerator's device, and ``accelerator.accumulate`` sees
    which batch is the last of a pass, for which one batch is fetched ahead.

    After ``accelerator.register_for_checkpointing(loader)``, ``save_state`` saves the position of all ranks
    after the last batch that was *returned*, and ``load_state`` goes on from there, at any time.

    Args:
        loader: The loader, made by ``get_savable_loader`` if its position is to be saved.
        accelerator: The ``Accelerator``.
        depth: Batches that are fetched ahead, at least 1.

    Raises:
        MissingPackageError: (On import.) ``accelerate`` is not installed.
        ConfigError: The loader's rank or number of ranks is not the accelerator's, or ``depth`` is less than
            1.

    Example:
        >>> from accelerate import Accelerator
        >>> from energon_stream import get_savable_loader, get_val_dataset
        >>> from energon_stream.integrations.huggingface import AcceleratedLoader, worker_config_of
        >>> accelerator = Accelerator(cpu=True)
        >>> config = worker_config_of(accelerator, num_workers=0)
        >>> dataset = get_val_dataset("texts", worker_config=config, batch_size=4)
        >>> loader = accelerator.prepare(AcceleratedLoader(get_savable_loader(dataset), accelerator))
        >>> [(len(batch.text), loader.end_of_dataloader) for batch in loader]
        [(4, False), (4, True)]
    """

    def __init__(self, loader: BasicDataLoader[T], accelerator: Any, *, depth: int = 1) -> None:
        rank, world_size = _data_rank(accelerator)
        config = loader.worker_config
        if (config.rank, config.world_size) != (rank, world_size):
            raise ConfigError(
                f"the loader is of rank {config.rank} of {config.world_size}, "
                f"this process is {rank} of {world_size}",
                hint="make the Accelerator (or the TrainingArguments) first, and open the dataset with "
                "worker_config_of(accelerator)",
            )
        if depth < 1:
            hint = "use 1 or more: the last batch is recognized by the end that follows it"
            raise ConfigError(f"depth is {depth}", hint=hint)
        device = accelerator.device if accelerator.device_placement else torch.device("cpu")
        super().__init__(loader, device, depth=depth)
        self.gradient_state: Any = accelerator.gradient_state
        self._accelerator = accelerator

    def __iter__(self) -> Iterator[T]:
        """Iterate to the end of the pass."""
        self.begin()
        try:
            yield from self._pass()
        finally:
            if self.gradient_state.initialized:  # not in a loop that was left before accelerate was reset
                self.end()

    def _pass(self) -> Iterator[T]:
        while True:
            self._fill(1 + self.depth)
            coming = self._take()
            if coming.ended:
                return
            self.end_of_dataloader: bool = self._coming[0].ended
            batch = [self._there(coming)]
            del coming
            yield batch.pop()  # keeps no reference, so the batch is freed as soon as the loop drops it

    def state_dict(self) -> dict[str, Any]:
        """Return the position of all ranks after the last batch returned; all ranks have to call it."""
        return of_all_ranks(super().state_dict(), self.worker_config)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on at the position of a state dict, whichever ranks saved it.

        ``load_state`` has given each process its own old count of accumulated batches, or none: with another
        number of ranks, accumulation begins anew on all.
        """
        super().load_state_dict(state_dict)
        if saved_ranks(state_dict) != self.worker_config.world_size:
            self._accelerator.step = 0
