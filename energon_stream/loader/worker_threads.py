"""The workers of a loader as threads of its process: no channel, and nothing is pickled."""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import threading
import time
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import torch

from energon_stream.errors import ConfigError, WorkerError
from energon_stream.loader.channel import ParentGoneError
from energon_stream.loader.loader_position import LoaderPosition, copied
from energon_stream.loader.observe.meter import Reporter
from energon_stream.loader.observe.monitor import Activity
from energon_stream.loader.observe.profile import CONSUMER, counts_as
from energon_stream.loader.resources import limit_error
from energon_stream.loader.workers import Workers, closed_meanwhile, told_late
from energon_stream.media import CachePool, NoCachePool
from energon_stream.pipeline.dataset import SavableDataset
from energon_stream.pipeline.reader_dataset import find_readers
from energon_stream.pipeline.stream_runner import Step
from energon_stream.threads import WorkerThread, context_runner

if TYPE_CHECKING:
    from collections.abc import Callable

    from energon_stream.loader.loader_options import LoaderOptions
    from energon_stream.loader.observe.stats import ProcessReport

_log = logging.getLogger(__name__)


def _own_copy(dataset: SavableDataset[Any], number: int) -> SavableDataset[Any]:
    """Return a copy for a worker, as a process has one. What never changes is shared: indices and plans.

    Raises ConfigError if a hook refers to something that cannot be copied.
    """
    shared: list[Any] = [dataset.worker_config]
    for _, reader in find_readers(dataset):
        shared += [reader.plan, reader.packing, *(leaf.index for leaf in reader.leaves)]
    try:
        return copy.deepcopy(dataset, {id(each): each for each in shared})
    except Exception as error:
        raise ConfigError(
            f"worker {number} cannot get its own copy of the dataset and its hooks: {type(error).__name__}: {error}",
            hint="let __deepcopy__ of the class return self, if its objects may be used by several threads at "
            "the same time; or use worker_type='fork'",
        ) from error


class LoaderThread(WorkerThread):
    """Runs some streams; the methods but ``run`` are for the thread of the loader."""

    restarts = 0

    def __init__(
        self, number: int, dataset: SavableDataset[Any], position: LoaderPosition, options: LoaderOptions
    ) -> None:
        super().__init__(name=f"energon_stream worker {number}", daemon=True)
        self.cache_pool: CachePool = options.cache_pool or NoCachePool()
        self._number, self._options, self._position = number, options, position
        self._dataset = _own_copy(dataset, number)
        # Queues in C, which a signal handler that closes the loader may use at any moment.
        self._steps: SimpleQueue[Step | BaseException | None] = SimpleQueue()
        self._answers: SimpleQueue[bool] = SimpleQueue()  # True for a step that was taken, False at the end
        self._awaits_answer = self._has_sent = False
        # Those of the creator, as without workers: numpy's errstate, decimal's precision, torch.no_grad.
        self._in_context, self._has_grad = context_runner(), torch.is_grad_enabled()
        self._pid, self._begun, threads = os.getpid(), threading.Event(), torch.get_num_threads()
        try:
            self.start()
        except RuntimeError as error:
            raise limit_error(error, f"worker {number} cannot start") or error from error
        self._begun.wait()
        torch.set_num_threads(threads)  # each thread has a number of its own

    def run(self) -> None:
        """Make the batches of the position's streams until the loader is closed."""
        self._in_context(self._run)

    def _run(self) -> None:
        torch.set_grad_enabled(self._has_grad)
        torch.set_num_threads(1)
        torch.get_num_threads()  # or the first operation of this thread would take the number of then
        self._begun.set()
        dataset, options = self._dataset, self._options
        depth = options.prefetch_factor * len(self._position.rotation.streams)
        sent = 0  # steps that were not taken yet
        try:
            with contextlib.closing(self._position.open_runner(dataset, options)) as runner:
                while True:
                    step = runner.step_any()
                    while sent >= depth or not self._answers.empty():
                        sent -= _taken(self._answers)
                    self._steps.put(replace(step, state=copied(step.state)))  # the node goes on
                    sent += 1
                    ended = step.ended
                    del step  # a batch must not live on while the next one is made
                    while ended and sent and not runner.rotation.ended and not dataset.pass_length:
                        sent -= _taken(self._answers)
        except ParentGoneError:
            pass
        except BaseException as error:
            self._steps.put(limit_error(error, "a worker cannot work") or error)

    def step(self, stream: int) -> Step:
        """Return the next step; raise what ended the worker, or WorkerError."""
        if self._pid != os.getpid():
            raise WorkerError(
                "the loader's worker threads are in the process that started them, and this one was forked",
                hint="make a loader in this process, or use worker_type='fork'",
            )
        if self._awaits_answer:
            self._answers.put(True)
        step = self._receive()
        if isinstance(step, BaseException):
            raise step
        self._has_sent = True
        self._awaits_answer = step.ended  # the worker waits for it: it must not read the next pass unasked
        if not step.ended:
            self._answers.put(True)
        return step

    def _receive(self) -> Step | BaseException:
        begin = time.monotonic()
        while True:
            try:
                step = self._steps.get(timeout=self._options.time_out(is_first=not self._has_sent))
            except Empty:
                waited, activity = time.monotonic() - begin, Activity.of_thread(self.ident)
                error = told_late(f"worker {self._number} (a thread)", waited, activity)
                if self._options.hang_action == "raise":
                    raise error from None
                continue
            if step is None:
                raise closed_meanwhile()
            return step

    def hang_up(self) -> None:
        """Let the thread end after the step that it makes."""
        self._answers.put(False)
        self._steps.put(None)

    def join(self, timeout: float | None = None) -> None:
        """Wait some seconds until the thread has ended. Nothing can end a function from outside."""
        if self._pid != os.getpid() or self is threading.current_thread():
            return
        super().join(timeout)
        if self.is_alive():
            what = Activity.of_thread(self.ident)
            _log.warning("worker %d (a thread) goes on after its loader was closed; %s", self._number, what)


@counts_as(CONSUMER)
def _taken(answers: SimpleQueue[bool]) -> int:
    """Wait until a step is taken; return 1. Raises ParentGoneError if the loader is closed."""
    if not answers.get():
        raise ParentGoneError
    return 1


class WorkerThreads(Workers):
    """Runs the streams in threads of this process, each of which owns some."""

    pids: tuple[int, ...] = ()

    def __init__(
        self, dataset: SavableDataset[Any], position: LoaderPosition, options: LoaderOptions
    ) -> None:
        self._reporter = Reporter()
        super().__init__(dataset, position, options)
        self._reporter.profiler.idents = tuple(worker.ident for worker in self._workers)

    def _starter(
        self, dataset: SavableDataset[Any], position: LoaderPosition, options: LoaderOptions
    ) -> Callable[[int, LoaderPosition], LoaderThread]:
        return lambda number, own: LoaderThread(number, dataset, own, options)

    def report(self) -> ProcessReport:
        return self._reporter.report()

    def start_trace(self) -> None: ...  # this process records already

    def stop_trace(self, folder: str) -> None: ...

    def close(self) -> None:
        super().close()
        self._reporter.close()
