"""Random generators of one call of a hook, which leave the global ones alone."""

from __future__ import annotations

import functools
import hashlib
import os
import random
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from energon_stream.active_call import innermost_call
from energon_stream.imports import LazyModule

if TYPE_CHECKING:
    import torch
    from torch import Generator
else:
    torch = LazyModule("torch")

_KINDS = ("torch", "torch_cuda", "numpy", "random")


class CallRng:
    """Random generators with one seed, each made when it is first used.

    Example:
        >>> from energon_stream.task.call_rng import CallRng
        >>> CallRng(3).random.random() == CallRng(3).random.random()
        True
    """

    def __init__(self, seed: int) -> None:
        self.seed(seed)

    def seed(self, seed: int) -> None:
        """Begin anew, with a seed."""
        vars(self).clear()
        self._seed = seed

    def seed_args(self, *parts: object) -> None:
        """Begin anew, with a seed that is made of values."""
        self.seed(seed_of(*parts))

    @cached_property
    def torch(self) -> Generator:
        """Generator of PyTorch, on the CPU."""
        return torch.Generator().manual_seed(self._seed)

    @cached_property
    def torch_cuda(self) -> Generator:
        """Generator of PyTorch, on the GPU."""
        return torch.Generator("cuda").manual_seed(self._seed)

    @cached_property
    def numpy(self) -> np.random.Generator:
        """Generator of NumPy."""
        return np.random.default_rng(self._seed)

    @cached_property
    def random(self) -> random.Random:
        """Generator of Python."""
        return random.Random(self._seed)

    def save_state(self) -> dict[str, Any]:
        """Return the seed, and the states of the generators that were used."""
        states = {kind: vars(self)[kind] for kind in _KINDS if kind in vars(self)}
        return {"seed": self._seed, **{kind: _state(made) for kind, made in states.items()}}

    def restore_state(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self.seed(state["seed"])
        for kind in _KINDS:
            if kind in state:
                made = getattr(self, kind)
                if kind == "numpy":
                    made.bit_generator.state = state[kind]
                else:
                    (made.setstate if kind == "random" else made.set_state)(state[kind])


class RngOfCall:
    """Attribute of a class that has the generators of the call, unless the object has one of its own."""

    def __get__(self, owner: object, kind: type | None = None) -> CallRng:
        return call_rng()


def _state(made: Any) -> Any:
    if isinstance(made, np.random.Generator):
        return made.bit_generator.state
    return made.getstate() if isinstance(made, random.Random) else made.get_state()


def seed_of(*parts: object) -> int:
    """Return the first four bytes of SHA-1 over ``"part|part"``, as Megatron-Energon makes seeds."""
    return int.from_bytes(hashlib.sha1("|".join(map(str, parts)).encode()).digest()[:4], "big")


def call_rng() -> CallRng:
    """Return the generators of the call of a hook that this thread is in. They go on in its generator.

    Outside of a pipeline there is no call, and all share generators that begin anywhere.
    """
    call = innermost_call()
    if call is None:
        return _anywhere()
    if call.rng is None or call.rng[0] != call.sample_index:
        seed = seed_of(call.config.worker_seed(), call.sample_index)
        call.rng = call.sample_index, CallRng(seed)
    made: CallRng = call.rng[1]
    return made


@functools.cache
def _anywhere() -> CallRng:
    return CallRng(int.from_bytes(os.urandom(4), "big"))
