"""The bytes that training steps will request, window by window.

Each stream's samples are located and planned as a reader does it, by the same planner, but not consumed.

Training may spread the streams of a rank over any number of processes. A stream that has a process for itself
reads furthest ahead, so this follows its plan. Of several streams in a process, the first one that is read
may read its first samples whole before it is known that parts are enough; see
:mod:`energon_stream.read.parts`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from energon_stream.prewarming.spans import Spans
from energon_stream.read.consume import plan_limits
from energon_stream.read.index_entries import OffsetCache
from energon_stream.read.located import Located
from energon_stream.read.locating import Locating, iterate_plans
from energon_stream.read.open import open_locator
from energon_stream.read.options import CHUNK, LOADING
from energon_stream.read.plan import Planner

if TYPE_CHECKING:
    from energon_stream.arrays import Int64Array
    from energon_stream.pipeline.reader_dataset import ReaderDataset
    from energon_stream.read.read_plan import ReadPlan
    from energon_stream.storage import Fetcher, Store

_INDEX_BYTES = 256 << 20
"""Index entries to keep in memory, in bytes: all streams of a node are located side by side."""

_WINDOW_BUDGETS = 8
"""Bytes to plan together, over all streams, in byte budgets of a reader: a part of a pass at a time."""

_CHUNKS_AHEAD = 8
"""Chunks, over all streams, to load before they are needed, because each takes a round trip."""

_LOADED_TOGETHER = 4096
"""References whose index entries are loaded together."""


@dataclass(frozen=True, slots=True, eq=False)
class Wanted:
    """Byte ranges that samples need. :meth:`WantedBytes.place` has their objects."""

    spans: Spans
    positions: Int64Array  # for each range the number of samples before its own
    samples: int  # without those that are only looked ahead to
    ahead: int  # samples only looked ahead to


@dataclass(slots=True, eq=False)
class StreamWalk:
    """Progress through the plan of one stream."""

    locating: Locating
    plans: Iterator[ReadPlan]
    lane: int  # place of the stream in the rotation
    samples: int  # that training consumes
    made: int  # samples that may be made: workers prefetch some
    planned: int = 0  # samples planned so far
    ahead_bytes: int = 0  # bytes planned so far of samples that are not made
    ahead_ranges: int = 0  # their ranges
    is_done: bool = False  # no more samples are wanted

    def count(self, plan: ReadPlan) -> None:
        """Count the samples of a plan; and the bytes, from the first sample that is not made."""
        self.planned += len(plan.samples)
        if self.planned > self.made:
            beyond = min(len(plan.samples), self.planned - self.made)
            self.ahead_ranges += plan.ranges * beyond // len(plan.samples)
            self.ahead_bytes += plan.bytes * beyond // len(plan.samples)


class WantedBytes:
    """Finds the byte ranges of training steps.

    These are all bytes that readers may request until the steps are done: with the batches that workers
    prefetch and the samples that readers look ahead to, whichever processes the streams are in.

    Args:
        dataset: The dataset, opened in this process.
        samples: Number of samples of each stream, in the order of the rotation.
        step_samples: Samples of a step of a stream.
        prefetch: Steps of a stream that workers may prefetch.
        fetcher: Loads index entries, and nothing else. If it fetched samples as well, the loads would wait
            for fetches, and these for the next window.
        chosen: Returns True for a store whose objects are wanted.
    """

    def __init__(
        self,
        dataset: ReaderDataset,
        samples: Mapping[int, int],
        step_samples: int,
        prefetch: int,
        fetcher: Fetcher,
        chosen: Callable[[Store], bool],
    ) -> None:
        options = self._options = dataset.options
        offsets = OffsetCache(_INDEX_BYTES)
        self._locators = [
            open_locator(number, leaf.index, offsets, leaf.selection, options.max_gap, options.verify)
            for number, leaf in enumerate(dataset.leaves)
        ]
        self._step = step_samples
        self._chosen = chosen
        config = dataset.worker_config
        is_alone = config.num_streams == config.world_size
        opening = options.exact_samples
        self._limits = plan_limits(options, self._locators)
        self._ahead = ahead = max(1, _CHUNKS_AHEAD // max(1, len(samples)))
        self._walks: list[StreamWalk] = []
        self._openings: list[StreamWalk] = []  # streams that may be the first of a process, or not
        for lane, (stream, count) in enumerate(samples.items()):
            schedule, made = dataset.schedule(stream), count + prefetch * step_samples
            for walks, first in ((self._walks, opening if is_alone else 0), (self._openings, opening)):
                locating = Locating(schedule, schedule.begin(), self._locators, fetcher, first)
                plans = iterate_plans(locating, Planner(self._limits), chunk=_LOADED_TOGETHER, chunks=ahead)
                walks.append(StreamWalk(locating, plans, lane, count, made))
        if is_alone or all(locator.opening is locator for locator in self._locators):
            self._openings = []
        self._numbers: dict[tuple[str, str], int] = {}
        self._places: list[tuple[Store, str]] = []

    def place(self, number: int) -> tuple[Store, str]:
        """Return the store and path of an object."""
        return self._places[number]

    def windows(self) -> Iterator[Wanted]:
        """Yield the ranges, one window of each stream in turn."""
        for walk in self._walks:
            walk.locating.take(self._options.exact_samples)
        # First the first samples of each stream, as soon as they are located; then more, so that requests
        # are large.
        for walk in self._walks:
            yield self._next(walk, 0)
            walk.locating.take_ahead(self._ahead, _LOADED_TOGETHER)
        for walk in self._openings:
            yield self._opening(walk)
        while walks := [walk for walk in self._walks if not walk.is_done]:
            for walk in walks:
                yield self._next(walk, _WINDOW_BUDGETS * self._options.fetch_bytes // len(walks))
                # Entries arrive while the window is fetched.
                walk.locating.take_ahead(self._ahead, _LOADED_TOGETHER)
        for walk in self._walks:  # readers load index entries further ahead than samples
            end = walk.planned + self._options.max_ahead + LOADING * CHUNK
            while walk.locating.taken < end and not walk.locating.is_exhausted:
                walk.locating.take(min(_LOADED_TOGETHER, end - walk.locating.taken))
            _rest(walk.locating)

    def _next(self, walk: StreamWalk, size: int) -> Wanted:
        """Return what a stream's next generations request: the next one, and more up to ``size`` bytes."""
        limits, before = self._limits, walk.planned
        found: list[tuple[Spans, Int64Array]] = []
        planned = 0
        while not walk.is_done and (not found or planned < size):
            plan = next(walk.plans, None)
            if plan is not None:
                found.append(self._requested(walk, plan))
                planned += plan.bytes
                walk.count(plan)
            walk.is_done = (
                plan is None
                or walk.ahead_ranges >= limits.max_ahead
                or walk.ahead_bytes >= self._options.fetch_bytes + 2 * limits.plan_bytes
            )
        spans = Spans.concatenate([spans for spans, _ in found])
        positions = np.concatenate([np.zeros(0, np.int64), *(each for _, each in found)])
        samples = min(walk.planned, walk.samples) - min(before, walk.samples)
        return self._choose(spans, positions, samples, walk.planned - before - samples)

    def _requested(self, walk: StreamWalk, plan: ReadPlan) -> tuple[Spans, Int64Array]:
        """Return the byte ranges that a plan requests, by leaf and object, and the position of each."""
        if isinstance(plan.samples, tuple):
            ((leaf, _, ranges),) = plan.samples
            columns = [(leaf << 32 | number, start, stop, 0) for number, start, stop in ranges]
        else:
            columns = [
                (
                    each.leaf << 32 | each.object,
                    each.start,
                    each.start + each.size,
                    each.deadline - plan.first_range,
                )
                for each in plan.requests
            ]
        keys, starts, stops, at = np.array(columns, dtype=np.int64).reshape(-1, 4).T
        places = walk.planned + plan.sample_of_range[at]
        return Spans(keys, starts, stops), self._positions(walk, places)

    def _opening(self, walk: StreamWalk) -> Wanted:
        """Return the first samples of a stream as they are read before it is known that parts are enough."""
        walk.locating.take(walk.locating.opening)
        located = _rest(walk.locating)
        parts = [number for number, locator in enumerate(self._locators) if locator.skips_bytes]
        rows = np.flatnonzero(np.isin(located.leaf, parts))
        places = np.cumsum(located.begins)[rows] - 1
        spans = Spans(located.keys, located.starts, located.stops)[rows]
        return self._choose(spans, self._positions(walk, places), 0, 0)

    def _positions(self, walk: StreamWalk, places: Int64Array) -> Int64Array:
        """Return the number of samples before each place of a stream, in the rotation of all streams."""
        step, within = np.divmod(places, self._step)
        return (step * len(self._walks) + walk.lane) * self._step + within

    def _choose(self, spans: Spans, positions: Int64Array, samples: int, ahead: int) -> Wanted:
        """Return the ranges in chosen stores, with the numbers of their objects."""
        names, which = np.unique(spans.objects, return_inverse=True)
        numbers = np.array([self._number(name >> 32, name & 0xFFFFFFFF) for name in names.tolist()], np.int64)
        found = Spans(numbers[which], spans.starts, spans.stops)
        chosen = found.objects >= 0
        return Wanted(found[chosen], positions[chosen], samples, ahead)

    def _number(self, leaf: int, object_number: int) -> int:
        """Return the number of an object, the same for all its locators; -1 if its store is not wanted."""
        shard = self._locators[leaf].object(object_number)
        store, path = shard.store, shard.path
        if not self._chosen(store):
            return -1
        number = self._numbers.setdefault((store.url, path), len(self._places))
        if number == len(self._places):
            self._places.append((store, path))
        return number


def _rest(locating: Locating) -> Located:
    """Wait for all references that are being located, and return their ranges."""
    found = Located.none()
    while locating.pending:
        located = locating.next(wait=True)
        if located is not None:
            found += located
    return found
