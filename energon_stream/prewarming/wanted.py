"""Which bytes some steps will read, window by window: the order of the steps, located by the indices."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from energon_stream.arrays import Int64Array
from energon_stream.pipeline.reader_dataset import ReaderDataset
from energon_stream.prewarming.opening import opening_length, opening_of
from energon_stream.prewarming.spans import Spans
from energon_stream.read.locator import OffsetCache
from energon_stream.read.open import open_locator
from energon_stream.read.options import cut_generation
from energon_stream.read.parts import PartLocator
from energon_stream.read.window import Window
from energon_stream.schedule import Cursor, Refs, Schedule
from energon_stream.storage import Fetcher, Store

__all__ = ["StreamWalk", "Wanted", "WantedBytes"]

_INDEX_BYTES = 256 << 20
"""Entries of indices that are kept: the streams of a node are located side by side."""

_WINDOW_BUDGETS = 8
"""Bytes whose requests are planned together, over all streams, in byte budgets of a reader: some of a pass at a time."""

_CHUNK = 4096
"""References whose index entries are asked for at a time."""

_CHUNKS_AHEAD = 8
"""Chunks of all streams that are asked for before they are needed: each takes a round trip."""

_FIRST_CHUNKS_AHEAD = 2
"""Chunks of each stream that are asked for before anything is fetched."""


@dataclass(frozen=True, slots=True, eq=False)
class Wanted:
    """Byte ranges that samples need.

    Attributes:
        spans: The ranges; objects are numbered by :class:`WantedBytes`.
        turns: ``int64``, for each range how many samples come before its own.
        samples: Samples that they are of, without those that are only looked ahead to.
        ahead: The latter.
    """

    spans: Spans
    turns: Int64Array
    samples: int = 0
    ahead: int = 0


@dataclass(slots=True, eq=False)
class StreamWalk:
    """How far the references of one stream were looked at.

    Attributes:
        schedule: Gives them.
        place: Its place among the streams that take turns.
        samples: How many are to be consumed.
        made: How many samples may be made of them: workers have some ready.
        end: How many are looked at, at most.
        cursor: Where the schedule stands.
        taken: References before that.
        asked: The last of these by chunks, each with the loads of its index entries that are under way. Never empty
            while there are more.
        window: Located references that are not wanted yet.
        position: References before these.
        ahead_bytes: Bytes of those wanted so far that no samples are made of.
        is_read_up: Whether no more are wanted.
    """

    schedule: Schedule
    place: int
    samples: int
    made: int
    end: int
    cursor: Cursor = field(init=False)
    taken: int = 0
    asked: deque[tuple[Refs, list[Future[object]]]] = field(default_factory=deque)
    window: Window = field(default_factory=Window)
    position: int = 0
    ahead_bytes: int = 0
    is_read_up: bool = False

    def __post_init__(self) -> None:
        self.cursor = self.schedule.begin()

    def take(self) -> Refs:
        """The next references; none at the end."""
        count = min(_CHUNK, self.end - self.taken)
        if not self.taken:  # these may become requests before the next ones are located
            refs, _ = self.schedule.take(self.cursor, min(2 * _CHUNK, self.end))
            count = min(count, cut_generation(refs.leaf.astype(np.int64), refs.index, refs.index + 1, _CHUNK))
        refs, self.cursor = self.schedule.take(self.cursor, count)
        self.taken += len(refs)
        return refs


class WantedBytes:
    """Finds the byte ranges of steps.

    All that readers may ask for until the steps are done is wanted: what workers have ready, and what readers look
    ahead, up to their limits, whatever processes the streams are in.

    Args:
        dataset: The dataset, opened in this process.
        samples: How many samples of each stream, in the order of the turns.
        step_samples: Samples of a step of a stream.
        prefetch: Steps of a stream that workers may make ready.
        fetcher: Runs requests for entries of indices, and nothing else: they would wait for ranges to be fetched,
            and those in turn for the next window.
        chosen: Tells whether objects of a store are looked for.
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
            open_locator(number, leaf.index, offsets, leaf.selection, options.max_gap)
            for number, leaf in enumerate(dataset.leaves)
        ]
        self._step = step_samples
        self._fetcher = fetcher
        self._chosen = chosen
        config = dataset.worker_config
        self._alone = config.num_streams == config.world_size
        self._walks = []
        for place, (stream, count) in enumerate(samples.items()):
            made = count + prefetch * step_samples
            walk = StreamWalk(dataset.schedule(stream), place, count, made, made + options.most_ahead)
            self._walks.append(walk)
        self._numbers: dict[tuple[str, str], int] = {}
        self._places: list[tuple[Store, str]] = []

    def place(self, number: int) -> tuple[Store, str]:
        """Store and path of an object."""
        return self._places[number]

    def windows(self) -> Iterator[Wanted]:
        """The ranges, a stream's window at a time; in the order of the turns from one round of windows to the next."""
        yield from self._openings()
        # First one chunk of each stream, as soon as it is located; then more, so that requests are large.
        budget, streams = self._options.fetch_bytes, max(1, len(self._walks))
        size, chunks = max(2 * self._options.generation, budget // streams), 1
        ahead = max(1, min(_FIRST_CHUNKS_AHEAD, _CHUNKS_AHEAD // streams))
        for number in range(ahead):
            for walk in self._walks:
                self._ask(walk, number + 1)
        while walks := [walk for walk in self._walks if not walk.is_read_up]:
            later = max(1, _CHUNKS_AHEAD // len(walks))
            for walk in walks:
                yield self._next(walk, size, chunks, ahead)
                self._ask(walk, later)  # the entries come while what was found is fetched
            chunks, ahead = sys.maxsize, later
            size = max(size, _WINDOW_BUDGETS * budget // len(walks))
        for walk in self._walks:  # readers ask for index entries further ahead than for samples
            while walk.asked:
                _wait(walk.asked.popleft()[1])
                self._ask(walk, ahead)

    def _ask(self, walk: StreamWalk, chunks: int) -> None:
        """Take references of a stream, and ask for their index entries, until so many chunks are asked for."""
        while len(walk.asked) < chunks and len(refs := walk.take()):
            loads = [
                self._run(load)
                for leaf in np.unique(refs.leaf).tolist()
                for load in self._locators[leaf].missing_offsets(refs.index[refs.leaf == leaf])
            ]
            walk.asked.append((refs, loads))

    def _run(self, load: Callable[[], object]) -> Future[object]:
        return self._fetcher.call(load)

    def _next(self, walk: StreamWalk, size: int, chunks: int, ahead: int) -> Wanted:
        """The ranges of a stream's next references, but for those further ahead than readers read.

        Args:
            walk: The stream.
            size: About how many bytes; they end where few neighbours are separated.
            chunks: How many chunks are waited for, at most.
            ahead: Chunks whose index entries stay asked for.
        """
        window = walk.window
        self._ask(walk, ahead)
        while walk.asked and chunks and window.sizes().sum() <= size:
            chunks -= 1
            refs, loads = walk.asked.popleft()
            _wait(loads)
            window.append(self._locators, refs)
            self._ask(walk, ahead)
        count = len(window)
        if walk.asked:
            keys = window.leaf << 32 | window.objects
            count = window.whole(cut_generation(keys, window.starts, window.stops, size))
        of = np.cumsum(window.begins[:count]) - 1
        positions = walk.position + np.arange(int(of[-1]) + 1 if count else 0)
        sizes = np.bincount(of, window.sizes()[:count], len(positions)).astype(np.int64)
        beyond = positions >= walk.made
        before = walk.ahead_bytes + np.cumsum(np.where(beyond, sizes, 0)) - sizes
        read = ~beyond | (before < self._options.most_ahead_bytes)
        walk.position += len(positions)
        walk.ahead_bytes += int(sizes[beyond].sum())
        walk.is_read_up = not read.all() or (not walk.asked and count == len(window))
        samples = int((positions < walk.samples).sum())
        turns = self._turns(walk, positions)[of]
        found = self._wanted(window, read[of], turns, samples, int(read.sum()) - samples)
        window.forget(count)
        return found

    def _turns(self, walk: StreamWalk, positions: Int64Array) -> Int64Array:
        """How many samples come before those at some positions, where all streams take turns."""
        step, within = np.divmod(positions, self._step)
        return (step * len(self._walks) + walk.place) * self._step + within

    def _wanted(
        self, window: Window, chosen: npt.NDArray[np.bool_], turns: Int64Array, samples: int, ahead: int
    ) -> Wanted:
        """Chosen ones of a window's first ranges, those of stores that are not looked at left out."""
        keys = (window.leaf << 32 | window.objects)[: len(chosen)]
        names, which = np.unique(keys, return_inverse=True)
        numbers = np.array([self._number(name >> 32, name & 0xFFFFFFFF) for name in names.tolist()], np.int64)
        objects = numbers[which]
        chosen = chosen & (objects >= 0)
        spans = Spans(objects, window.starts[: len(chosen)], window.stops[: len(chosen)])
        return Wanted(spans[chosen], turns[chosen], samples, ahead)

    def _number(self, leaf: int, object_number: int) -> int:
        """Number of an object, the same for all locators that have it; -1 where its store is not looked at."""
        shard = self._locators[leaf].object(object_number)
        store, path = shard.store, shard.path
        if not self._chosen(store):
            return -1
        number = self._numbers.setdefault((store.url, path), len(self._places))
        if number == len(self._places):
            self._places.append((store, path))
        return number

    def _openings(self) -> Iterator[Wanted]:
        """What is read before it is known that parts are enough; settles that for the windows."""
        options = self._options
        parts = {n: source for n, source in enumerate(self._locators) if isinstance(source, PartLocator)}
        if not parts:
            return
        whole = [source.whole if isinstance(source, PartLocator) else source for source in self._locators]
        for walk in self._walks:
            refs, _ = walk.schedule.take(walk.schedule.begin(), opening_length(options))
            places = []
            for source in (parts[leaf] for leaf in np.unique(refs.leaf).tolist() if leaf in parts):
                opening = opening_of(refs, source, options, self._alone)
                for samples in (
                    opening.located[:1],
                    opening.located[:1],
                ):  # the first time nothing is looked at
                    _wait([self._run(load) for load in source.missing_offsets(samples)])
                _wait([self._run(load) for load in source.whole.missing_offsets(opening.located)])
                first, *others = source.index_reads(opening.asked)
                if self._run(first).result() is not None:  # there is an index
                    _wait([self._run(load) for load in others])
                if source.reads_parts:
                    places.append(opening.whole)
            if places:
                positions = np.sort(np.concatenate(places))
                window = Window()
                window.append(whole, Refs(refs.leaf[positions], refs.index[positions]))
                chosen = np.ones(len(window), dtype=bool)
                yield self._wanted(window, chosen, self._turns(walk, positions), 0, 0)


def _wait(loads: Sequence[Future[object]]) -> None:
    for load in loads:
        load.result()
