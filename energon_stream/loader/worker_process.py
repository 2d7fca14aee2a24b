"""The main function of worker processes."""

from __future__ import annotations

import contextlib
import os
import pickle
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from energon_stream.fork import begin_child
from energon_stream.loader.channel import ParentGoneError, Sender, Wire, close_inherited_ends
from energon_stream.loader.observe.meter import Reporter
from energon_stream.loader.observe.monitor import answer_monitor
from energon_stream.loader.resources import keep_freed_memory, limit_error
from energon_stream.loader.worker_signals import leave_signals_to_main
from energon_stream.media import CachePool, use_pool
from energon_stream.pipeline.stream_runner import Rotation, StreamRunner
from energon_stream.samples.batch_memory import use_batch_memory
from energon_stream.tracing import start_recording

if TYPE_CHECKING:
    from energon_stream.loader.loader_options import MakeTracker
    from energon_stream.pipeline.dataset import SavableDataset
    from energon_stream.pipeline.node import State
    from energon_stream.schedule import WeightChange


@dataclass(frozen=True, slots=True)
class Failure:
    """A worker's last message: the error that ended it."""

    error: bytes | None  # the pickled error; None if it cannot be pickled
    summary: str  # type and text of the error
    trace: str  # its traceback

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Describe an error."""
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        try:
            packed: bytes | None = pickle.dumps(error)
            pickle.loads(packed)  # type: ignore[arg-type] # our own bytes: does it survive?
        except Exception:
            packed = None
        return cls(packed, f"{type(error).__name__}: {error}", trace)


def run_worker(
    wire: Wire,
    dataset: SavableDataset[Any],
    streams: list[int],
    states: Mapping[int, State],
    rotation: Rotation,
    changes: tuple[WeightChange, ...] = (),
    cache_pool: CachePool | None = None,
    environment: Mapping[str, str] | None = None,
    make_tracker: MakeTracker | None = None,
    is_traced: bool = False,
) -> None:
    """Produce the elements of some streams until the parent goes away.

    ``environment`` replaces that of the process, unless it is None. ``is_traced`` records events from here
    on, before the first request; the main process can ask for a record later as well.
    """
    if environment is not None:
        os.environ.clear()
        os.environ.update(environment)
    begin_child()
    if is_traced:
        start_recording()
    close_inherited_ends()
    answer_monitor(wire.child_monitor)
    leave_signals_to_main()
    torch.set_num_threads(1)
    keep_freed_memory()
    sender = Sender(wire)
    use_batch_memory(sender)
    runner: StreamRunner | None = None
    try:
        with contextlib.closing(Reporter()) as reporter, use_pool(cache_pool):
            take_note = None if make_tracker is None else make_tracker(states, changes).note
            runner = StreamRunner(dataset, streams, states, rotation, changes, take_note)
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
        if cache_pool is not None:
            cache_pool.close()
