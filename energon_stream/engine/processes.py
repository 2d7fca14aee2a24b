"""An engine of processes on this machine."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from energon_stream.engine.tasks import Outcome, TaskEngine
from energon_stream.errors import ConfigError, WorkerError
from energon_stream.fork import pickled_error, signals_held

_READY = "ready"


class LocalEngine(TaskEngine):
    """Maps functions over tasks in processes of this machine.

    A process that dies is replaced. Programs that use it need the usual ``if __name__ == "__main__":``,
    because the processes do not fork from this one.

    Args:
        processes: Number of processes; None for one per CPU that this process may use. 0 runs the tasks in
            this process, one after another.

    Raises:
        ConfigError: ``processes`` is negative.

    Example:
        >>> from energon_stream import LocalEngine
        >>> list(LocalEngine(0).map(len, ["a", "bb", "ccc"], in_order=True))
        [1, 2, 3]
    """

    def __init__(self, processes: int | None = None) -> None:
        if processes is not None and processes < 0:
            raise ConfigError(f"processes is {processes}", hint="use 0 or more")
        self.processes: int = cpus() if processes is None else processes

    @contextmanager
    def _open(self, function: Callable[[Any], Any]) -> Iterator[_Processes | _Inline]:
        if not self.processes:
            yield _Inline(function)
            return
        runner = _Processes(function, self.processes)
        try:
            yield runner
        finally:
            runner.close()


def cpus() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Inline:
    """Runs tasks in this process."""

    slots = 1

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        self._ended: list[tuple[int, Outcome]] = []

    def submit(self, number: int, task: Any) -> None:
        self._ended.append((number, run_task(self._function, task)))

    def wait(self) -> list[tuple[int, Outcome]]:
        ended, self._ended = self._ended, []
        return ended


class _Worker:
    """One process, and the task that it has."""

    def __init__(self, function: bytes) -> None:
        method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
        context: Any = multiprocessing.get_context(method)
        if method == "forkserver":
            # The fork server imports once what most functions need where this process has imported PyTorch,
            # which takes seconds. ``energon_stream.decode`` alone would import it in each process anew.
            more = ["energon_stream.decode", "torch"] if "torch" in sys.modules else []
            context.set_forkserver_preload([__name__, *more])
        self.connection: Connection[Any, Any]
        self.connection, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_work, args=(theirs, function), daemon=True)
        with theirs, signals_held([signal.SIGINT]):
            self.process.start()
        self.number: int | None = None
        self.is_ready = False  # it has imported the function

    def receive(self) -> Outcome | None:
        """Return how the task ended; None if the process is just ready. Raises EOFError, OSError if gone."""
        message = self.connection.recv_bytes()
        if not self.is_ready and message == _READY.encode():
            self.is_ready = True
            return None
        outcome: Outcome = pickle.loads(message)
        return outcome

    def reap(self) -> int | None:
        """Wait for the end of a killed or dead process; return its exit code."""
        self.process.join()
        self.connection.close()
        return self.process.exitcode


class _Processes:
    """Runs tasks in processes, one task a process at a time."""

    def __init__(self, function: Callable[[Any], Any], processes: int) -> None:
        self.slots = processes
        self._function = pickle.dumps(function)
        self._workers: list[_Worker] = []

    def submit(self, number: int, task: Any) -> None:
        """Give a task to an idle process; start one if there is none."""
        idle = [worker for worker in self._workers if worker.number is None]
        if not idle:
            idle = [_Worker(self._function)]
            self._workers += idle
        worker = idle[0]
        worker.number = number
        with suppress(OSError):  # it died; `wait` says so
            worker.connection.send(task)

    def wait(self) -> list[tuple[int, Outcome]]:
        """Wait until tasks have ended, well or not."""
        ended: list[tuple[int, Outcome]] = []
        while not ended:
            busy = {worker.connection: worker for worker in self._workers if worker.number is not None}
            for connection in wait([*busy]):
                worker = busy[connection]  # type: ignore[index] # no socket was given
                try:
                    outcome = worker.receive()
                except (EOFError, OSError):
                    outcome = self._lost(worker)
                if outcome is not None and worker.number is not None:
                    ended.append((worker.number, outcome))
                    worker.number = None
        return ended

    def close(self) -> None:
        """Kill all processes."""
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.reap()
        self._workers = []

    def _lost(self, worker: _Worker) -> Outcome:
        self._workers.remove(worker)
        worker.process.kill()
        code = worker.reap()
        if not worker.is_ready:
            raise WorkerError(
                f"a process of the engine ended with exit code {code} before its first task",
                hint='guard the program with `if __name__ == "__main__":`, and see its error above',
            )
        what = f"a process of the engine ended with exit code {code} while it had a task"
        hint = "-9 is often the kernel that is out of memory: use fewer processes"
        return Outcome(error=WorkerError(what, hint=hint))


def run_task(function: Callable[[Any], Any], task: Any) -> Outcome:
    """Run a function; return how that ended, with the traceback as a note of an error."""
    try:
        return Outcome(function(task))
    except Exception as error:
        if not isinstance(error, WorkerError):
            error.add_note("".join(traceback.format_tb(error.__traceback__)).rstrip())
        return Outcome(error=error)


def picklable(outcome: Outcome) -> Outcome:
    """Return an outcome that another process can read: an error that cannot be pickled becomes its text."""
    if outcome.error is None or pickled_error(outcome.error) is not None:
        return outcome
    return Outcome(error=RuntimeError("".join(traceback.format_exception(outcome.error)).rstrip()))


def _work(connection: Connection[Any, Any], pickled: bytes) -> None:
    """Main function of a process. It ends when its parent is gone, also in the middle of a task."""
    threading.Thread(target=_leave_with_parent, name="energon-engine", daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the whole group; the parent decides
    function = pickle.loads(pickled)
    with suppress(EOFError, OSError):
        connection.send_bytes(_READY.encode())
        while True:
            outcome = picklable(run_task(function, connection.recv()))
            try:
                answer = pickle.dumps(outcome)
            except Exception as error:
                answer = pickle.dumps(Outcome(error=TypeError(f"the result cannot be pickled: {error}")))
            connection.send_bytes(answer)


def _leave_with_parent() -> None:
    """Wait until the process that started this one is gone, and end: only the parent would use the result."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
