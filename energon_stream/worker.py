"""Where this process stands in the job: rank, world size, workers, streams."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from energon_stream.errors import ConfigError

__all__ = ["DataParallelGroup", "WorkerConfig", "active_config"]


class DataParallelGroup(Protocol):
    """Anything with a rank and a size; ``torch.distributed.ProcessGroup`` is one."""

    def rank(self) -> int:
        """Rank of this process within the group."""

    def size(self) -> int:
        """Number of processes of the group."""


class _Active:
    """The call that a worker is in, which hooks read through ``WorkerConfig``; active within a ``with`` block.

    One object may be entered again and again, one call after the other, with other counters. It is a class and no
    generator, because every call of a hook enters one. The active call is kept by thread, because several threads may
    step loaders, and not in ``WorkerConfig``: setting an attribute of a class makes the interpreter forget what it has
    cached of the class.

    Attributes:
        sample_index: Counter of the hook's calls.
        batch_index: Counter of the batches; None for that of the enclosing block.
        outer: The enclosing block.
    """

    __slots__ = ("batch_index", "config", "outer", "sample_index", "stream")

    outer: _Active | None

    def __init__(self, config: WorkerConfig, stream: int, sample_index: int, batch_index: int | None) -> None:
        self.config = config
        self.stream = stream
        self.sample_index = sample_index
        self.batch_index = batch_index

    def __enter__(self) -> None:
        self.outer = outer = _here.active
        _here.active = self
        if outer is None or outer.config is not self.config:
            WorkerConfig.active_worker_config = self.config

    def __exit__(self, *_: object) -> None:
        _here.active = outer = self.outer
        if outer is None or outer.config is not self.config:
            WorkerConfig.active_worker_config = None if outer is None else outer.config


class _Here(threading.local):
    """What this thread has entered."""

    active: _Active | None = None


_here = _Here()


def active_config() -> Any:
    """Configuration of the hook that this thread is in; None outside of hooks.

    What a program has put in the place of ``WorkerConfig.active_worker_config`` comes first, as long as it is no
    ``WorkerConfig``: another thread may have left one there.
    """
    named = WorkerConfig.active_worker_config
    if named is None or isinstance(named, WorkerConfig):
        return None if _here.active is None else _here.active.config
    return named


@dataclass(frozen=True, eq=False)
class WorkerConfig:
    """Position of this process among the data-parallel ranks, and how it loads.

    Equality compares what decides the order of samples: rank, world size, number of streams and seed.

    Attributes:
        rank: Data-parallel rank; processes with equal rank read equal batches.
        world_size: Number of data-parallel ranks.
        num_workers: Worker processes of each rank; 0 loads in the main process.
        data_parallel_group: Any object with ``rank()`` and ``size()``; not touched here.
        seed_offset: The seed of everything random; another value is another order.
        num_streams: Number of logical sample streams of the whole job, a multiple of ``world_size``.
            Default: ``world_size * max(1, num_workers)``.
        worker_debug_path: Format string with ``{worker_id}`` and ``{pid}`` for debug logs.
        worker_log_level: 0 to 3.
        global_error_handler: Called as ``handler(error, sample, sources)`` for samples that fail.
            None logs and skips the sample.
        restore_error_handler: The same while samples are restored. None raises.
    """

    rank: int
    world_size: int
    num_workers: int
    data_parallel_group: DataParallelGroup | None = None
    seed_offset: int = 0
    worker_debug_path: str | None = None
    worker_log_level: int = 0
    global_error_handler: Callable[..., None] | None = None
    restore_error_handler: Callable[..., None] | None = None
    num_streams: int = field(default=0, kw_only=True)

    active_worker_config: ClassVar[Any] = None
    """The configuration that hooks see while they run, None outside. Looked up at call time."""

    def __post_init__(self) -> None:
        if self.world_size < 1 or not 0 <= self.rank < self.world_size:
            raise ConfigError(
                f"rank {self.rank} does not fit world_size {self.world_size}",
                hint="rank counts from 0 to world_size - 1",
            )
        if self.num_workers < 0:
            raise ConfigError(f"num_workers is {self.num_workers}", hint="use 0 to load in the main process")
        if self.num_streams == 0:
            object.__setattr__(self, "num_streams", self.world_size * max(1, self.num_workers))
        elif self.num_streams < 0 or self.num_streams % self.world_size:
            raise ConfigError(
                f"num_streams {self.num_streams} is not a multiple of world_size {self.world_size}",
                hint="choose a number that all world sizes you plan to use divide, for example 24",
            )

    @classmethod
    def default_worker_config(
        cls,
        num_workers: int = 4,
        data_parallel_group: DataParallelGroup | None = None,
        *,
        num_streams: int = 0,
    ) -> WorkerConfig:
        """Take rank and world size from the group, else from ``torch.distributed``, else 0 and 1."""
        rank, world_size = 0, 1
        if data_parallel_group is not None:
            rank, world_size = data_parallel_group.rank(), data_parallel_group.size()
        else:
            import torch.distributed as dist

            if dist.is_available() and dist.is_initialized():
                rank, world_size = dist.get_rank(), dist.get_world_size()
        return cls(
            rank=rank,
            world_size=world_size,
            num_workers=num_workers,
            data_parallel_group=data_parallel_group,
            num_streams=num_streams,
        )

    def _order(self) -> tuple[int, int, int, int]:
        return self.rank, self.world_size, self.num_streams, self.seed_offset

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, WorkerConfig):
            return NotImplemented
        return self._order() == other._order() and self.num_workers == other.num_workers

    def __hash__(self) -> int:
        return hash((self._order(), self.num_workers))

    @property
    def streams(self) -> range:
        """Streams that belong to this rank: those congruent to the rank modulo the world size."""
        return range(self.rank, self.num_streams, self.world_size)

    def worker_streams(self, worker: int) -> list[int]:
        """Streams that worker ``worker`` of this rank serves (all of them without workers)."""
        return list(self.streams)[worker :: max(1, self.num_workers)]

    def stream_seed(self, stream: int) -> int:
        """Seed of a stream: the last four bytes of SHA-1 over ``"<stream>,<seed_offset>"``.

        The arithmetic is Megatron-Energon's ``worker_seed``, applied to the logical stream.
        """
        digest = hashlib.sha1(f"{stream},{self.seed_offset}".encode()).digest()
        return int.from_bytes(digest[-4:], "big")

    def worker_seed(self, override_global_rank: int | None = None) -> int:
        """Seed of the stream that is being served (of the rank's first stream outside a worker)."""
        if override_global_rank is not None:
            return self.stream_seed(override_global_rank)
        return self.stream_seed(self.global_worker_id())

    def global_rank(self) -> int:
        """The data-parallel rank."""
        return self.rank

    def global_worker_id(self, override_local_worker_id: int | None = None) -> int:
        """Number of the stream being served, among all streams of the job."""
        if override_local_worker_id is not None:
            return self.rank + override_local_worker_id * self.world_size
        return self.rank if _here.active is None else _here.active.stream

    def rank_worker_id(self) -> int:
        """Number of the stream being served, among the streams of this rank."""
        return self.global_worker_id() // self.world_size

    @property
    def active_worker_sample_index(self) -> int:
        """Counter of the current hook's calls in this stream."""
        return 0 if _here.active is None else _here.active.sample_index

    @property
    def active_worker_batch_index(self) -> int:
        """Counter of the batches of this stream."""
        active = _here.active
        while active is not None and active.batch_index is None:
            active = active.outer
        return 0 if active is None or active.batch_index is None else active.batch_index

    def activate(self, stream: int, sample_index: int = 0, batch_index: int | None = None) -> _Active:
        """Make this configuration visible to hooks for the length of a ``with`` block."""
        return _Active(self, stream, sample_index, batch_index)

    def config(self) -> dict[str, Any]:
        """What decides the order of samples, as plain values."""
        return {
            "rank": self.rank,
            "world_size": self.world_size,
            "num_workers": self.num_workers,
            "num_streams": self.num_streams,
            "seed_offset": self.seed_offset,
        }
