"""The session of a loader without workers: the streams of its rank run in this process."""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import Any

import torch

from energon_stream.loader.loader_options import LoaderOptions
from energon_stream.loader.loader_position import LoaderPosition
from energon_stream.loader.observe.meter import Reporter
from energon_stream.loader.observe.monitor import Activity
from energon_stream.loader.observe.stats import ProcessReport
from energon_stream.loader.observe.watchdog import Watchdog
from energon_stream.loader.resources import limit_error
from energon_stream.media import use_pool
from energon_stream.pipeline.dataset import SavableDataset
from energon_stream.pipeline.stream_runner import Step

_log = logging.getLogger(__name__)


class InProcess:
    """Runs the streams in the calling process; has the methods of ``Workers``."""

    pids: tuple[int, ...] = ()
    restarts = 0

    def __init__(
        self, dataset: SavableDataset[Any], position: LoaderPosition, options: LoaderOptions
    ) -> None:
        self._reporter = Reporter()
        self._pool, self._decodes = options.cache_pool, options.decode_threads > 0
        self._watchdog: Watchdog | None = None
        if (seconds := options.time_out(is_first=False)) is not None:
            tell = partial(_tell_late, threading.get_ident())
            first = options.time_out(is_first=True)
            self._watchdog = Watchdog(seconds, first, tell, dump_stacks=False, enabled=False)
        try:
            with use_pool(self._pool):
                self._runner = position.open_runner(dataset, options)
        except BaseException:
            self._reporter.close()
            raise

    def step(self, stream: int) -> Step:
        if self._watchdog is not None:
            self._watchdog.enable()
        self._reporter.profiler.idents = (threading.get_ident(),)
        before = torch.get_num_threads() if self._decodes else 0
        try:
            if before:  # torch's other threads would wait in a loop, and take the decode threads' time
                torch.set_num_threads(1)
            with use_pool(self._pool):
                return self._runner.step_any()
        except (OSError, RuntimeError) as error:
            named = limit_error(error, "the loader cannot work")
            if named is None:
                raise
            raise named from error
        finally:
            if before:
                torch.set_num_threads(before)
            if self._watchdog is not None:
                self._watchdog.disable()

    def report(self) -> ProcessReport:
        return self._reporter.report()

    def start_trace(self) -> None: ...  # this process records already

    def stop_trace(self, folder: str) -> None: ...

    def close(self) -> None:
        self._reporter.close()
        if self._watchdog is not None:
            self._watchdog.finish()
        self._runner.close()


def _tell_late(ident: int) -> None:
    """Log what a thread of this process does, which has made no batch for too long."""
    activity = Activity.of_thread(ident)
    _log.warning(
        "no batch for watchdog_timeout_seconds; %s. A function in the main process cannot be ended from outside: "
        "with num_workers of 1 or more, on_worker_hang ends or restarts its worker. Its stacks:\n%s",
        activity,
        activity.stacks,
    )
