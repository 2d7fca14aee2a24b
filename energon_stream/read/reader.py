"""Sample references to raw samples, read ahead of their use.

The reader knows the future, because the schedule is a pure function. It works in *generations*: some
references are located by the index, their byte ranges are merged to requests by the pure planner, and
the requests are queued in the order in which their first sample is needed. Generation 0 holds the first
batch as exact ranges; when its first answer is there, larger ones follow, as long as requested and
unconsumed bytes stay within the budget. A request may take in samples that lie between two wanted ones
and are due soon after; their bytes are kept, not fetched again.

A reference is one byte range, or, where datasets are joined, one for each that has the sample; the ranges
of a reference are planned and fetched like any others, and consumed together.

Nothing here runs in a thread of its own: the consumer's calls drive the planning, the fetcher's
threads the requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from energon_stream.errors import IndexMismatchError, ObjectNotFoundError, RangeError
from energon_stream.read.options import ReadOptions, cut_generation
from energon_stream.read.source import Piece, RawSample, Source
from energon_stream.rng import Int64Array
from energon_stream.schedule import Cursor, Refs, Schedule
from energon_stream.storage import Body, ByteRange, Fetcher, plan_fetches

__all__ = ["SampleReader", "fetch_samples"]

_CHUNK = 1024
"""References located at a time; bounds the work done between two samples."""


@dataclass(slots=True)
class _Fetch:
    """One request, and how many byte ranges still need its bytes."""

    future: Future[Body]
    object: int
    start: int
    size: int
    users: int
    checked: bool = False


def _no_ints() -> Int64Array:
    return np.zeros(0, dtype=np.int64)


@dataclass(slots=True)
class _Window:
    """Located byte ranges: consumed ``[:head]``, requested ``[head:planned]``, later ones.

    ``widths[i]`` is the number of ranges of the reference that begins with range ``i``, or 0 where none
    begins. ``fetches[i]`` is the request that serves range ``i``; one that lies between two requested
    neighbours has one before its turn comes.
    """

    leaf: Int64Array = field(default_factory=_no_ints)
    index: Int64Array = field(default_factory=_no_ints)
    objects: Int64Array = field(default_factory=_no_ints)
    starts: Int64Array = field(default_factory=_no_ints)
    stops: Int64Array = field(default_factory=_no_ints)
    widths: list[int] = field(default_factory=list)
    fetches: list[_Fetch | None] = field(default_factory=list)
    head: int = 0
    planned: int = 0

    def __len__(self) -> int:
        return len(self.fetches)

    def append(self, sources: Sequence[Source], refs: Refs) -> None:
        """Locate references, add their ranges at the end, and forget the consumed ones."""
        leaves = np.unique(refs.leaf).tolist()
        most = max((sources[leaf].width for leaf in leaves), default=1)
        objects = np.full((len(refs), most), -1, dtype=np.int64)
        starts, stops = (np.empty((len(refs), most), dtype=np.int64) for _ in range(2))
        for leaf in leaves:
            mine, its = refs.leaf == leaf, slice(0, sources[leaf].width)
            objects[mine, its], starts[mine, its], stops[mine, its] = sources[leaf].locate(refs.index[mine])
        there = objects >= 0
        counts = there.sum(axis=1)
        widths = np.zeros_like(objects)
        widths[np.arange(len(refs)), there.argmax(axis=1)] = counts
        old = slice(self.head, None)
        self.leaf = np.concatenate([self.leaf[old], np.repeat(refs.leaf, counts)])
        self.index = np.concatenate([self.index[old], np.repeat(refs.index, counts)])
        self.objects = np.concatenate([self.objects[old], objects[there]])
        self.starts = np.concatenate([self.starts[old], starts[there]])
        self.stops = np.concatenate([self.stops[old], stops[there]])
        self.widths = [*self.widths[old], *widths[there].tolist()]
        self.fetches = [*self.fetches[old], *[None] * int(counts.sum())]
        self.planned -= self.head
        self.head = 0

    def whole(self, must: int) -> int:
        """``must`` ranges after the requested ones, and those that complete the last one's reference."""
        while self.planned + must < len(self) and not self.widths[self.planned + must]:
            must += 1
        return must

    def sizes(self) -> Int64Array:
        """Bytes of each range after the requested ones."""
        return self.stops[self.planned :] - self.starts[self.planned :]


def _request_offsets(sources: Sequence[Source], refs: Refs, fetcher: Fetcher) -> list[Future[object]]:
    return [
        fetcher.call(load, inline=sources[leaf].index_is_local)
        for leaf in np.unique(refs.leaf).tolist()
        for load in sources[leaf].missing_offsets(refs.index[refs.leaf == leaf])
    ]


def _request(
    sources: Sequence[Source],
    window: _Window,
    must: int,
    may: int,
    fetcher: Fetcher,
    max_gap: int,
    max_bytes: int,
    deadline: int,
) -> int:
    """Request the next ``must`` ranges, and those of the ``may`` after them that lie in between.

    ``deadline`` is the first range's rank in the fetcher's queue. Returns the bytes requested.
    """
    begin = window.planned
    rows = begin + np.flatnonzero([fetch is None for fetch in window.fetches[begin : begin + must + may]])
    window.planned += must
    plan = plan_fetches(
        window.leaf[rows] << 32 | window.objects[rows],
        window.starts[rows],
        window.stops[rows],
        rows < begin + must,
        max_gap=max_gap,
        max_bytes=max_bytes,
    )
    served: npt.NDArray[np.bool_] = plan.fetch_of >= 0
    users = np.bincount(plan.fetch_of[served], minlength=len(plan.starts))
    first_use = np.full(len(plan.starts), len(window), dtype=np.int64)
    np.minimum.at(first_use, plan.fetch_of[served], rows[served])
    fetches: dict[int, _Fetch] = {}
    for number in np.argsort(first_use, kind="stable").tolist():
        source = sources[int(plan.objects[number]) >> 32]
        place = int(plan.objects[number]) & 0xFFFFFFFF
        start, stop = int(plan.starts[number]), int(plan.stops[number])
        store, path = source.place(place)
        future = fetcher.submit(
            store,
            path,
            ByteRange(start, stop),
            etag=source.etag(place),
            deadline=deadline + int(first_use[number]) - begin,
        )
        fetches[number] = _Fetch(future, place, start, stop - start, int(users[number]))
    for row, number in zip(rows[served].tolist(), plan.fetch_of[served].tolist(), strict=True):
        window.fetches[row] = fetches[number]
    return int((plan.stops - plan.starts).sum())


def _take(window: _Window, row: int) -> list[_Fetch]:
    """The requests that serve the reference that begins with range ``row``; the window forgets them."""
    taken = []
    for at in range(row, row + window.widths[row]):
        fetch = window.fetches[at]
        if fetch is None:
            raise RuntimeError("a reference was consumed before it was requested; please report this")
        window.fetches[at] = None
        taken.append(fetch)
    return taken


def _body(fetch: _Fetch) -> Body:
    """Wait for an answer. The index asked for it, so the index is wrong where the bytes do not exist."""
    try:
        return fetch.future.result()
    except RangeError as error:
        raise IndexMismatchError(error.what, where=error.where, hint=error.hint) from error
    except ObjectNotFoundError as error:
        raise ObjectNotFoundError(
            "the dataset lists a shard that is not there",
            where=error.where,
            hint="Put it back, or run `energon-stream prepare` again.",
        ) from error


def _cut(sources: Sequence[Source], window: _Window, row: int, fetches: Sequence[_Fetch]) -> RawSample | None:
    """Wait for the bytes of one reference and cut them into parts."""
    source = sources[window.leaf.item(row)]
    pieces: list[Piece] = []
    for at, fetch in enumerate(fetches, row):
        body = _body(fetch)
        if not fetch.checked:
            source.observe(fetch.object, body.etag)
            fetch.checked = True
        start, stop = window.starts.item(at), window.stops.item(at)
        pieces.append((fetch.object, body.data[start - fetch.start : stop - fetch.start], start))
    return source.cut(window.index.item(row), pieces)


class SampleReader:
    """Reads the samples of one schedule in its order.

    Args:
        schedule: Which samples, in which order.
        cursor: Where to begin.
        sources: Source datasets by leaf number, opened in this process.
        fetcher: Runs the requests.
        options: Limits.
    """

    def __init__(
        self,
        schedule: Schedule,
        cursor: Cursor,
        sources: Sequence[Source],
        fetcher: Fetcher,
        options: ReadOptions,
    ) -> None:
        self._schedule = schedule
        self._sources = sources
        self._fetcher = fetcher
        self._options = options
        self._consumed_cursor = cursor
        self._consumed = 0
        self._ahead_cursor = cursor
        self._exhausted = False
        self._locating: tuple[Refs, list[Future[object]]] | None = None
        self._window = _Window()
        self._outstanding = 0
        self._generation = 0
        self._requested = 0
        self._first: list[_Fetch] = []

    def next(self) -> RawSample | None:
        """The next sample; None at the end of the pass.

        Raises:
            StorageError: Its bytes could not be read, as when the shard is gone; the next call goes on with
                the sample after it.
            IndexMismatchError: The shard is not what its index says.
        """
        window = self._window
        while True:
            self._look_ahead()
            row = window.head
            if row == window.planned:
                return None
            fetches = _take(window, row)
            window.head += len(fetches)
            self._consumed += 1
            for fetch in fetches:
                fetch.users -= 1
                if not fetch.users:
                    self._outstanding -= fetch.size
            sample = _cut(self._sources, window, row, fetches)
            if sample is not None:
                return sample

    def cursor(self) -> Cursor:
        """Where a reader has to begin that goes on after the last sample given out."""
        if self._consumed:
            self._consumed_cursor = self._schedule.advance(self._consumed_cursor, self._consumed)
            self._consumed = 0
        return self._consumed_cursor

    def close(self) -> None:
        """Cancel what is queued and let go of all buffers."""
        for fetch in self._window.fetches:
            if fetch is not None:
                fetch.future.cancel()
        self._window = _Window()
        self._exhausted = True
        self._locating = None

    def _look_ahead(self) -> None:
        """Locate and request more where the budget allows; waits only when there is nothing to give out."""
        window = self._window
        while True:
            idle = window.head == window.planned
            if not idle:
                if self._outstanding > self._options.byte_budget // 2:
                    return
                if window.planned - window.head > self._options.max_ahead // 2:
                    return
                if self._generation == 1 and not all(fetch.future.done() for fetch in self._first):
                    return
            self._locate(wait=idle)
            if len(window) == window.planned or not self._plan():
                return

    def _locate(self, wait: bool) -> None:
        """Keep enough located references at hand for a generation and what may be taken in after it."""
        window, options = self._window, self._options
        while not self._exhausted:
            if self._locating is None:
                sizes = window.sizes()
                if len(sizes) >= options.max_ahead or sizes.sum() >= 2 * options.generation:
                    return
                count = _CHUNK if self._generation or len(window) else options.first_samples
                refs, self._ahead_cursor = self._schedule.take(self._ahead_cursor, count)
                if not len(refs):
                    self._exhausted = True
                    return
                self._locating = refs, _request_offsets(self._sources, refs, self._fetcher)
            refs, futures = self._locating
            if not wait and not all(future.done() for future in futures):
                return
            self._locating = None
            for future in futures:
                future.result()
            window.append(self._sources, refs)
            if not self._generation:
                return
            wait = False

    def _plan(self) -> bool:
        """Request one generation; False when it has to wait for more references or for a free budget."""
        window, options = self._window, self._options
        sizes = window.sizes()
        if self._generation == 0:
            must, may, gap = len(sizes), 0, 0
        else:
            wanted = options.generation_bytes(self._generation)
            rest = slice(window.planned, window.planned + options.max_ahead // 2)
            must = cut_generation(
                window.leaf[rest] << 32 | window.objects[rest],
                window.starts[rest],
                window.stops[rest],
                wanted,
            )
            must = window.whole(must)
            may = max(0, int(np.searchsorted(np.cumsum(sizes), 2 * wanted, side="right")) - must)
            gap = options.max_gap
            if window.head < window.planned:
                if must == len(sizes) and not self._exhausted:
                    return False
                if sizes[0] > options.byte_budget // 2:
                    return False
        number = self._generation
        before = window.planned
        self._outstanding += _request(
            self._sources, window, must, may, self._fetcher, gap, options.max_request, self._requested
        )
        self._requested += must
        self._generation += 1
        if number == 0:
            self._first = [fetch for fetch in window.fetches[before:] if fetch is not None]
        return number > 0


def fetch_samples(
    sources: Sequence[Source], refs: Refs, fetcher: Fetcher, options: ReadOptions
) -> list[RawSample | None]:
    """Read some samples at once, with as few requests as their places allow.

    Returns:
        One raw sample for each reference, in the same order; None for an excluded one.
    """
    for future in _request_offsets(sources, refs, fetcher):
        future.result()
    window = _Window()
    window.append(sources, refs)
    _request(sources, window, len(window), 0, fetcher, options.max_gap, options.max_request, 0)
    return [
        _cut(sources, window, row, _take(window, row)) for row, width in enumerate(window.widths) if width
    ]
