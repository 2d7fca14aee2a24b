"""The worker processes of a loader, which replaces workers that died or hang."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import pickle
import select
import signal
import time
from dataclasses import replace
from multiprocessing import util
from typing import TYPE_CHECKING, Any

from energon_stream.errors import WorkerError
from energon_stream.fork import forking, interrupts_deferred, signals_held
from energon_stream.loader.channel import Receiver, Wire
from energon_stream.loader.observe.monitor import Activity, Monitor
from energon_stream.loader.observe.stats import ProcessReport
from energon_stream.loader.resources import limit_error
from energon_stream.loader.start import choose_start_method, start_process
from energon_stream.loader.worker_process import HELD_SIGNALS, Failure, run_worker
from energon_stream.pipeline.stream_runner import Step
from energon_stream.urls import absolute_path

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.context import BaseContext
    from multiprocessing.process import BaseProcess

    from energon_stream.loader.loader_options import LoaderOptions
    from energon_stream.loader.loader_position import LoaderPosition
    from energon_stream.pipeline.dataset import SavableDataset

_log = logging.getLogger(__name__)

RESTARTS_IN_A_ROW = 3  # new workers without a batch in between, after which a loader gives up
_NO_FORK_SERVER = 255  # exit code that multiprocessing reports for a worker whose fork server is gone
_JOIN_SECONDS = 2.0
# Seconds between checks that a worker lives. Its pipe and its sentinel show it at once in most cases: not
# where a process that the worker started has inherited them.
_CHECK_SECONDS = 1.0


def closed_meanwhile() -> WorkerError:
    """Return the error of a loader that a signal handler closed."""
    return WorkerError(
        "the loader was closed while it waited for a batch",
        hint="in a signal handler, set a flag and leave the loop, or raise SystemExit",
    )


def told_late(worker: str, waited: float, activity: Activity) -> WorkerError:
    """Log the stacks of a worker that hangs, and return the error for it."""
    error = WorkerError(
        f"{worker} has returned no batch for {waited:.0f} s; {activity}",
        hint="its stacks are in the log; raise watchdog_timeout_seconds if the work takes that long",
    )
    _log.warning("%s. Its stacks:\n%s", error.what, activity.stacks)
    return error


class LoaderWorker:
    """Runs some streams in a process, and knows the position of the last step that came from there."""

    def __init__(
        self,
        number: int,
        dataset: SavableDataset[Any],
        position: LoaderPosition,
        options: LoaderOptions,
        method: str,
    ) -> None:
        self.restarts: int = 0  # times that a new process took the place of the one before
        self._number = number
        self._dataset = dataset
        self._position = position
        self._options = options
        self._restarts_in_a_row = 0
        self._awaits_answer = False  # whether its last message, the end of a pass, was not acknowledged yet
        self._report = ProcessReport()
        self._before = ProcessReport()  # that of the processes before this one
        self._start(method)

    def _start(self, method: str) -> None:
        """Start a process at the present position."""
        options, streams = self._options, self._position.rotation.streams
        self._method = method
        self._has_sent = False  # whether this process has sent a message
        context: BaseContext = multiprocessing.get_context(method)
        # A fork server has the environment of the time when it started.
        environment = dict(os.environ) if method == "forkserver" else None
        level = logging.getLogger("energon_stream").getEffectiveLevel()
        if method != "fork":
            absolute_path("")  # the working directory, in which such processes start
        try:
            wire = Wire(options.shared_bytes, options.prefetch_factor * len(streams))
            process = context.Process(  # type: ignore[attr-defined]
                target=run_worker,
                args=(wire, self._dataset, self._position, options, environment, level),
                daemon=True,
            )
            # A fork server would keep signals from all of its children.
            held = contextlib.nullcontext() if method == "forkserver" else signals_held(HELD_SIGNALS)
            with held, forking() if method == "fork" else contextlib.nullcontext():
                start_process(process)
        except (OSError, RuntimeError) as error:
            named = limit_error(error, f"worker {self._number} cannot start")
            if named is None:
                raise
            raise named from error
        wire.close_child()
        self._process: BaseProcess = process
        # Kept: ``multiprocessing.connection.wait`` would make one for each batch.
        self._ready = select.poll()
        self._ready.register(wire.parent, select.POLLIN)
        self._ready.register(process.sentinel, select.POLLIN)
        self._receiver = Receiver(wire)
        self._monitor = Monitor(wire.monitor, self.pid)

    @property
    def pid(self) -> int:
        """Process id of the present process."""
        return self._process.pid or 0

    @property
    def report(self) -> ProcessReport:
        """Counters and profile of all processes of this worker."""
        return self._before + self._report

    def step(self, stream: int) -> Step:
        """Return the next step, which is one of ``stream``; raise what ended the worker, or WorkerError."""
        if self._awaits_answer:
            self._awaits_answer = False
            self._receiver.acknowledge()
        message = self._receive()
        self._has_sent, self._restarts_in_a_row = True, 0
        if isinstance(message, Failure):
            self._receiver.acknowledge()
            cause: BaseException = WorkerError(f"a worker failed\n\n{message.trace}")
            if message.error is None:
                raise WorkerError(f"a worker failed with {message.summary}\n\n{message.trace}")
            if message.cause is not None:
                own: BaseException = pickle.loads(message.cause)
                own.__cause__, cause = cause, own
            raise pickle.loads(message.error) from cause  # written by our own worker
        step, report = message
        self._report = report or self._report
        if not isinstance(step, Step) or step.stream != stream:
            raise WorkerError(
                f"worker {self._number} sent {step!r:.100} where a batch of stream {stream} was expected",
                hint="please report this as a bug",
            )
        self._awaits_answer = step.ended  # the worker waits for it: it must not read the next pass unasked
        if not step.ended:
            self._receiver.acknowledge()
        self._position.next_stream()
        self._position = self._position.after(step)
        return step

    def _receive(self) -> Any:
        """Return the next message, of this process or of a new one in its place."""
        while True:
            try:
                lost = self._wait()
                if lost is None:
                    return self._receiver.receive()
            except EOFError:
                lost = self._died()
            except (OSError, ValueError):
                if not self._receiver.pipe.closed:
                    raise
                lost = None
            if lost is None or self._receiver.pipe.closed:  # by a signal handler
                raise closed_meanwhile()
            error, may_restart = lost
            if not may_restart:
                raise error
            self._replace(error)

    def _wait(self) -> tuple[WorkerError, bool] | None:
        """Wait for a message; return why none will come, and whether a new process may take over."""
        limit = self._options.time_out(is_first=not self._has_sent)
        begin = time.monotonic()
        late = None if limit is None else begin + limit
        while True:
            left = _CHECK_SECONDS if late is None else min(_CHECK_SECONDS, late - time.monotonic())
            pipe = self._receiver.pipe
            ready = [number for number, _ in self._ready.poll(max(0.0, left) * 1000)]
            if pipe.fileno() in ready:
                return None
            if not self._process.is_alive():
                return None if pipe.poll() else self._died()
            if late is not None and time.monotonic() >= late:
                error = self._late(time.monotonic() - begin)
                if self._options.hang_action != "warn":
                    self._process.kill()
                    return error, self._options.hang_action == "restart"
                late = time.monotonic() + (limit or 0.0)

    def _late(self, waited: float) -> WorkerError:
        """Log the worker's stacks, and return the error for a worker that hangs."""
        return told_late(f"worker {self._number} (process {self.pid})", waited, self._monitor.ask())

    def _died(self) -> tuple[WorkerError, bool]:
        """Return the error for a worker that is gone, and whether a new one may take over."""
        process = self._process
        process.join(_JOIN_SECONDS)
        code = process.exitcode
        what = f"worker {self._number} (process {process.pid}) died with exit code {code}"
        may_restart = self._options.on_worker_death == "restart"
        if code == -signal.SIGKILL:
            hint = "something killed it with SIGKILL; -9 is often the kernel, when memory runs out"
        elif code is not None and code < 0:
            hint = f"it was ended by {signal.Signals(-code).name}; its stderr may say more"
        elif self._method == "forkserver" and code == _NO_FORK_SERVER:
            hint = "the fork server that starts workers is gone"
        elif self._method != "fork" and not self._monitor.has_started():
            what = f"worker {self._number} did not start by {self._method!r}: exit code {code}"
            hint = (
                'the program is imported again by such workers: put it under `if __name__ == "__main__":`. '
                'Its stderr says more; start_method="fork" needs no guard'
            )
            may_restart = False  # the next one would not start either
        else:
            hint = "its stderr may say more"
        return WorkerError(what, hint=hint), may_restart

    def _replace(self, lost: WorkerError) -> None:
        """Start a new process after the last step that came from the lost one."""
        stream = self._position.next_stream()
        state = self._position.states[stream]
        place = f"batch {0 if state is None else state['batches']} of stream {stream}"
        if self._restarts_in_a_row >= RESTARTS_IN_A_ROW:
            raise WorkerError(
                f"{lost.what}; it is the {self._restarts_in_a_row + 1}th in a row that was lost at {place}",
                hint=lost.hint,
            ) from lost
        _log.warning("%s (%s); a new worker goes on with %s", lost.what, lost.hint, place)
        self.hang_up()
        self.join(0.0)
        self._before, self._report = self.report, ProcessReport()
        self._awaits_answer = False
        self.restarts += 1
        self._restarts_in_a_row += 1
        # Chosen anew: the program may have initialized CUDA since the last start.
        values = (self._dataset, self._position, self._options)
        with interrupts_deferred():
            self._start(choose_start_method(self._options.start_method, values))

    def start_trace(self) -> None:
        """Have the process, and any that replaces it, record events."""
        self._options = replace(self._options, is_traced=True)
        self._monitor.start_trace()

    def stop_trace(self, folder: str) -> None:
        """Have the process write its events to a file of a folder."""
        self._options = replace(self._options, is_traced=False)
        if not self._monitor.stop_trace(os.path.join(folder, f"{self._number}.json")):
            _log.warning("worker %d (process %d) wrote no trace", self._number, self.pid)

    def hang_up(self) -> None:
        """Close the channel; the process then ends by itself."""
        self._receiver.close()
        self._monitor.close()

    def join(self, seconds: float) -> None:
        """Wait until the process has ended; kill it after some seconds."""
        process = self._process
        process.join(seconds)
        if process.is_alive():
            process.kill()
            process.join()
        elif self._method == "forkserver" and process.exitcode == _NO_FORK_SERVER and process.pid is not None:
            # Not an exit code: the fork server is gone, and the process may live.
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)


class Workers:
    """Runs the streams in worker processes, each of which owns some."""

    def __init__(
        self, dataset: SavableDataset[Any], position: LoaderPosition, options: LoaderOptions
    ) -> None:
        self._workers: list[Any] = []
        # At the end of the program, multiprocessing would send SIGTERM, which workers leave to the main
        # process, and then wait for them. So they are ended before, with this priority.
        self._end = util.Finalize(self, _end_workers, (self._workers,), exitpriority=100)
        self._owner: dict[int, Any] = {}
        config = dataset.worker_config
        start = self._starter(dataset, position, options)
        try:
            for number in range(config.num_workers):
                streams = config.worker_streams(number)
                if streams:
                    worker = start(number, position.of_streams(streams))
                    self._workers.append(worker)
                    self._owner.update(dict.fromkeys(streams, worker))
        except BaseException:
            self.close()
            raise

    def _starter(
        self, dataset: SavableDataset[Any], position: LoaderPosition, options: LoaderOptions
    ) -> Callable[[int, LoaderPosition], Any]:
        """Return what starts the worker of a number at a position."""
        method = choose_start_method(options.start_method, (dataset, position, options))
        return lambda number, own: LoaderWorker(number, dataset, own, options, method)

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(worker.pid for worker in self._workers)

    @property
    def restarts(self) -> int:
        return sum(worker.restarts for worker in self._workers)

    def step(self, stream: int) -> Step:
        step: Step = self._owner[stream].step(stream)
        return step

    def start_trace(self) -> None:
        for worker in self._workers:
            worker.start_trace()

    def stop_trace(self, folder: str) -> None:
        for worker in self._workers:
            worker.stop_trace(folder)

    def report(self) -> ProcessReport:
        return sum((worker.report for worker in self._workers), ProcessReport())

    def close(self) -> None:
        self._end()


def _end_workers(workers: list[Any]) -> None:
    for worker in workers:
        worker.hang_up()
    deadline = time.monotonic() + _JOIN_SECONDS  # of all workers together
    for worker in workers:
        worker.join(max(0.0, deadline - time.monotonic()))
    workers.clear()
