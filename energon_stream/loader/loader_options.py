"""Options of loaders that sessions follow."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from energon_stream.arguments import check_whole
from energon_stream.errors import ConfigError

if TYPE_CHECKING:
    from energon_stream.lineage.tracker import Tracker
    from energon_stream.media import CachePool
    from energon_stream.pipeline.node import State
    from energon_stream.schedule import WeightChange
    from energon_stream.worker import WorkerConfig

MakeTracker: TypeAlias = "Callable[[Mapping[int, State], tuple[WeightChange, ...]], Tracker]"
OnWorkerDeath: TypeAlias = Literal["raise", "restart"]
"""What follows when a worker died: an error, or a new worker."""
OnWorkerHang: TypeAlias = Literal["warn", "raise", "restart"]
"""What follows when a worker makes no batch for too long: a warning, an error, or a new worker."""


@dataclass(frozen=True, slots=True)
class LoaderOptions:
    """Options of workers and watchdog: those of :func:`energon_stream.get_loader`, and others."""

    prefetch_factor: int = 2
    worker_type: str = "fork"
    start_method: str | None = None
    watchdog_timeout_seconds: float | None = 60.0
    watchdog_initial_timeout_seconds: float | None = None
    fail_on_timeout: bool = False
    on_worker_death: OnWorkerDeath = "raise"
    on_worker_hang: OnWorkerHang = "warn"
    cache_pool: CachePool | None = None
    decode_threads: int = 0
    shared_bytes: int = 256 << 20  # of each worker, for batches on the way to the main process
    # Makes a tracker of streams, given their states and weights that were set, that notes what differs from
    # the plan; None for none.
    tracker: MakeTracker | None = None
    is_traced: bool = False  # whether workers record their events from their start

    def __post_init__(self) -> None:
        if self.prefetch_factor < 1:
            raise ConfigError(f"prefetch_factor is {self.prefetch_factor}", hint="use 1 or more")
        if self.worker_type not in ("fork", "thread", "main"):
            raise ConfigError(f"worker_type is {self.worker_type!r}", hint="use 'fork', 'thread' or 'main'")
        check_whole("decode_threads", self.decode_threads, 0, "use the number of threads, or 0 for none")
        if self.start_method not in (None, *multiprocessing.get_all_start_methods()):
            raise ConfigError(
                f"start method {self.start_method!r} is not available",
                hint=f"use one of {multiprocessing.get_all_start_methods()}",
            )
        for seconds in (self.watchdog_timeout_seconds, self.watchdog_initial_timeout_seconds):
            if seconds is not None and not seconds > 0:
                raise ConfigError(
                    f"watchdog time-out is {seconds}",
                    hint="use a positive number of seconds, or None to switch the watchdog off",
                )
        for name, allowed in (("on_worker_death", OnWorkerDeath), ("on_worker_hang", OnWorkerHang)):
            if (value := getattr(self, name)) not in get_args(allowed):
                raise ConfigError(f"{name} is {value!r}", hint=f"use one of {', '.join(get_args(allowed))}")
        if self.fail_on_timeout and self.on_worker_hang == "restart":
            raise ConfigError(
                "fail_on_timeout=True ends the run, and on_worker_hang='restart' goes on",
                hint="pass one of them",
            )

    def check_threads(self, config: WorkerConfig) -> None:
        """Raise ConfigError for what does not go with threads, as nothing can interrupt them."""
        is_thread = self.worker_type == "thread" and config.num_workers > 0
        other = "worker_type='thread'" if is_thread else f"decode_threads={self.decode_threads}"
        if is_thread and self.on_worker_hang == "restart":
            hint = "use worker_type='fork', or on_worker_hang='raise', which ends the run"
            raise ConfigError(f"on_worker_hang='restart' does not go with {other}", hint=hint)
        if config.sample_timeout is not None and (is_thread or self.decode_threads):
            raise ConfigError(
                f"sample_timeout={config.sample_timeout} does not go with {other}: only the main thread of a "
                "process can be interrupted",
                hint="leave one of them out",
            )

    @property
    def hang_action(self) -> OnWorkerHang:
        """The action on a worker that hangs; ``fail_on_timeout=True`` means ``"raise"``."""
        return "raise" if self.fail_on_timeout else self.on_worker_hang

    def time_out(self, is_first: bool) -> float | None:
        """Return the seconds to wait for a batch, or for the first one; None for no limit."""
        if is_first and self.watchdog_initial_timeout_seconds is not None:
            return self.watchdog_initial_timeout_seconds
        return self.watchdog_timeout_seconds
