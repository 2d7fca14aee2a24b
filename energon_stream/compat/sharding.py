"""Deals samples to workers as Megatron-Energon does, and reads what they get."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Generic, TypeVar

import numpy as np

from energon_stream.compat.dataset_info import DatasetSubset, ShardInfo
from energon_stream.compat.draws import WorkerRng
from energon_stream.compat.epath import EPath
from energon_stream.imports import LazyModule
from energon_stream.pipeline import SavableDataset
from energon_stream.schedule.plan import stream_bounds
from energon_stream.schedule.slices import SliceTable
from energon_stream.worker import WorkerConfig

torch: Any = LazyModule("torch")
T_sample = TypeVar("T_sample", covariant=True)


class Sharder:
    """Deals samples to the workers of all ranks. Datasets of this library are dealt by their plan, alike."""

    @classmethod
    def split_samples_to_workers(
        cls, start_samples: int, end_samples: int, worker_config: WorkerConfig, *, rotation_offset: int = 0
    ) -> Sequence[int]:
        """Return where the samples of each worker of this rank begin, and the end of the last one."""
        workers = max(1, worker_config.num_workers)
        total = worker_config.world_size * workers
        bounds = stream_bounds(end_samples - start_samples, total, rotation_offset % total)
        first = worker_config.rank * workers
        return [start_samples + bound for bound in bounds[first : first + workers + 1].tolist()]

    @classmethod
    def shard_workers(
        cls,
        shards: Sequence[ShardInfo],
        worker_config: WorkerConfig,
        *,
        max_samples_per_sequence: int | None,
        subset: DatasetSubset | None = None,
        rotation_offset: int = 0,
    ) -> Sequence[Sequence[int]]:
        """Return where the slices of each worker begin, and their end; they do not cross shards."""
        starts = np.cumsum([0, *(shard.count for shard in shards)])
        total = int(starts[-1])
        first, stop = (0, total) if subset is None else subset.compute_subset(total)
        bounds = cls.split_samples_to_workers(first, stop, worker_config, rotation_offset=rotation_offset)
        found = []
        for begin, end in pairwise(bounds):
            table = SliceTable.build(starts, begin, end, max_samples_per_sequence)
            found.append((*table.bounds(np.arange(len(table)))[0].tolist(), end))
        return tuple(found)

    @classmethod
    def slice_workers(
        cls, total_samples: int, worker_config: WorkerConfig, **options: Any
    ) -> Sequence[Sequence[int]]:
        """Return the slices of one file; :meth:`shard_workers` has the ``options``."""
        whole = ShardInfo(name="", path=EPath("."), count=total_samples)
        return cls.shard_workers([whole], worker_config, **options)


@dataclass(kw_only=True, slots=True)
class RawSampleData(Generic[T_sample]):
    """A sample as it is read, of each of the joined datasets."""

    __restore_key__: tuple[Any, ...]
    data: tuple[Any, ...]


class WebdatasetSampleLoaderDataset(SavableDataset[RawSampleData[Any]]):
    """Reads slices of joined readers, sequences of samples or None, which drops the sample.

    ``workers_sample_slice_offsets`` has for each worker where its slices begin, and the end of the last one.
    A pass has them in order, or shuffled ``shuffle_over_epochs`` times together; -1 draws them without end.
    ``parallel_slice_iters`` slices are read in turn, at random.
    """

    _savable_fields = ("_rng", "_pending", "_active")

    def __init__(
        self,
        join_readers: Sequence[Sequence[Any]],
        workers_sample_slice_offsets: Sequence[Sequence[int]],
        *,
        worker_config: WorkerConfig,
        shuffle_over_epochs: int | None = None,
        parallel_slice_iters: int = 1,
    ) -> None:
        super().__init__(worker_config=worker_config)
        self.join_readers: Sequence[Sequence[Any]] = join_readers
        self.shuffle_over_epochs: int | None = shuffle_over_epochs
        self.workers_sample_slice_offsets = workers_sample_slice_offsets
        self.parallel_slice_iters = parallel_slice_iters
        self.reset_state_own()

    def reset_state_own(self) -> None:
        """Begin anew."""
        self._rng = WorkerRng(self.worker_config)
        self._pending: list[int] = []  # slices of the pass that are not begun
        self._active: list[list[int]] = []  # next sample, end and length of those that are

    def len_worker(self, worker_idx: int | None = None) -> int:
        """Return the samples of one worker, of one copy."""
        worker = self.worker_config.rank_worker_id() if worker_idx is None else worker_idx
        offsets = self.workers_sample_slice_offsets[worker]
        return offsets[-1] - offsets[0]

    def _next_slice(self, offsets: Sequence[int]) -> list[int]:
        """Take the next slice of the pass; none has a length of 0, so that it is not drawn."""
        if self.shuffle_over_epochs == -1:
            self._pending = [self._rng.randbelow(len(offsets) - 1)]
        if not self._pending:
            return [0, 0, 0]
        first, stop = offsets[(number := self._pending.pop(0)) : number + 2]
        return [first, stop, stop - first]

    def __iter__(self) -> Iterator[RawSampleData[Any]]:
        offsets = self.workers_sample_slice_offsets[self.worker_config.rank_worker_id()]
        if not self._active and len(offsets) > 1:
            if self.shuffle_over_epochs != -1:
                slices = list(range(len(offsets) - 1)) * (self.shuffle_over_epochs or 1)
                self._pending = slices if self.shuffle_over_epochs is None else self._rng.shuffle(slices)
            self._active = [self._next_slice(offsets) for _ in range(self.parallel_slice_iters)]
        while any(length for *_, length in self._active):
            lengths = torch.tensor([length for *_, length in self._active], dtype=torch.float32)
            place = self._rng.choice_idx(lengths) if len(self._active) > 1 else 0
            sample = self._get_sample(self._active[place][0])
            self._active[place][0] += 1
            if self._active[place][0] == self._active[place][1]:
                self._active[place] = self._next_slice(offsets)
            if sample.data[0] is not None:
                yield sample
        self._active = []

    def _get_sample(self, index: int) -> RawSampleData[Any]:
        data = tuple(reader[index] for reader in self.join_readers)
        return RawSampleData(__restore_key__=("Webdataset", index), data=data)

    def can_restore_sample(self) -> bool:
        """Return True."""
        return True

    def restore_sample(self, restore_key: Any) -> RawSampleData[Any]:
        """Read a sample by its number."""
        return self._get_sample(int(restore_key[1]))
