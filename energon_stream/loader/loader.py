"""Loaders: what the training loop iterates, saves and restores."""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Generic, TypeVar

import torch

from energon_stream.cache import CachePool
from energon_stream.errors import ConfigError, StateInUseError
from energon_stream.loader.session import LoaderOptions, Session, open_session
from energon_stream.pipeline.dataset import SavableDataset
from energon_stream.pipeline.engine import Turn, with_restore_key
from energon_stream.pipeline.node import Context, RestoreKey, State
from energon_stream.state import check_rank_state, fingerprint, make_rank_state
from energon_stream.storage import CounterSnapshot, run_isolated
from energon_stream.worker import WorkerConfig

__all__ = ["BasicDataLoader", "SavableDataLoader", "get_loader", "get_savable_loader"]

T = TypeVar("T")


class BasicDataLoader(Generic[T]):
    """Iterates a dataset in this process or in workers.

    The streams of the rank take turns, so the order of the batches does not depend on timing. A ``for``
    loop ends with the pass; the next one goes on after it. Leaving a loop early and iterating again goes
    on where it was left.

    Args:
        dataset: What to iterate.
        options: How batches come here.
        pin_memory: Whether batches are pinned; None pins where CUDA is available.
    """

    def __init__(
        self,
        dataset: SavableDataset[T],
        options: LoaderOptions | None = None,
        *,
        pin_memory: bool | None = None,
    ) -> None:
        self.dataset = dataset
        self.worker_config = dataset.worker_config
        self._options = options or LoaderOptions()
        self._pin = torch.cuda.is_available() if pin_memory is None else pin_memory
        self._session: Session | None = None
        self._turn = Turn(tuple(self.worker_config.streams))
        self._states: dict[int, State] = dict.fromkeys(self._turn.streams)

    def __iter__(self) -> Iterator[T]:
        """Iterate to the end of the pass."""
        if self._session is None:
            turn = replace(self._turn)
            self._session = open_session(self.dataset, self._states, turn, self._options)
        while True:
            stream = self._turn.current()
            try:
                step = self._session.step(stream)
            except BaseException:
                self.close()
                raise
            self._states[stream] = step.state
            if step.ended:
                if self._turn.end():
                    return
                continue
            self._turn.done()
            batch = [self._pinned(step.value)]
            del step
            yield batch.pop()  # so that nothing here keeps it alive while the next one is read

    def _pinned(self, value: Any) -> Any:
        if not self._pin:
            return value
        from torch.utils.data._utils.pin_memory import pin_memory

        return pin_memory(value)  # type: ignore[no-untyped-call]

    def __len__(self) -> int:
        """Batches of this rank in one pass; for endless datasets those of one pass over the data."""
        return max(1, self.dataset.len_rank())

    def __bool__(self) -> bool:
        return True

    def __enter__(self) -> BasicDataLoader[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not sys.is_finalizing() and getattr(self, "_session", None) is not None:
            self.close()

    def close(self) -> None:
        """End the workers. Iterating again starts new ones after the last batch given out."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def io_counters(self) -> CounterSnapshot:
        """Requests, bytes, retries and errors of this loader's readers since iteration began.

        With workers, what each had counted when it made the last batch that was taken from it.
        """
        return CounterSnapshot() if self._session is None else self._session.io_counters()

    def config(self) -> dict[str, Any]:
        """The pipeline and the topology as plain values."""
        return {"dataset": self.dataset.config(), "worker_config": self.worker_config.config()}

    def can_restore_sample(self) -> bool:
        """Whether :meth:`restore_sample` can work: all functions are stateless."""
        return self.dataset.can_restore_sample()

    def restore_sample(self, restore_key: RestoreKey) -> T:
        """Make one element again from its ``__restore_key__``.

        Raises:
            ConfigError: Some function is not stateless, or the key is not one of a loader's.
        """
        self.dataset.assert_can_restore()
        if not restore_key or restore_key[0] != "Stream":
            raise ConfigError(
                f"{restore_key!r} is not a restore key",
                hint="pass the __restore_key__ of a batch of such a loader",
            )
        stream, key = restore_key[1], restore_key[2]
        # Before its workers are forked, this process must not open a client of its own.
        before_fork = self.worker_config.num_workers > 0 and self._session is None
        made: T = (run_isolated if before_fork else _call)(_restore, self.dataset, stream, key)
        return made


def _call(function: Any, *args: Any) -> Any:
    return function(*args)


def _restore(dataset: SavableDataset[Any], stream: int, key: RestoreKey) -> Any:
    config = dataset.worker_config
    with config.activate(stream):
        item = dataset.restore_many([key], Context(config, stream))[0]
    return with_restore_key(item.value, ("Stream", stream, item.key))


class SavableDataLoader(BasicDataLoader[T]):
    """A loader whose position can be saved and restored exactly.

    A stream's state travels with each of its batches, so saving reads what the main process already
    has: it asks no worker and works while workers are busy or dead.
    """

    def save_state_rank(self) -> dict[str, Any]:
        """Where this rank stands, after the last batch given out, in built-in types only."""
        prints = fingerprint(self.dataset.config())
        return make_rank_state(prints, self.worker_config, self._turn, copy.deepcopy(self._states))

    def restore_state_rank(self, state: dict[str, Any] | bytes | None) -> None:
        """Go on where a saved state stands; before the first iteration only.

        Args:
            state: What :meth:`save_state_rank` returned, or its msgpack bytes; None for the start.

        Raises:
            StateInUseError: Iteration has begun.
            StateError: The state does not fit this dataset or topology.
        """
        if self._session is not None:
            raise StateInUseError(
                "the loader is being iterated", hint="restore before the first iteration, or in a new loader"
            )
        if state is None:
            self._turn = Turn(self._turn.streams)
            self._states = dict.fromkeys(self._turn.streams)
            return
        prints = fingerprint(self.dataset.config())
        turn, streams = check_rank_state(state, prints, self.worker_config)
        self._turn = turn
        self._states = {stream: copy.deepcopy(streams.get(stream)) for stream in self._turn.streams}


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
