"""The bytes that training steps will read, window by window.

Samples come in the order of training, and the indices tell their byte ranges.

Datasets that are read by parts need bytes beyond that. A process that is to read some parts of the samples
queries ``index.sqlite`` for a page of them, and then knows if reading parts saves anything. If only a field
map says which parts are needed, the process first reads whole samples and inspects the headers of one (see
:mod:`energon_stream.read.parts`). Which samples these are depends on the order, and on which streams of a
rank share the process; :class:`Opening` has the samples of all possibilities.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from energon_stream.prewarming.spans import Spans
from energon_stream.read.index_entries import OffsetCache
from energon_stream.read.open import open_locator
from energon_stream.read.options import CHUNK, ReadOptions, cut_generation
from energon_stream.read.parts import PartLocator
from energon_stream.read.window import Window
from energon_stream.schedule import Cursor, Refs, Schedule

if TYPE_CHECKING:
    from concurrent.futures import Future

    from energon_stream.arrays import Int64Array
    from energon_stream.pipeline.reader_dataset import ReaderDataset
    from energon_stream.storage import Fetcher, Store

_INDEX_BYTES = 256 << 20
"""Index entries to keep in memory, in bytes: all streams of a node are located side by side."""

_WINDOW_BUDGETS = 8
"""Bytes to plan together, over all streams, in byte budgets of a reader: a part of a pass at a time."""

_CHUNKS_AHEAD = 8
"""Chunks, over all streams, to load before they are needed, because each takes a round trip."""

_FIRST_CHUNKS_AHEAD = 2
"""Chunks of each stream to load before anything is fetched."""


@dataclass(frozen=True, slots=True, eq=False)
class Wanted:
    """Byte ranges that samples need. :meth:`WantedBytes.place` has their objects."""

    spans: Spans
    positions: Int64Array  # for each range the number of samples before its own
    samples: int  # without those that are only looked ahead to
    ahead: int  # samples only looked ahead to


@dataclass(slots=True, eq=False)
class StreamWalk:
    """Progress through the references of one stream."""

    schedule: Schedule
    cursor: Cursor
    lane: int  # place of the stream in the rotation
    samples: int  # that training consumes
    made: int  # samples that may be made: workers prefetch some
    end: int  # references to look at, at most
    taken: int = 0  # references taken from the schedule
    # The last of these by chunks, with the loads of their index entries. Never empty while there are more.
    loading: deque[tuple[Refs, list[Future[object]]]] = field(default_factory=deque)
    window: Window = field(default_factory=Window)  # located references that are not wanted yet
    done: int = 0  # references before the window
    ahead_bytes: int = 0  # wanted so far of references that no samples are made of
    is_done: bool = False  # no more references are wanted

    def take(self, most: int) -> Refs:
        """Take the next references; none at the end."""
        count = min(most, self.end - self.taken)
        if not self.taken:  # the first chunk becomes requests before the next one is located
            refs, _ = self.schedule.take(self.cursor, min(2 * most, self.end))
            count = min(count, cut_generation(refs.leaf.astype(np.int64), refs.index, refs.index + 1, most))
        refs, self.cursor = self.schedule.take(self.cursor, count)
        self.taken += len(refs)
        return refs


@dataclass(frozen=True, slots=True, eq=False)
class Opening:
    """Samples of one dataset that a stream may read before the process knows that parts are enough."""

    located: Int64Array  # their entries of .tar.idx may be loaded
    queried: Int64Array  # their pages of index.sqlite may be queried
    whole: Int64Array  # places in the stream of samples that may be read whole although parts are enough

    @classmethod
    def of(cls, refs: Refs, locator: PartLocator, options: ReadOptions, alone: bool) -> Opening:
        """Return the samples that the opening of a stream reads of one dataset.

        ``refs`` are the stream's first references. ``alone`` is True if the rank has no other stream.
        """
        places = np.flatnonzero(refs.leaf == locator.whole.leaf)
        samples, first = refs.index[places], options.exact_samples
        second = first + options.second_take
        # References are located by chunks: three of a process's first stream, and one of its others.
        bounds = [(0, first), (first, second), (second, second + CHUNK), (0, CHUNK)]
        chunks = [places[(begin <= places) & (places < end)] for begin, end in bounds]
        # Pages of the first chunk are queried at the same time; of a later chunk, its first page goes first.
        queried = [
            refs.index[chunks[0]],
            *(refs.index[chunk].min(keepdims=True) for chunk in chunks[1:] if len(chunk)),
        ]
        whole = [np.zeros(0, np.int64)]
        if not locator.selection.declared:
            whole += [chunks[0] if len(chunks[0]) else chunks[1], *(chunk[:1] for chunk in chunks[1:])]
            if not alone:  # the other streams read whole samples until the first stream has inspected one
                whole.append(chunks[-1])
        return cls(samples, np.concatenate(queried), np.unique(np.concatenate(whole)))


class WantedBytes:
    """Finds the byte ranges of training steps.

    These are all bytes that readers may request until the steps are done: with the batches that workers
    prefetch and the samples that readers look ahead to, up to their limits, whichever processes the streams
    are in.

    Args:
        dataset: The dataset, opened in this process.
        samples: Number of samples of each stream, in the order of the rotation.
        step_samples: Samples of a step of a stream.
        prefetch: Steps of a stream that workers may prefetch.
        fetcher: Loads index entries, and nothing else. If it fetched samples as well, the loads would wait
            for fetches, and these for the next window.
        chosen: Returns True for a store whose objects are wanted.
        loaded_together: References whose index entries are loaded together.
    """

    def __init__(
        self,
        dataset: ReaderDataset,
        samples: Mapping[int, int],
        step_samples: int,
        prefetch: int,
        fetcher: Fetcher,
        chosen: Callable[[Store], bool],
        loaded_together: int = 4096,
    ) -> None:
        options = self._options = dataset.options
        offsets = OffsetCache(_INDEX_BYTES)
        self._locators = [
            open_locator(number, leaf.index, offsets, leaf.selection, options.max_gap)
            for number, leaf in enumerate(dataset.leaves)
        ]
        self._step = step_samples
        self._fetcher = fetcher
        self._chosen = chosen
        self._loaded_together = loaded_together
        config = dataset.worker_config
        self._alone = config.num_streams == config.world_size
        self._walks = []
        for lane, (stream, count) in enumerate(samples.items()):
            schedule, made = dataset.schedule(stream), count + prefetch * step_samples
            end = made + options.most_ahead
            self._walks.append(StreamWalk(schedule, schedule.begin(), lane, count, made, end))
        self._numbers: dict[tuple[str, str], int] = {}
        self._places: list[tuple[Store, str]] = []

    def place(self, number: int) -> tuple[Store, str]:
        """Return the store and path of an object."""
        return self._places[number]

    def windows(self) -> Iterator[Wanted]:
        """Yield the ranges, one window of each stream in turn."""
        yield from self._openings()
        # First one chunk of each stream, as soon as it is located; then more, so that requests are large.
        budget, streams = self._options.fetch_bytes, max(1, len(self._walks))
        size, chunks = max(2 * self._options.generation, budget // streams), 1
        ahead = max(1, min(_FIRST_CHUNKS_AHEAD, _CHUNKS_AHEAD // streams))
        for number in range(ahead):
            for walk in self._walks:
                self._load(walk, number + 1)
        while walks := [walk for walk in self._walks if not walk.is_done]:
            later = max(1, _CHUNKS_AHEAD // len(walks))
            for walk in walks:
                yield self._next(walk, size, chunks, ahead)
                self._load(walk, later)  # entries arrive while the window is fetched
            chunks, ahead = sys.maxsize, later
            size = max(size, _WINDOW_BUDGETS * budget // len(walks))
        for walk in self._walks:  # readers load index entries further ahead than samples
            while walk.loading:
                _wait(walk.loading.popleft()[1])
                self._load(walk, ahead)

    def _load(self, walk: StreamWalk, chunks: int) -> None:
        """Take references of a stream and load their index entries, until so many chunks are loading."""
        while len(walk.loading) < chunks and len(refs := walk.take(self._loaded_together)):
            loads = [
                self._fetcher.call(load)
                for leaf in np.unique(refs.leaf).tolist()
                for load in self._locators[leaf].claim_loads(refs.index[refs.leaf == leaf])
            ]
            walk.loading.append((refs, loads))

    def _next(self, walk: StreamWalk, size: int, chunks: int, ahead: int) -> Wanted:
        """Return the ranges of a stream's next references, without those further ahead than readers read.

        They have about ``size`` bytes, because the window ends where it separates few neighbours. At most
        ``chunks`` chunks are waited for, and ``ahead`` keep loading.
        """
        window = walk.window
        self._load(walk, ahead)
        while walk.loading and chunks and window.sizes().sum() <= size:
            chunks -= 1
            refs, loads = walk.loading.popleft()
            _wait(loads)
            window.append(self._locators, refs)
            self._load(walk, ahead)
        count = len(window)
        if walk.loading:
            keys = window.leaf << 32 | window.objects
            count = window.whole(cut_generation(keys, window.starts, window.stops, size))
        of = np.cumsum(window.begins[:count]) - 1
        places = walk.done + np.arange(int(of[-1]) + 1 if count else 0)  # of the references in the stream
        sizes = np.bincount(of, window.sizes()[:count], len(places)).astype(np.int64)
        beyond = places >= walk.made
        before = walk.ahead_bytes + np.cumsum(np.where(beyond, sizes, 0)) - sizes
        read = ~beyond | (before < self._options.most_ahead_bytes)
        walk.done += len(places)
        walk.ahead_bytes += int(sizes[beyond].sum())
        walk.is_done = not read.all() or (not walk.loading and count == len(window))
        samples = int((places < walk.samples).sum())
        positions = self._positions(walk, places)[of]
        found = self._wanted(window, read[of], positions, samples, int(read.sum()) - samples)
        window.forget(count)
        return found

    def _positions(self, walk: StreamWalk, places: Int64Array) -> Int64Array:
        """Return the number of samples before each place of a stream, in the rotation of all streams."""
        step, within = np.divmod(places, self._step)
        return (step * len(self._walks) + walk.lane) * self._step + within

    def _wanted(
        self, window: Window, chosen: npt.NDArray[np.bool_], positions: Int64Array, samples: int, ahead: int
    ) -> Wanted:
        """Return the chosen ones of a window's first ranges, without those of stores that are not wanted."""
        keys = (window.leaf << 32 | window.objects)[: len(chosen)]
        names, which = np.unique(keys, return_inverse=True)
        numbers = np.array([self._number(name >> 32, name & 0xFFFFFFFF) for name in names.tolist()], np.int64)
        objects = numbers[which]
        chosen = chosen & (objects >= 0)
        spans = Spans(objects, window.starts[: len(chosen)], window.stops[: len(chosen)])
        return Wanted(spans[chosen], positions[chosen], samples, ahead)

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

    def _openings(self) -> Iterator[Wanted]:
        """Yield the bytes read before a process knows that parts are enough, and let the locators decide."""
        options = self._options
        parts = {n: locator for n, locator in enumerate(self._locators) if isinstance(locator, PartLocator)}
        if not parts:
            return
        whole = [locator.whole if isinstance(locator, PartLocator) else locator for locator in self._locators]
        length = options.exact_samples + options.second_take + CHUNK
        for walk in self._walks:
            refs, _ = walk.schedule.take(walk.schedule.begin(), length)
            found = []
            for locator in (parts[leaf] for leaf in np.unique(refs.leaf).tolist() if leaf in parts):
                opening = Opening.of(refs, locator, options, self._alone)
                for _ in range(2):  # the first call inspects nothing
                    self._run_all(locator.claim_loads(opening.located[:1]))
                self._run_all(locator.whole.claim_loads(opening.located))
                first, *others = locator.index_reads(opening.queried)
                if self._fetcher.call(first).result() is not None:  # there is an index
                    self._run_all(others)
                if locator.reads_parts:
                    found.append(opening.whole)
            if found:
                places, window = np.sort(np.concatenate(found)), Window()
                window.append(whole, Refs(refs.leaf[places], refs.index[places]))
                chosen = np.ones(len(window), dtype=bool)
                yield self._wanted(window, chosen, self._positions(walk, places), 0, 0)

    def _run_all(self, loads: Sequence[Callable[[], object]]) -> None:
        _wait([self._fetcher.call(load) for load in loads])


def _wait(loads: Sequence[Future[object]]) -> None:
    for load in loads:
        load.result()
