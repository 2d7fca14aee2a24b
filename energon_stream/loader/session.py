"""Sessions of running loaders: the streams of one rank, in this process or in workers."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import pickle
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from energon_stream.errors import ConfigError, WorkerError
from energon_stream.loader.channel import Receiver, Wire
from energon_stream.loader.start import choose_start_method
from energon_stream.loader.worker_process import Failure, run_worker
from energon_stream.media import CachePool, use_pool
from energon_stream.pipeline.engine import Engine, Rotation, Step
from energon_stream.storage import CounterSnapshot, default_counters
from energon_stream.storage.fork import forking

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext
    from multiprocessing.process import BaseProcess

    from energon_stream.pipeline.dataset import SavableDataset
    from energon_stream.pipeline.node import State

_log = logging.getLogger(__name__)
_JOIN_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class LoaderOptions:
    """Options of workers and watchdog; see :func:`energon_stream.get_loader`.

    Raises ConfigError if an option is impossible.
    """

    prefetch_factor: int = 2  # batches that each worker keeps ready for each of its streams
    # One of ``multiprocessing.get_all_start_methods()``; None to choose: see ``loader/start.py``.
    start_method: str | None = None
    # Size of the shared memory of each worker, for batches on the way to the main process.
    shared_bytes: int = 256 << 20
    # Seconds without a batch after which workers write their stacks; None for never.
    watchdog_timeout_seconds: float | None = 60.0
    # The same for the first batch; None for ``watchdog_timeout_seconds``.
    watchdog_initial_timeout_seconds: float | None = None
    fail_on_timeout: bool = False  # True if the watchdog ends the run
    # Pool that cookers and hooks fetch with; each worker has its own share of it.
    cache_pool: CachePool | None = None

    def __post_init__(self) -> None:
        if self.prefetch_factor < 1:
            raise ConfigError(f"prefetch_factor is {self.prefetch_factor}", hint="use 1 or more")
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


class Session(Protocol):
    """The running streams of one rank."""

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the workers."""

    def step(self, stream: int) -> Step:
        """Return the next step; the rotation decides that it is one of ``stream``."""

    def io_counters(self) -> CounterSnapshot:
        """Return the requests and bytes so far."""

    def close(self) -> None:
        """End workers and close readers."""


class _InProcess:
    """Runs the streams in the calling process."""

    pids: tuple[int, ...] = ()

    def __init__(
        self,
        dataset: SavableDataset[Any],
        states: Mapping[int, State],
        rotation: Rotation,
        cache_pool: CachePool | None,
    ) -> None:
        self._before = default_counters().snapshot()
        self._pool = cache_pool
        with use_pool(cache_pool):
            self._engine = Engine(dataset, rotation.streams, states, rotation)

    def step(self, stream: int) -> Step:
        with use_pool(self._pool):
            return self._engine.step_any()

    def io_counters(self) -> CounterSnapshot:
        return default_counters().snapshot() - self._before

    def close(self) -> None:
        self._engine.close()


class _Workers:
    """Runs the streams in worker processes; the step of a stream comes from the worker that owns the
    stream."""

    def __init__(
        self,
        dataset: SavableDataset[Any],
        states: Mapping[int, State],
        rotation: Rotation,
        options: LoaderOptions,
    ) -> None:
        self._options = options
        self._owner: dict[int, int] = {}
        self._receivers: list[Receiver] = []
        self._processes: list[BaseProcess] = []
        self._first = True
        self._ended: set[int] = set()  # workers whose last message, the end of a pass, awaits its answer
        config = dataset.worker_config
        values = (dataset, states, rotation, options.cache_pool)
        self._method = choose_start_method(options.start_method, values)
        context: BaseContext = multiprocessing.get_context(self._method)
        # A fork server has the environment of the time when it started.
        environment = dict(os.environ) if self._method == "forkserver" else None
        for worker in range(config.num_workers):
            streams = config.worker_streams(worker)
            if not streams:
                continue
            self._owner.update(dict.fromkeys(streams, len(self._processes)))
            parent, child = context.Pipe()
            wire = Wire(parent, child, options.shared_bytes, options.prefetch_factor * len(streams))
            process = context.Process(  # type: ignore[attr-defined]
                target=run_worker,
                args=(
                    wire,
                    dataset,
                    streams,
                    states,
                    rotation.of_streams(streams),
                    options.cache_pool,
                    environment,
                ),
                daemon=True,
            )
            with forking() if self._method == "fork" else contextlib.nullcontext():
                process.start()
            wire.close_child()
            self._receivers.append(Receiver(wire))
            self._processes.append(process)
        self._counters = [CounterSnapshot()] * len(self._processes)

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(process.pid for process in self._processes if process.pid is not None)

    def step(self, stream: int) -> Step:
        worker = self._owner[stream]
        receiver = self._receivers[worker]
        if worker in self._ended:
            self._ended.remove(worker)
            receiver.acknowledge()
        self._wait(worker)
        try:
            message = receiver.receive()
        except (EOFError, ConnectionResetError) as error:
            raise self._died(worker) from error
        self._first = False
        if isinstance(message, Failure) or not message[0].ended:
            receiver.acknowledge()
        else:
            # The worker waits for the acknowledgement: it must not read the next pass unasked.
            self._ended.add(worker)
        if isinstance(message, Failure):
            raise _as_error(message)
        step, self._counters[worker] = message
        if not isinstance(step, Step) or step.stream != stream:
            raise WorkerError(
                f"worker {worker} sent {step!r:.100} where a batch of stream {stream} was expected",
                hint="please report this as a bug",
            )
        return step

    def io_counters(self) -> CounterSnapshot:
        return sum(self._counters, CounterSnapshot())

    def _wait(self, worker: int) -> None:
        """Wait for a message; have the worker write its stacks when none comes for long."""
        options = self._options
        seconds = options.watchdog_timeout_seconds
        if self._first and options.watchdog_initial_timeout_seconds is not None:
            seconds = options.watchdog_initial_timeout_seconds
        begin = time.monotonic()
        while not self._receivers[worker].pipe.poll(seconds):
            waited = time.monotonic() - begin
            if not self._processes[worker].is_alive():
                raise self._died(worker)
            pid = self._processes[worker].pid
            if pid is not None and hasattr(signal, "SIGUSR1"):
                os.kill(pid, signal.SIGUSR1)  # the worker's faulthandler writes its stacks to stderr
            late = f"worker {worker} (process {pid}) has returned no batch for {waited:.0f} s"
            hint = "its stacks are on stderr; raise watchdog_timeout_seconds if the work takes that long"
            if options.fail_on_timeout:
                raise WorkerError(late, hint=hint)
            _log.warning("%s; %s", late, hint)

    def _died(self, worker: int) -> WorkerError:
        process = self._processes[worker]
        process.join(_JOIN_SECONDS)
        code = process.exitcode
        what = f"worker {worker} (process {process.pid}) died with exit code {code}"
        if code == -signal.SIGKILL:
            hint = "something killed it with SIGKILL; often that is the kernel, when memory runs out"
        elif code is not None and code < 0:
            hint = f"it was ended by {signal.Signals(-code).name}; its stderr may say more"
        elif self._first and self._method != "fork":
            what = f"worker {worker} did not start by {self._method!r}: exit code {code}"
            hint = (
                'the program is imported again by such workers: put it under `if __name__ == "__main__":`. '
                'Its stderr says more; start_method="fork" needs no guard'
            )
        else:
            hint = "its stderr may say more"
        return WorkerError(what, hint=hint)

    def close(self) -> None:
        for receiver in self._receivers:
            receiver.close()
        deadline = time.monotonic() + _JOIN_SECONDS  # of all workers together
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        self._receivers, self._processes = [], []


def _as_error(failure: Failure) -> BaseException:
    """Return the worker's error, with the worker's traceback as the cause."""
    cause = WorkerError(f"a worker failed\n\n{failure.trace}")
    if failure.error is None:
        return WorkerError(f"a worker failed with {failure.summary}\n\n{failure.trace}")
    error: BaseException = pickle.loads(failure.error)  # written by our own worker
    error.__cause__ = cause
    return error


def open_session(
    dataset: SavableDataset[Any], states: Mapping[int, State], rotation: Rotation, options: LoaderOptions
) -> Session:
    """Start running a rank's streams."""
    if dataset.worker_config.num_workers == 0:
        return _InProcess(dataset, states, rotation, options.cache_pool)
    return _Workers(dataset, states, rotation, options)
