"""The random states of Python, NumPy and PyTorch, which functions of users draw from."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from energon_stream.active_call import Activation, innermost_call
from energon_stream.errors import ConfigError
from energon_stream.fork import PerProcess
from energon_stream.imports import LazyModule
from energon_stream.threads import WorkerThread

if TYPE_CHECKING:
    import torch
else:
    torch = LazyModule("torch")

_turns = PerProcess(threading.RLock)  # the generators are one for all threads


class RandomState(NamedTuple):
    """States of the three random generators that hooks use. Hooks run on the CPU, so CUDA's is left out."""

    torch: torch.Tensor
    numpy: Any
    python: Any

    @classmethod
    def current(cls) -> RandomState:
        """Return the states as they are."""
        return cls(torch.get_rng_state(), np.random.get_state(), random.getstate())

    def apply(self) -> None:
        """Set the states."""
        torch.set_rng_state(self.torch)
        np.random.set_state(self.numpy)
        random.setstate(self.python)


def seed_all(seed: int) -> None:
    """Seed the three generators with 32 bits. Raises ConfigError in a worker that is a thread."""
    if isinstance(threading.current_thread(), WorkerThread):
        raise ConfigError(
            "a hook seeds the global random generators, which all threads of the process share",
            hint="draw from self.rng of the task encoder, or make the loader with worker_type='fork'",
        )
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


@contextmanager
def restored_states() -> Iterator[None]:
    """Restore the states after a ``with`` block. Blocks of several threads take turns."""
    with _turns.get():
        outer = RandomState.current()
        try:
            yield
        finally:
            outer.apply()


def seed_in_step(seed: int) -> None:
    """Seed the generators until the step is over, which then restores their states.

    Saving and restoring takes 0.4 ms. A step seeds many times, and saves and restores once.
    """
    step = innermost_call()
    while step is not None and step.outer is not None and not isinstance(step.outer, Activation):
        step = step.outer
    if step is not None and step.at_exit is None:
        step.at_exit = RandomState.current().apply
    seed_all(seed)
