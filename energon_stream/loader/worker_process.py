"""The main function of worker processes."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from energon_stream.errors import FatalSampleError
from energon_stream.fork import begin_child, pickled_error
from energon_stream.loader.channel import ParentGoneError, Sender, Wire, close_inherited_ends
from energon_stream.loader.loader_options import LoaderOptions
from energon_stream.loader.loader_position import LoaderPosition
from energon_stream.loader.observe.meter import Reporter
from energon_stream.loader.observe.monitor import answer_monitor
from energon_stream.loader.resources import allow_many_files, keep_freed_memory, limit_error
from energon_stream.media import use_pool
from energon_stream.pipeline.dataset import SavableDataset
from energon_stream.pipeline.failures import shorten
from energon_stream.pipeline.stream_runner import StreamRunner
from energon_stream.samples.batch_memory import use_batch_memory
from energon_stream.tracing import start_recording


@dataclass(frozen=True, slots=True)
class Failure:
    """A worker's last message: the error that ended it."""

    error: bytes | None  # the pickled error; None if it cannot be pickled
    cause: bytes | None  # the user's, of a FatalSampleError
    summary: str  # type and text of the error
    trace: str  # its traceback

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Describe an error."""
        shorten(error)
        trace = "".join(traceback.format_exception(error))
        cause = error.__cause__ if isinstance(error, FatalSampleError) else None
        return cls(
            pickled_error(error),
            None if cause is None else pickled_error(cause),
            f"{type(error).__name__}: {error}",
            trace,
        )


# Signals that reach the whole process group, and are for the main process: Slurm, Kubernetes and terminals
# signal all processes. The main process then saves and ends, and needs workers that go on until it closes
# them. A forked worker has inherited the handlers of the program, which must not run twice.
_FOR_MAIN = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGUSR2") if hasattr(signal, name)]
# Signals to hold back while a worker starts, until it leaves them to the main process.
HELD_SIGNALS = [signal.SIGINT, *_FOR_MAIN, *([signal.SIGUSR1] if hasattr(signal, "SIGUSR1") else [])]


def _leave_signals_to_main() -> None:
    """Ignore signals to the whole group in this process, a worker. SIGKILL ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in _FOR_MAIN:  # programs that the worker starts would inherit SIG_IGN
        signal.signal(number, lambda _number, _frame: None)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_SIGNALS)


def run_worker(
    wire: Wire,
    dataset: SavableDataset[Any],
    position: LoaderPosition,
    options: LoaderOptions,
    environment: Mapping[str, str] | None = None,
    log_level: int = logging.WARNING,
) -> None:
    """Make the batches of a position's streams until the parent is gone, in a new environment or as it is.

    The library's log has at least the parent's level: a process that is no fork would lack it.
    """
    log = logging.getLogger("energon_stream")
    log.setLevel(min(log_level, log.getEffectiveLevel()))
    if environment is not None:
        os.environ.clear()
        os.environ.update(environment)
    begin_child()
    if options.is_traced:
        start_recording()
    close_inherited_ends()
    answer_monitor(wire.child_monitor)
    _leave_signals_to_main()
    torch.set_num_threads(1)
    keep_freed_memory()
    allow_many_files()
    sender = Sender(wire)
    use_batch_memory(sender)
    runner: StreamRunner | None = None
    try:
        with contextlib.closing(Reporter()) as reporter, use_pool(options.cache_pool):
            runner = position.open_runner(dataset, options)
            while True:
                step = runner.step_any()
                ended = step.ended
                sender.send((step, reporter.news(must=ended)))
                del step  # a batch must not live on while the next one is made
                if ended and not runner.rotation.ended and not dataset.pass_length:
                    sender.drain()
    except ParentGoneError:
        pass
    except BaseException as error:
        named = limit_error(error, "a worker cannot work")
        if named is not None:
            named.__cause__ = error
        with contextlib.suppress(ParentGoneError):
            sender.send(Failure.of(named or error))
    finally:
        if runner is not None:
            runner.close()
        if options.cache_pool is not None:
            options.cache_pool.close()
