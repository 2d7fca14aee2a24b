"""Random numbers for programs that draw them by Megatron-Energon's classes."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import MutableSequence, Sequence
from typing import Any, TypeVar

import numpy as np

from energon_stream.compat.placeholders import FlexState, SystemRngState
from energon_stream.imports import LazyModule
from energon_stream.pipeline import SavableDataset
from energon_stream.rng import derive_key
from energon_stream.worker import WorkerConfig

torch: Any = LazyModule("torch")
T = TypeVar("T")


class Savable(ABC):
    """Base of what has a state."""

    @abstractmethod
    def save_state(self) -> Any:
        """Return the state, as plain values."""

    @abstractmethod
    def restore_state(self, state: Any) -> None:
        """Go on from a state."""


Savable.register(SavableDataset)  # type: ignore[type-abstract]


class SystemRng:
    """The random states of Python, NumPy and PyTorch in this process."""

    @staticmethod
    def get_seed_from_args(*args: Any) -> int:
        """Return a seed of 32 bits for some values."""
        return derive_key(*map(str, args)) % 2**32

    @staticmethod
    def seed(seed: int) -> None:
        """Set all states by a seed."""
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)

    @staticmethod
    def seed_args(*args: Any) -> None:
        """Set all states by a seed for some values."""
        SystemRng.seed(SystemRng.get_seed_from_args(*args))

    @staticmethod
    def save_state() -> Any:
        """Return all states."""
        return SystemRngState(
            torch=torch.get_rng_state(), numpy=np.random.get_state(), random=random.getstate()
        )

    @staticmethod
    def restore_state(state: Any) -> None:
        """Set all states."""
        torch.set_rng_state(state.torch)
        np.random.set_state(state.numpy)
        random.setstate(state.random)


class WorkerRng(Savable):
    """Draws random numbers by the seed of the current stream."""

    def __init__(self, worker_config: WorkerConfig) -> None:
        self.worker_config = worker_config
        self._rng: Any = None

    @property
    def rng(self) -> Any:
        """The generator of PyTorch; made at the first draw."""
        if self._rng is None:
            self._rng = torch.Generator().manual_seed(self.worker_config.worker_seed())
        return self._rng

    def randbelow(self, n: int) -> int:
        """Draw an integer from 0 to ``n - 1``."""
        return int(torch.randint(0, n, (1,), generator=self.rng))

    def choice_idx(self, probs: Any) -> int:
        """Draw the position of an element, by probabilities."""
        ends = torch.cumsum(probs, dim=0)
        return int(torch.searchsorted(ends, torch.rand(1, generator=self.rng) * ends[-1]))

    def choice(self, l: Sequence[T], probs: Any = None) -> T:  # noqa: E741
        """Draw an element, by probabilities if they are given."""
        return l[self.randbelow(len(l)) if probs is None else self.choice_idx(probs)]

    def shuffle(self, l: Sequence[T]) -> list[T]:  # noqa: E741
        """Return the elements in a random order."""
        return [l[position] for position in torch.randperm(len(l), generator=self.rng).tolist()]

    def rand_pop(self, l: MutableSequence[T]) -> T:  # noqa: E741
        """Draw an element, and remove it."""
        return l.pop(self.randbelow(len(l)))

    def save_state(self) -> FlexState:
        """Return the generator's state."""
        return FlexState(rng=bytes(self.rng.get_state().tolist()))

    def restore_state(self, state: Any) -> None:
        """Set the generator's state."""
        saved = state["rng"]
        if saved is not None:
            self.rng.set_state(torch.frombuffer(bytearray(saved), dtype=torch.uint8))
