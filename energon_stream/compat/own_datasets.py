"""Parts of datasets that programs for Megatron-Energon write themselves: buffers, counters, workers."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from energon_stream.compat.draws import Savable
from energon_stream.compat.sample_helpers import get_sample_restore_key
from energon_stream.imports import LazyModule
from energon_stream.pipeline import SavableDataset
from energon_stream.pipeline.node import RestoreKey
from energon_stream.worker import WorkerConfig

if TYPE_CHECKING:
    import torch
else:
    torch = LazyModule("torch")

T = TypeVar("T")


class SavableSampleBuffer(Savable, Generic[T]):
    """A list of samples, of which states hold the restore keys.

    Call ``worker_start`` at the begin of ``__iter__``: it makes the samples of a restored state again.
    """

    def __init__(self, dataset: SavableDataset[T], *, worker_config: WorkerConfig) -> None:
        self.dataset: SavableDataset[T] = dataset
        self.worker_config: WorkerConfig = worker_config
        self.reset_state_own()

    def reset_state_own(self) -> None:
        """Drop all samples."""
        self._buffer: list[T] = []
        self._restore_keys: list[RestoreKey] = []
        self._restore_pending = False

    @property
    def buffer(self) -> list[T]:
        """The samples."""
        return self._buffer

    def worker_start(self) -> None:
        """Make the samples of a restored state again."""
        if self._restore_pending:
            self._restore_pending = False
            self._buffer = [self.dataset.restore_sample(key) for key in self._restore_keys]

    def append(self, sample: T) -> T:
        """Add a sample, and return it."""
        self.extend([sample])
        return sample

    def extend(self, samples: list[T], restore_keys: Sequence[Any] | None = None) -> None:
        """Add samples, with other keys than theirs, if given."""
        self._buffer.extend(samples)
        own = [get_sample_restore_key(sample) for sample in samples]
        self._restore_keys.extend(own if restore_keys is None else restore_keys)

    def append_iter(self) -> Iterator[T]:
        """Iterate the dataset, and add each sample."""
        for sample in self.dataset:
            yield self.append(sample)

    def pop(self, index: int) -> T:
        """Remove a sample, and return it."""
        self._restore_keys.pop(index)
        return self._buffer.pop(index)

    def flush(self) -> tuple[list[T], tuple[Any, ...]]:
        """Remove all samples; return them and their keys."""
        flushed = list(self._buffer), tuple(self._restore_keys)
        self.clear()
        return flushed

    def clear(self) -> None:
        """Remove all samples."""
        self._buffer.clear()
        self._restore_keys.clear()

    def __iter__(self) -> Iterator[T]:
        return iter(self._buffer)

    def __getitem__(self, index: Any) -> Any:
        return self._buffer[index]

    def len_worker(self, worker_idx: int | None = None) -> int:
        """Return the number of samples."""
        return len(self._restore_keys)

    __len__ = len_rank = len_worker

    def save_state(self) -> list[RestoreKey]:
        """Return the keys."""
        return list(self._restore_keys)

    def restore_state(self, state: Any) -> None:
        """Take the keys of a state; see :meth:`worker_start`."""
        self._restore_keys, self._buffer, self._restore_pending = list(state), [], True


class SampleIndex(Savable):
    """Counts calls of a function, and shows the counter to it as ``TaskEncoder.current_sample_index``."""

    def __init__(self, worker_config: WorkerConfig, *, src: Any) -> None:
        self.worker_config: WorkerConfig = worker_config
        self.src: Any = src
        self.current_idx: int = 0

    def get_next(self) -> int:
        """Return the counter, and count."""
        self.current_idx += 1
        return self.current_idx - 1

    @contextmanager
    def ctx(self, sample_idx: int | None = None) -> Iterator[int]:
        """Show the counter in a ``with`` block, and count; or show another."""
        shown = self.get_next() if sample_idx is None else sample_idx
        self.worker_config.worker_push_sample_index(shown)
        try:
            yield shown
        finally:
            self.worker_config.worker_pop_sample_index()

    def iter_ctx(self, it: Iterable[T], sample_idx: int | None = None) -> Iterator[tuple[int, T]]:
        """Yield elements with the counter, which the iterator sees, and count each."""
        iterator, done = iter(it), object()
        while True:
            with self.ctx(sample_idx) as shown:
                value: Any = next(iterator, done)
            if value is done:
                return
            yield shown, value

    def save_state(self) -> int:
        """Return the counter."""
        return self.current_idx

    def restore_state(self, state: int | None) -> None:
        """Set the counter; None sets 0."""
        self.current_idx = state or 0


def init_worker(seed_per_worker: Sequence[int], worker_id: int) -> None:
    """Seed the global generators of a worker; a ``worker_init_fn``, but for its first argument."""
    seed = seed_per_worker[worker_id]
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def gc_init_worker(worker_id: int) -> None:
    """Do nothing: a ``worker_init_fn`` of torch's loader. ``GcDataset`` says when a worker collects."""
