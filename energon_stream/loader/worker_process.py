"""The main function of worker processes."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import signal
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from energon_stream.loader.channel import Sender, Wire, close_inherited_pipes
from energon_stream.media import CachePool, use_pool
from energon_stream.pipeline.engine import Engine, Rotation
from energon_stream.storage import default_counters
from energon_stream.storage.fork import begin_child

if TYPE_CHECKING:
    from energon_stream.pipeline.dataset import SavableDataset
    from energon_stream.pipeline.node import State

_STDERR = 2


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
    cache_pool: CachePool | None = None,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Produce the elements of some streams until the parent goes away.

    ``environment`` replaces that of the process, unless it is None.
    """
    if environment is not None:
        os.environ.clear()
        os.environ.update(environment)
    begin_child()
    close_inherited_pipes()
    # The parent decides when to end; an interrupt from the terminal reaches all of the group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1, file=_STDERR, all_threads=True)
    torch.set_num_threads(1)
    sender = Sender(wire)
    engine: Engine | None = None
    try:
        with use_pool(cache_pool):
            engine = Engine(dataset, streams, states, rotation)
            while True:
                step = engine.step_any()
                sender.send((step, default_counters().snapshot()))
                ended = step.ended
                del step  # a batch must not live on while the next one is made
                if ended and not engine.rotation.ended and not dataset.pass_length:
                    sender.drain()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the parent closed its end: it needs no more batches
    except BaseException as error:
        with contextlib.suppress(OSError, EOFError):
            sender.send(Failure.of(error))
    finally:
        if engine is not None:
            engine.close()
        if cache_pool is not None:
            cache_pool.close()
