"""Making loaders of datasets."""

from __future__ import annotations

import warnings
from typing import Any, TypeVar

from energon_stream.errors import ConfigError
from energon_stream.loader.loader import BasicDataLoader
from energon_stream.loader.savable import SavableDataLoader
from energon_stream.loader.session import LoaderOptions
from energon_stream.media import CachePool
from energon_stream.pipeline.dataset import SavableDataset
from energon_stream.worker import WorkerConfig

__all__ = ["get_loader", "get_savable_loader"]

T = TypeVar("T")


def _options(
    dataset: SavableDataset[Any],
    prefetch_factor: int,
    watchdog_timeout_seconds: float | None,
    watchdog_initial_timeout_seconds: float | None,
    fail_on_timeout: bool,
    start_method: str,
    worker_config: WorkerConfig | None,
    cache_pool: CachePool | None,
) -> LoaderOptions:
    if worker_config is not None:
        if worker_config != dataset.worker_config:
            raise ConfigError(
                "the loader's worker_config differs from the dataset's",
                hint="leave it out: the loader uses the dataset's",
            )
        warnings.warn(
            "worker_config of a loader is not needed: the dataset has it", FutureWarning, stacklevel=3
        )
    return LoaderOptions(
        prefetch_factor=prefetch_factor,
        start_method=start_method,
        watchdog_seconds=watchdog_timeout_seconds,
        watchdog_initial_seconds=watchdog_initial_timeout_seconds,
        fail_on_timeout=fail_on_timeout,
        cache_pool=cache_pool,
    )


def get_loader(
    dataset: SavableDataset[T],
    *,
    prefetch_factor: int = 2,
    watchdog_timeout_seconds: float | None = 60.0,
    watchdog_initial_timeout_seconds: float | None = None,
    fail_on_timeout: bool = False,
    pin_memory: bool | None = None,
    start_method: str = "fork",
    worker_config: WorkerConfig | None = None,
    cache_pool: CachePool | None = None,
) -> BasicDataLoader[T]:
    """Make a loader.

    Args:
        dataset: What to iterate; its ``worker_config`` says with how many workers.
        prefetch_factor: Batches that each worker holds ready for each of its streams.
        watchdog_timeout_seconds: Seconds without a batch after which the workers' stacks are written to
            stderr; None never.
        watchdog_initial_timeout_seconds: The same for the first batch.
        fail_on_timeout: Whether the watchdog ends the run.
        pin_memory: Whether batches are pinned; None pins where CUDA is available.
        start_method: ``"fork"`` or ``"spawn"``; with spawn all functions must be picklable.
        worker_config: Not needed; accepted where it equals the dataset's.
        cache_pool: What cookers and hooks fetch auxiliary data with; None fetches when it is asked for.
            Close it after the loader, or leave that to the end of the process.
    """
    options = _options(
        dataset,
        prefetch_factor,
        watchdog_timeout_seconds,
        watchdog_initial_timeout_seconds,
        fail_on_timeout,
        start_method,
        worker_config,
        cache_pool,
    )
    return BasicDataLoader(dataset, options, pin_memory=pin_memory)


def get_savable_loader(
    dataset: SavableDataset[T],
    *,
    prefetch_factor: int = 2,
    watchdog_timeout_seconds: float | None = 60.0,
    watchdog_initial_timeout_seconds: float | None = None,
    fail_on_timeout: bool = False,
    pin_memory: bool | None = None,
    start_method: str = "fork",
    worker_config: WorkerConfig | None = None,
    cache_pool: CachePool | None = None,
    checkpoint_every_sec: float = 60,
    checkpoint_every_min_n_samples: int | None = None,
    n_checkpoints: int | None = None,
    gc_collect_every_n_steps: int = 10,
) -> SavableDataLoader[T]:
    """Make a loader that can save and restore its position.

    Arguments are those of :func:`get_loader`. ``checkpoint_every_sec``,
    ``checkpoint_every_min_n_samples`` and ``n_checkpoints`` bound what a restore has to replay in
    Megatron-Energon; here every batch carries its state and nothing is replayed, so any value is met.
    ``gc_collect_every_n_steps`` is met likewise: workers make no reference cycles per batch.
    """
    options = _options(
        dataset,
        prefetch_factor,
        watchdog_timeout_seconds,
        watchdog_initial_timeout_seconds,
        fail_on_timeout,
        start_method,
        worker_config,
        cache_pool,
    )
    return SavableDataLoader(dataset, options, pin_memory=pin_memory)
