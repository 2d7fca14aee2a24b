"""Loaders: what the training loop iterates, saves and restores."""

from __future__ import annotations

import marshal
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Generic, TypeVar

import torch

from energon_stream.cache import CachePool
from energon_stream.errors import ConfigError, StateInUseError
from energon_stream.loader.ranks import broadcast_states, gather_states
from energon_stream.loader.session import LoaderOptions, Session, open_session
from energon_stream.pipeline.dataset import SavableDataset
from energon_stream.pipeline.engine import Turn, with_restore_key
from energon_stream.pipeline.node import Context, RestoreKey, State
from energon_stream.state import (
    check_rank_state,
    deal_state,
    fingerprint,
    join_streams,
    make_rank_state,
    split_streams,
)
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
            self._prepare()
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

    def _prepare(self) -> None:
        """Do what is needed later, while workers make the first batch."""

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

    It is a ``torch.distributed.checkpoint.stateful.Stateful``: one entry a stream, so that
    ``torch.distributed.checkpoint`` deals the states to any number of ranks that divides the streams.
    """

    @cached_property
    def _prints(self) -> dict[str, str]:
        return fingerprint(self.dataset.config())

    def _prepare(self) -> None:
        _ = self._prints  # takes a while where there are many sources; saving should not

    def save_state_rank(self) -> dict[str, Any]:
        """Where this rank stands, after the last batch given out, in built-in types only."""
        return make_rank_state(self._prints, self.worker_config, self._turn, _copied(self._states))

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
        turn, streams = check_rank_state(state, self._prints, self.worker_config)
        self._turn = turn
        self._states = _copied({stream: streams.get(stream) for stream in self._turn.streams})

    def save_state_global(
        self, global_dst_rank: int | None = None, *, dst_rank: int | None = None
    ) -> list[dict[str, Any]] | None:
        """The states of all ranks, on one of them. All ranks have to call it, after the same step.

        Args:
            global_dst_rank: Number of that process in ``torch.distributed``; default 0.
            dst_rank: Another name of it.

        Returns:
            The list of states there, None elsewhere.

        Raises:
            ConfigError: There is no process group of all ranks, or two destinations.
        """
        if global_dst_rank is not None and dst_rank is not None and global_dst_rank != dst_rank:
            raise ConfigError(
                f"global_dst_rank is {global_dst_rank} and dst_rank is {dst_rank}", hint="pass one of them"
            )
        chosen = global_dst_rank if global_dst_rank is not None else dst_rank or 0
        return gather_states(self.save_state_rank(), self.worker_config, chosen)

    def restore_state_global(self, states: Sequence[Any] | None, *, src_rank: int | None = None) -> None:
        """Go on where all ranks stood, with any number of ranks that divides the streams.

        Args:
            states: What :meth:`save_state_global` returned, or the states of all ranks in a list; None for the
                start.
            src_rank: The rank of the data-parallel group that has the states, where the others pass None; all
                of them have to call this then. None: every rank passes the list.

        Raises:
            StateInUseError: Iteration has begun.
            StateError: The states do not fit each other, this dataset or this number of ranks.
            ConfigError: ``src_rank`` is given and there is no process group of all ranks.
        """
        config = self.worker_config
        if src_rank is not None:
            states = broadcast_states(states, config, src_rank)
        state = None if states is None else deal_state(states, config.rank, config.world_size)
        self.restore_state_rank(state)

    def state_dict(self) -> dict[str, Any]:
        """Where this rank stands, with one entry (of bytes) for each of its streams."""
        return split_streams(self.save_state_rank())

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where a state dict stands; before the first iteration only.

        Args:
            state_dict: What :meth:`state_dict` returned on this rank, or the entries of this rank's streams,
                whichever ranks had them.

        Raises:
            StateInUseError: Iteration has begun.
            StateError: The state does not fit this dataset or topology.
        """
        config = self.worker_config
        state = join_streams(state_dict, config.rank, config.world_size, config.num_streams)
        self.restore_state_rank(state)


def _copied(states: dict[int, State]) -> dict[int, State]:
    """A deep copy of plain values, in a fraction of the time of ``copy.deepcopy``."""
    copied: dict[int, State] = marshal.loads(marshal.dumps(states))
    return copied


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
