"""The configuration of a process in the job: rank, world size, workers, streams, seed."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, ClassVar

from energon_stream.active_call import ACTIVE_CONFIG, Activation, ActiveCall, KeepsActiveConfig, here
from energon_stream.arguments import check_whole
from energon_stream.conventions import Conventions, checked, conventions
from energon_stream.errors import ConfigError, WorkerError
from energon_stream.plugins import load_plugin
from energon_stream.worker_fields import AssignableUntilHeld, DataParallelGroup, checked_streams, share_of


@dataclass(eq=False)
class WorkerConfig(AssignableUntilHeld, metaclass=KeepsActiveConfig):
    """The rank of this process, and its workers, streams and seed.

    Two configurations are equal if rank, world size, number of workers, number of streams and seed are.
    Attributes cannot be assigned; with Megatron-Energon's conventions they can, until a dataset is made.

    Attributes:
        rank: Data-parallel rank; processes of one rank read the same batches.
        world_size: Number of data-parallel ranks.
        num_workers: Worker processes of each rank; 0 loads in the main process.
        data_parallel_group: Any object with ``rank()`` and ``size()``, kept for collective operations.
        seed_offset: The seed of everything random; another value is another order.
        num_streams: Number of logical sample streams of the whole job, a multiple of ``world_size``.
            Default: that of the variable ``ENERGON_STREAM_NUM_STREAMS``, or ``world_size * max(1,
            num_workers)``; a restore goes on with the state's number. ``dataclasses.replace`` keeps it, and
            so the order of samples; pass ``num_streams=0`` for the default of the new numbers.
        logical_workers: Megatron-Energon 8's name of ``num_streams``, where it divides the number of workers.
        conventions: ``"own"``, or ``"energon"`` for those of Megatron-Energon, where they differ. Default:
            those of the process, which are Megatron-Energon's under its alias.
        worker_debug_path: Path of the debug logs, a format string with ``{worker_id}`` and ``{pid}``, so
            that each process has its own. The number of a rank's main process is ``rank * (num_workers +
            1)``; those of its workers follow.
        worker_log_level: What is written to them. 0: only what the program passes to :meth:`worker_log`; 1:
            the samples and batches of training; 2: those of validation, and the ends of passes.
        global_error_handler: Called as ``handler(error, sample, sources)`` for samples that fail. None logs
            the error and skips the sample.
        restore_error_handler: The same for samples that are restored. None raises the error.
        dealt_to: Ranks by which samples are dealt: stream ``s`` reads share ``s % dealt_to * (num_streams //
            dealt_to) + s // dealt_to``. Default: 1; in 7.4.1's way, and without ``num_streams``,
            ``world_size``: a worker reads the share of its :meth:`global_worker_id`. A state keeps it.
        sample_timeout: Seconds that decoding a sample, or a call of a hook, may take; None for no limit. A
            longer one is interrupted in Python code, and fails with ``SampleTimeoutError``.

    Raises:
        ConfigError: The numbers do not fit together.

    Example:
        >>> from energon_stream import WorkerConfig
        >>> config = WorkerConfig(rank=1, world_size=2, num_workers=2)
        >>> config.num_streams, list(config.streams), config.worker_streams(0)
        (4, [1, 3], [1])
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
    logical_workers: int | None = field(default=None, kw_only=True)
    conventions: Conventions = field(default_factory=conventions, kw_only=True)
    dealt_to: int = field(default=0, kw_only=True)
    sample_timeout: float | None = field(default=None, kw_only=True)

    active_worker_config: ClassVar[Any] = ACTIVE_CONFIG
    """The configuration that hooks see while they run; None outside of hooks. Each thread has its own."""

    def __post_init__(self) -> None:
        given = {"num_streams": self.num_streams, "dealt_to": self.dealt_to}
        for name, value in self.config().items():
            least = -math.inf if name == "seed_offset" else 0
            hint = "pass a whole number, as int(os.environ['RANK']) for rank, or leave out what has a default"
            check_whole(name, value, least, hint)
            if value is None:
                raise ConfigError(f"{name} is None", hint=hint)
        if self.world_size < 1 or not 0 <= self.rank < self.world_size:
            raise ConfigError(
                f"rank {self.rank} does not fit world_size {self.world_size}",
                hint="rank counts from 0 to world_size - 1",
            )
        seconds: Any = self.sample_timeout
        if not (seconds is None or (isinstance(seconds, Real) and float(seconds) > 0)):
            raise ConfigError(f"sample_timeout is {seconds!r:.80}", hint="use seconds, or None")
        checked(self.conventions, "conventions")
        if self.worker_debug_path is not None:
            load_plugin("debug_log").check_path(self.worker_debug_path)
        self.num_streams, self.dealt_to = checked_streams(self)
        self._given = given

    @classmethod
    def default_worker_config(
        cls,
        num_workers: int = 4,
        data_parallel_group: DataParallelGroup | None = None,
        *,
        num_streams: int = 0,
    ) -> WorkerConfig:
        """Make the configuration of this process; the group or ``torch.distributed`` has rank and size.

        Without a group and an initialized ``torch.distributed``, the rank is 0 and the world size 1.

        Args:
            num_workers: Worker processes of each rank.
            data_parallel_group: Any object with ``rank()`` and ``size()``.
            num_streams: Number of logical streams of the whole job; 0 for the default, as above.
        """
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

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, WorkerConfig):
            return NotImplemented
        return self.config() == other.config()

    def __hash__(self) -> int:
        return hash(tuple(self.config().values()))

    @property
    def streams(self) -> range:
        """Streams of this rank: ``rank``, ``rank + world_size``, …"""
        return range(self.rank, self.num_streams, self.world_size)

    def worker_streams(self, worker: int) -> list[int]:
        """Return the streams of a worker of this rank; without workers, all streams of the rank."""
        return list(self.streams)[worker :: max(1, self.num_workers)]

    def share(self, stream: int) -> int:
        """Return the number of the share of all samples that a stream reads; see ``dealt_to``."""
        return share_of(stream, self.num_streams, self.dealt_to)

    def stream_seed(self, stream: int) -> int:
        """Return the seed of a stream: the last four bytes of SHA-1 over ``"<share>,<seed_offset>"``.

        The arithmetic is Megatron-Energon's ``worker_seed``, applied to the share that the stream reads.
        """
        return self._seed_of(self.share(stream))

    def _seed_of(self, share: int) -> int:
        digest = hashlib.sha1(f"{share},{self.seed_offset}".encode()).digest()
        return int.from_bytes(digest[-4:], "big")

    def worker_seed(self, override_local_worker_id: int | None = None) -> int:
        """Return the seed of the current stream; outside of a pipeline, of the rank's first stream.

        Args:
            override_local_worker_id: Number of a stream among those of this rank, to get that stream's seed.
        """
        stream = self._stream(override_local_worker_id)
        running = self if here.active is None else here.active.config  # other streams after some restores
        return self._seed_of(running.share(stream))

    def global_rank(self) -> int:
        """Return the data-parallel rank."""
        return self.rank

    def global_worker_id(self, override_local_worker_id: int | None = None) -> int:
        """Return the current stream's number in the job; in 7.4.1's way, ``rank * num_workers + worker``."""
        stream = self._stream(override_local_worker_id)
        if self.deals() or self.conventions == "own":  # dealt as to the job's first ranks
            return self.share(stream) if self.deals() else stream
        workers = max(1, self.num_workers)
        return stream % self.world_size * workers + stream // self.world_size % workers

    def _stream(self, of_rank: int | None = None) -> int:
        """Return the stream with a number among those of this rank; None for the current one."""
        if of_rank is not None:
            return self.rank + of_rank * self.world_size
        return self.rank if here.active is None else here.active.stream

    def rank_worker_id(self) -> int:
        """Return the number of the current stream, among the streams of this rank."""
        self.deals()
        return self._stream() // self.world_size

    @property
    def stream_sample_index(self) -> int:
        """Counter of the current hook's calls in the current stream."""
        return 0 if here.active is None else here.active.sample_index

    @property
    def stream_batch_index(self) -> int:
        """Counter of the batches of the current stream."""
        return 0 if here.active is None else here.active.batch_index or 0

    @property
    def active_worker_sample_index(self) -> int:
        """The same as ``stream_sample_index``; in 7.4.1's way, among the calls on the rank."""
        return self._of_rank(self.stream_sample_index)

    @property
    def active_worker_batch_index(self) -> int:
        """The same as ``stream_batch_index``; in 7.4.1's way, among the batches of the rank."""
        return self._of_rank(self.stream_batch_index)

    def _of_rank(self, count: int) -> int:
        return count if self.conventions == "own" else count * len(self.streams) + self.rank_worker_id()

    def activate(self, stream: int, sample_index: int = 0, batch_index: int | None = None) -> ActiveCall:
        """Make this configuration visible to hooks for the length of a ``with`` block."""
        return ActiveCall(self, stream, sample_index, batch_index)

    def worker_activate(
        self, sample_index: int, override_global_rank: int | None = None, cache_pool: Any = None
    ) -> None:
        """Make this configuration visible to hooks that the program calls itself, outside of a loader.

        Hooks then see ``sample_index`` as the counter of their calls and of the batches, and the seeds that
        follow from it. It holds for the calling thread, until :meth:`worker_deactivate`.

        Args:
            sample_index: The counter.
            override_global_rank: The :meth:`global_worker_id` whose seeds hooks see; default: that of the
                rank's first stream.
            cache_pool: Pool that hooks fetch auxiliary data with; None for one that keeps nothing.

        Raises:
            WorkerError: A configuration is active, as while a loader calls a hook.

        Example:
            >>> import random
            >>> from energon_stream import WorkerConfig, stateless
            >>> crop = stateless(restore_seeds=True)(lambda text: text[random.randrange(9) :])
            >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
            >>> def cropped(call):
            ...     config.worker_activate(call)
            ...     try:
            ...         return crop("a caption of some length")
            ...     finally:
            ...         config.worker_deactivate()
            >>> cropped(3) == cropped(3)
            True
        """
        if here.active is not None:
            raise WorkerError(
                "a configuration is active in this thread",
                hint="call worker_deactivate first; inside a hook, the loader's configuration is active",
            )
        stream = self.rank if override_global_rank is None else override_global_rank
        if override_global_rank is not None and self.conventions == "energon":
            rank, worker = divmod(override_global_rank, max(1, self.num_workers))
            stream = rank + worker * self.world_size
        active = Activation(self, stream, sample_index, sample_index)
        active.cache_pool = cache_pool
        active.__enter__()

    def worker_deactivate(self) -> None:
        """End what :meth:`worker_activate` began; nothing happens if nothing is active.

        Raises:
            WorkerError: A pushed sample index is left, or a loader calls a hook.
        """
        active = here.active
        if active is None:
            return
        if not isinstance(active, Activation) or active.outer is not None:
            raise WorkerError(
                f"the sample index {active.sample_index} is in use",
                hint="call worker_pop_sample_index after each worker_push_sample_index, and let hooks return",
            )
        active.__exit__()

    def worker_push_sample_index(self, sample_index: int) -> None:
        """Show another counter of calls to hooks, until :meth:`worker_pop_sample_index`.

        Raises:
            WorkerError: No configuration is active.
        """
        if here.active is None:
            raise WorkerError("no configuration is active", hint="call worker_activate first")
        Activation(here.active.config, self._stream(), sample_index, None).__enter__()

    def worker_pop_sample_index(self) -> int:
        """End the last :meth:`worker_push_sample_index`, and return its counter.

        Raises:
            WorkerError: No pushed counter is left.
        """
        active = here.active
        if not isinstance(active, Activation) or active.outer is None:
            raise WorkerError(
                "worker_pop_sample_index without worker_push_sample_index", hint="call them in pairs"
            )
        active.__exit__()
        return active.sample_index

    def should_log(self, level: int) -> bool:
        """Return True if lines of a level belong into the debug log: ``level <= worker_log_level``."""
        return level <= self.worker_log_level

    def worker_log(self, data: Mapping[str, Any]) -> None:
        """Write a line to the debug log of this process, whatever its level.

        Without ``worker_debug_path``, the line is a message of the logger ``energon_stream``, at level INFO.

        Args:
            data: Values for JSON; ``"t"`` is the line's type. Other values are written as text.

        Example:
            >>> from energon_stream import WorkerConfig
            >>> path = "debug/{worker_id}.jsonl"
            >>> config = WorkerConfig(0, 1, 0, worker_debug_path=path, worker_log_level=1)
            >>> if config.should_log(1):
            ...     config.worker_log({"t": "my_step", "r": config.rank, "loss": 0.5})
            >>> print(open("debug/0.jsonl").readline())
            {"t": "my_step", "r": 0, "loss": 0.5}
        """
        load_plugin("debug_log").write(self, data)

    def assert_worker(self) -> None:
        """Check that hooks may run here: in a worker, where this configuration has workers.

        Raises:
            WorkerError: The configuration has workers, and this is outside of them.
        """
        if self.num_workers and here.active is None:
            raise WorkerError(
                "this runs outside of the workers", hint="call it in a hook, or after worker_activate"
            )

    def config(self) -> dict[str, Any]:
        """Return the fields that decide the order of samples, as plain values."""
        names = ("rank", "world_size", "num_workers", "num_streams", "seed_offset")
        return {name: getattr(self, name) for name in names}
