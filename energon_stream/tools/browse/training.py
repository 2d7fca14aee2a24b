"""The training whose steps can be looked at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Self

from energon_stream.errors import ConfigError
from energon_stream.index.dataset import DatasetIndex
from energon_stream.pipeline.reader_dataset import ReaderDataset
from energon_stream.prewarming.job import open_reader_dataset
from energon_stream.tools.simulate.explain import samples_of_step
from energon_stream.worker import WorkerConfig

_KEPT = 4
_MOST = 10**12
_MOST_STREAMS = 1_000_000


@dataclass(frozen=True, slots=True)
class Run:
    """A step of a training, and the options that determine its samples."""

    # step of the rank, counted from 0; None to begin with the first samples of the dataset
    step: int | None = None
    batch_size: int = 32  # samples of a step
    rank: int = 0  # rank of the job
    world_size: int = 1  # number of ranks
    num_workers: int = 4  # workers of a rank
    num_streams: int = 0  # streams of the job; 0 for ranks times workers
    seed_offset: int = 0  # the seed
    # other arguments of :func:`get_train_dataset`, as in training
    options: Mapping[str, Any] = field(default_factory=dict)

    def changed(self, given: Mapping[str, str]) -> Self:
        """Return the run with the numbers that a form gives, by name; others stay.

        Raises ConfigError if a value is no number.

        Example:
            >>> run = Run().changed({"step": "7", "rank": "1", "other": "x"})
            >>> run.step, run.rank, run.batch_size
            (7, 1, 32)
        """
        changes: dict[str, Any] = {
            name: number(given, name, 0, most) for name, most in NUMBERS.items() if given.get(name)
        }
        order = {name: changes.pop(name) or None for name in _ORDER if name in changes}
        return replace(self, **changes, options={**self.options, **order})

    def numbers(self) -> dict[str, int | None]:
        """Return what a form shows, by name."""
        return {name: getattr(self, name, self.options.get(name)) for name in NUMBERS}


NUMBERS = {
    "step": _MOST,
    "batch_size": 100_000,
    "rank": 100_000,
    "world_size": 100_000,
    "num_workers": 1000,
    "num_streams": 100_000,
    "seed_offset": _MOST,
    "shuffle_buffer_size": _MOST,
    "max_samples_per_sequence": _MOST,
    "parallel_shard_iters": 100_000,
}
_ORDER = tuple(NUMBERS)[-3:]
"""Those of them that are options of :func:`get_train_dataset`; 0 stands for None."""
"""Fields that the page can change, and the largest number of each."""


def number(given: Mapping[str, str], name: str, default: int, most: int = _MOST) -> int:
    """Return a number from 0 to ``most`` that a form or query gives. Raises ConfigError if it is none.

    Example:
        >>> number({"first": "50"}, "first", 0)
        50
    """
    text = given.get(name) or str(default)
    if not (text.isascii() and text.isdecimal() and len(text) < 14 and int(text) <= most):
        raise ConfigError(f"{name} is {text!r:.80}", hint=f"give a number from 0 to {most:,}")
    return int(text)


class StepFinder:
    """Finds the samples of steps of a path, by the plan of the training. Reads metadata, no samples.

    ``options`` are as for :func:`get_train_dataset`, without batch size and configuration.
    """

    def __init__(self, path: str, options: Mapping[str, Any]) -> None:
        self._path, self._options = path, options
        self._opened = lru_cache(_KEPT)(self._open)

    def find(self, run: Run) -> list[tuple[DatasetIndex, int]]:
        """Return the samples of a step: the dataset of each, and its number there."""
        dataset = self.open(run)
        refs = samples_of_step(dataset, run.step or 0, run.batch_size)
        pairs = zip(refs.leaf.tolist(), refs.index.tolist(), strict=True)
        return [(dataset.leaves[leaf].index, sample) for leaf, sample in pairs]

    def open(self, run: Run) -> ReaderDataset:
        """Open the dataset as the training does, or raise what that raises."""
        streams = max(run.num_streams, run.world_size * max(1, run.num_workers))
        if streams > _MOST_STREAMS:
            raise ConfigError(f"{streams:,} streams are too many to plan", hint=f"at most {_MOST_STREAMS:,}")
        names = ("rank", "world_size", "num_workers", "seed_offset", "num_streams")
        config = WorkerConfig(**{name: getattr(run, name) for name in names})
        order = {name: run.options[name] for name in _ORDER if name in run.options}
        return self._opened(config, run.batch_size, **order)

    def _open(self, config: WorkerConfig, batch_size: int, **order: int | None) -> ReaderDataset:
        options = {"batch_size": batch_size, **self._options, **order}
        return open_reader_dataset(self._path, config, False, options)
