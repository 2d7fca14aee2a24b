"""The bytes that training steps will request, window by window.

Each stream's samples are located and planned as a reader does it, by the same planner, but not consumed.

Training may spread the streams of a rank over any number of processes. A stream that has a process for itself
reads furthest ahead, so this follows its plan. Of several streams in a process, the first one that is read
may read its first samples whole before it is known that parts are enough; see
:mod:`energon_stream.read.part_locator`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from energon_stream.index.entries import OffsetCache
from energon_stream.read.locating import Locating, ReadPosition, iterate_plans
from energon_stream.read.plan_limits import plan_limits
from energon_stream.read.read_options import LOADING
from energon_stream.read.request_planner import Planner
from energon_stream.tar.scan import HEAD_BYTES

if TYPE_CHECKING:
    from energon_stream.arrays import Int64Array
    from energon_stream.pipeline.reader_dataset import ReaderDataset
    from energon_stream.prewarming.amount import StreamAmount
    from energon_stream.read.read_plan import ReadPlan
    from energon_stream.storage import Fetcher, Store

_INDEX_BYTES = 256 << 20  # of entries to keep in memory: all streams of a node are located side by side
_WINDOW_BUDGETS = 8  # bytes to plan together, over all streams, in byte budgets of a reader
_CHUNKS_AHEAD = 8  # chunks, over all streams, to load before they are needed, because each is a round trip

_Row: TypeAlias = tuple[int, int, int, int]
"""Object, first byte, one past the last byte, and the number of samples before the range's own."""


@dataclass(frozen=True, slots=True, eq=False)
class Wanted:
    """Byte ranges that samples need. :meth:`WantedBytes.place` has their objects."""

    rows: Int64Array  # ``int64`` [n, 4], as ``_Row``
    samples: int = 0  # of the steps
    ahead: int = 0  # samples only looked ahead to

    @classmethod
    def of(cls, rows: Iterable[_Row], samples: int = 0, ahead: int = 0) -> Wanted:
        """Return the ranges of rows; objects with negative numbers are left out."""
        chosen = [row for row in rows if row[0] >= 0]
        return cls(np.array(chosen, dtype=np.int64).reshape(-1, 4), samples, ahead)


@dataclass(slots=True, eq=False)
class _Walk:
    """Progress through the plan of one stream."""

    locating: Locating
    plans: Iterator[ReadPlan]
    lane: int  # place of the stream in the rotation
    amount: StreamAmount
    planned: int = 0  # samples planned so far
    ahead_bytes: int = 0  # bytes planned so far of samples that are not made
    ahead_ranges: int = 0  # their ranges
    is_done: bool = False  # no more samples are wanted

    def count(self, plan: ReadPlan) -> None:
        """Count the samples of a plan; and the bytes, from the first sample that is not made."""
        self.planned += len(plan.samples)
        if self.planned > self.amount.made:
            beyond = min(len(plan.samples), self.planned - self.amount.made)
            self.ahead_ranges += plan.ranges * beyond // len(plan.samples)
            self.ahead_bytes += plan.bytes * beyond // len(plan.samples)


class WantedBytes:
    """Finds all bytes that readers may request until the steps are done, also for prefetched batches.

    Args:
        dataset: The dataset, opened in this process.
        amounts: Samples of each stream, in the order of the rotation.
        step_samples: Samples of a step of a stream; of planned packs, their approximate number.
        fetcher: Loads index entries, and nothing else. If it fetched samples as well, the loads would wait
            for fetches, and these for the next window.
        chosen: Returns True for a store whose objects are wanted.
    """

    def __init__(
        self,
        dataset: ReaderDataset,
        amounts: Mapping[int, StreamAmount],
        step_samples: int,
        fetcher: Fetcher,
        chosen: Callable[[Store], bool],
    ) -> None:
        options = self._options = dataset.reader_options(1)
        self._locators = dataset.open_locators(OffsetCache(_INDEX_BYTES))
        self._step, self._chosen = step_samples, chosen
        self._limits = plan_limits(options, self._locators)
        self._together = LOADING * options.take_of(1)
        most = -(-options.max_ahead // self._together)  # a reader looks less far ahead in short passes
        self._ahead = max(1, min(most, _CHUNKS_AHEAD // max(1, len(amounts))))
        config = dataset.worker_config
        self._is_alone = config.num_streams == config.world_size
        skips = any(locator.opening is not locator for locator in self._locators)
        self._walks: list[_Walk] = []
        self._openings: list[tuple[Locating, int]] = []  # of streams that may be a process's first, or not
        for lane, (stream, amount) in enumerate(amounts.items()):
            schedule = dataset.schedule(stream)
            start = partial(Locating, schedule, schedule.begin(), self._locators, fetcher)
            locating = start()
            plans = iterate_plans(locating, Planner(self._limits), chunk=self._together, chunks=self._ahead)
            self._walks.append(_Walk(locating, plans, lane, amount))
            if skips and not self._is_alone:
                first = ReadPosition(schedule, schedule.begin()).whole_packs(self._limits.opening_take)
                self._openings.append((start(), first))
        self._numbers: dict[tuple[str, str], int] = {}
        self._places: list[tuple[Store, str]] = []
        # What states need, see with_starts. Tars of fewer samples may have fewer bytes.
        tars = [each for leaf in dataset.leaves for each in leaf.index.tars if each.shard_counts[0] >= 8]
        unmarked = [each for each in tars if each.marks is None and each.start is None]
        self._starts = [
            (self._number_of(each.spec.open(), each.shard_paths[0]), 0, HEAD_BYTES, 0) for each in unmarked
        ]

    def place(self, number: int) -> tuple[Store, str]:
        return self._places[number]

    def windows(self) -> Iterator[Wanted]:
        """Yield the ranges, one window of each stream in turn."""
        for walk in self._walks:
            (walk.locating.begin if self._is_alone else walk.locating.take)(self._limits.opening_take)
        yield Wanted.of(self._starts)
        # First the first samples of each stream, as soon as they are located; then large requests.
        for walk in self._walks:
            yield self._next(walk, 0)
            walk.locating.take_ahead(self._ahead, self._together)
        for lane, (locating, first) in enumerate(self._openings):
            yield Wanted.of(self._opening(locating, first, lane))
        while walks := [walk for walk in self._walks if not walk.is_done]:
            for walk in walks:
                yield self._next(walk, _WINDOW_BUDGETS * self._options.fetch_bytes // len(walks))
                # Entries arrive while the window is fetched.
                walk.locating.take_ahead(self._ahead, self._together)
        for walk in self._walks:  # readers load index entries further ahead than samples
            end = walk.planned + self._options.max_ahead + self._together
            while walk.locating.taken < end and not walk.locating.is_exhausted:
                walk.locating.take(min(self._together, end - walk.locating.taken))
            while walk.locating.pending:
                walk.locating.next(wait=True)

    def _next(self, walk: _Walk, size: int) -> Wanted:
        """Return what a stream's next generations request: the next one, and more up to ``size`` bytes."""
        before, planned = walk.planned, 0
        rows: list[_Row] = []
        while not walk.is_done and (walk.planned == before or planned < size):
            plan = next(walk.plans, None)
            if plan is not None:
                rows += self._requested(walk, plan)
                planned += plan.bytes
                walk.count(plan)
            walk.is_done = (
                plan is None
                or walk.ahead_ranges >= self._limits.max_ahead
                or walk.ahead_bytes >= self._options.fetch_bytes + 2 * self._limits.plan_bytes
            )
        samples = min(walk.planned, walk.amount.samples) - min(before, walk.amount.samples)
        return Wanted.of(rows, samples, walk.planned - before - samples)

    def _requested(self, walk: _Walk, plan: ReadPlan) -> Iterator[_Row]:
        if isinstance(plan.samples, tuple):
            ((leaf, _, ranges),) = plan.samples
            for number, start, stop in ranges:
                yield from self._rows(leaf, number, start, stop, self._position(walk.lane, walk.planned))
            return
        sample_of_range = plan.sample_of_range
        for each in plan.requests:
            sample = walk.planned + int(sample_of_range[each.deadline - plan.first_range])
            position, stop = self._position(walk.lane, sample), each.start + each.size
            yield from self._rows(each.leaf, each.object, each.start, stop, position)

    def _opening(self, locating: Locating, first: int, lane: int) -> Iterator[_Row]:
        """Yield the first samples of a stream as they are read before it is known that parts are enough."""
        locating.begin(first)
        located = locating.next(wait=True)
        if located is None:
            return
        located = locating.widened(Planner(self._limits).add(located, locating.ended)).located
        columns = located.leaf, located.objects, located.starts, located.stops, located.begins.cumsum() - 1
        for leaf, number, start, stop, sample in zip(*(column.tolist() for column in columns), strict=True):
            if self._locators[leaf].skips_bytes:
                yield from self._rows(leaf, number, start, stop, self._position(lane, sample))

    def _position(self, lane: int, sample: int) -> int:
        """Return the number of samples before one of a stream, in the rotation of all streams."""
        step, within = divmod(sample, self._step)
        return (step * len(self._walks) + lane) * self._step + within

    def _rows(self, leaf: int, number: int, start: int, stop: int, position: int) -> Iterator[_Row]:
        shard = self._locators[leaf].object(number)
        own = self._number_of(shard.store, shard.path)
        for first, last in shard.spans(start, stop):
            yield own, first, last, position

    def _number_of(self, store: Store, path: str) -> int:
        """Return the number of an object, the same for all its locators; -1 if its store is not wanted."""
        if not self._chosen(store):
            return -1
        found = self._numbers.setdefault((store.url, path), len(self._places))
        if found == len(self._places):
            self._places.append((store, path))
        return found
