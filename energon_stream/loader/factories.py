"""Functions that make a loader for a dataset."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, TypeVar

from energon_stream.arguments import names_checked
from energon_stream.errors import ConfigError
from energon_stream.loader.loader import BasicDataLoader
from energon_stream.loader.loader_options import OnWorkerDeath, OnWorkerHang
from energon_stream.loader.savable import SavableDataLoader
from energon_stream.logs import warn_deprecated
from energon_stream.media import CachePool
from energon_stream.pipeline.dataset import SavableDataset
from energon_stream.worker import WorkerConfig

T = TypeVar("T")


def _arguments(given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a function below for its class, which takes no ``worker_config``."""
    config: WorkerConfig | None = given.pop("worker_config")
    if config is not None:
        if config != given["dataset"].worker_config:
            raise ConfigError(
                "the loader's worker_config differs from the dataset's",
                hint="leave it out: the loader uses the dataset's",
            )
        warn_deprecated("worker_config= of a loader", "that of the dataset")
    return given


@names_checked()
def get_loader(
    dataset: SavableDataset[T],
    *,
    prefetch_factor: int = 2,
    watchdog_timeout_seconds: float | None = 60.0,
    watchdog_initial_timeout_seconds: float | None = None,
    fail_on_timeout: bool = False,
    on_worker_death: OnWorkerDeath = "raise",
    on_worker_hang: OnWorkerHang = "warn",
    pin_memory: bool | str | None = None,
    start_method: str | None = None,
    worker_type: str | type = "fork",
    decode_threads: int = 0,
    worker_config: WorkerConfig | None = None,
    cache_pool: CachePool | None = None,
    max_bad: float | None = None,
) -> BasicDataLoader[T]:
    """Make a loader.

    Args:
        dataset: The dataset to iterate; its ``worker_config`` sets the number of workers.
        prefetch_factor: Batches that each worker keeps ready for each of its streams.
        watchdog_timeout_seconds: Seconds without a batch after which the watchdog logs the stacks of the
            worker, the user's function that it is in, and the sample; without workers, those of this
            process. None for never.
        watchdog_initial_timeout_seconds: The same for the first batch; None for ``watchdog_timeout_seconds``.
        fail_on_timeout: Megatron-Energon's name of ``on_worker_hang="raise"``.
        on_worker_death: What follows when a worker is killed or crashes. ``"raise"`` raises a
            ``WorkerError``. ``"restart"`` logs a warning and starts a new worker after the last batch that
            arrived: no batch is lost, repeated or reordered. A fourth loss in a row without a batch raises.
        on_worker_hang: What the watchdog does beside logging. ``"warn"`` does nothing more, ``"raise"``
            raises a ``WorkerError``, and ``"restart"`` kills the worker and starts a new one as above.
            Without workers, nothing can end the function, and every value means ``"warn"``.
        pin_memory: True to pin the memory of batches; None, or ``"automatic"``, pins where CUDA is available.
        start_method: ``"fork"``, ``"spawn"`` or ``"forkserver"``. Without fork, all functions must be
            picklable, and the program needs ``if __name__ == "__main__":``. None follows
            ``multiprocessing.set_start_method``; without it, workers fork, or come from a fork server if this
            process has read from object storage or initialized CUDA.
        worker_type: ``"fork"`` makes batches in processes, ``"thread"`` in threads of this process, and
            ``"main"`` when they are asked for. Batches and states are the same, also with ``decode_threads``.
            Each worker thread has a copy of the dataset and its hooks.
        decode_threads: Threads of each worker, or of this process without workers, that decode parts ahead of
            the hooks, such as images and arrays. A decoder of your own takes part if its class says
            ``thread_safe = True``. 0 for none.
        worker_config: Not needed; accepted if it equals the dataset's.
        cache_pool: Pool that cookers and hooks fetch auxiliary data with; None fetches when data is asked
            for. Close it after the loader, or leave that to the end of the process.
        max_bad: Share of the samples that may fail, such as 0.001; None for any. The run ends with
            ``TooManyBadSamplesError`` once 10 calls have failed, and more than this share of the samples that
            the rank has read since the start of the training.

    Raises:
        ConfigError: An option is impossible, or ``worker_config`` differs from the dataset's.
        WorkerError: (In iteration.) A worker cannot start, died or hangs.

    Example:
        >>> from energon_stream import get_loader, get_train_dataset
        >>> with get_loader(get_train_dataset("captions", batch_size=4)) as loader:
        ...     print(next(iter(loader)).image.shape)
        torch.Size([4, 3, 48, 64])
    """
    return BasicDataLoader(**_arguments(locals()))


@names_checked()
def get_savable_loader(
    dataset: SavableDataset[T],
    *,
    prefetch_factor: int = 2,
    watchdog_timeout_seconds: float | None = 60.0,
    watchdog_initial_timeout_seconds: float | None = None,
    fail_on_timeout: bool = False,
    on_worker_death: OnWorkerDeath = "raise",
    on_worker_hang: OnWorkerHang = "warn",
    pin_memory: bool | str | None = None,
    start_method: str | None = None,
    worker_type: str | type = "fork",
    decode_threads: int = 0,
    worker_config: WorkerConfig | None = None,
    cache_pool: CachePool | None = None,
    checkpoint_every_sec: float | None = 60,
    checkpoint_every_min_n_samples: int | None = None,
    n_checkpoints: int | None = None,
    gc_collect_every_n_steps: int = 10,
    gc_freeze_at_start: bool = True,
    run: str | os.PathLike[str] | None = None,
    run_storage_options: Mapping[str, Any] | None = None,
    max_bad: float | None = None,
) -> SavableDataLoader[T]:
    """Make a loader that can save and restore its position.

    It takes the arguments of :func:`get_loader`, and five of Megatron-Energon that any value satisfies:
    ``checkpoint_every_sec``, ``checkpoint_every_min_n_samples`` and ``n_checkpoints`` limit there how much a
    restore replays; here every batch carries its state, and nothing is replayed. ``gc_collect_every_n_steps``
    and ``gc_freeze_at_start`` are not needed: workers make no reference cycles per batch.

    ``run`` is a folder or URL where the run is recorded, so that :func:`open_run` and the commands ``which``
    and ``when`` tell which samples a step had; ``run_storage_options`` configure its file system. Logs are
    written when states are saved, and when the loader is closed.

    Example:
        >>> from energon_stream import get_savable_loader, get_train_dataset
        >>> def open_loader():
        ...     return get_savable_loader(get_train_dataset("captions", batch_size=4))
        >>> with open_loader() as loader, open_loader() as resumed:
        ...     batches = iter(loader)
        ...     first = next(batches)
        ...     resumed.restore_state_rank(loader.save_state_rank())
        ...     next(iter(resumed)).__key__ == next(batches).__key__
        True
    """
    return SavableDataLoader(**_arguments(locals()))
