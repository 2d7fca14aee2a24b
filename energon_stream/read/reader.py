"""Turns references into raw samples, reading ahead of the consumer.

The schedule is a pure function, so the reader knows the future. It works in *generations*: it locates some
references by the index, and the planner merges their byte ranges into fetches. Generation 0 has the first
batch as exact ranges, generation 1 up to 16 MiB, later ones a quarter of the byte budget each. A fetch may
take in samples that lie between two wanted ones and belong to the next generation; they are kept, not fetched
twice.

Fetches are requested in the order of their first samples, as far ahead as the byte budget allows. Bytes count
from the request until the last sample of the fetch is consumed. Two generations fit in the budget, so the
fetch of a sample has always been requested when the sample is due.

The consumer's calls drive the planning; the fetcher's threads run the requests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from energon_stream.read.allowance import Allowance
from energon_stream.read.large import read_large_sample
from energon_stream.read.options import CHUNK, LOADING, ReadOptions, cut_generation
from energon_stream.read.range_fetch import PlannedSample, RangeFetch, plan_range_fetches
from energon_stream.read.window import Window

if TYPE_CHECKING:
    from energon_stream.read.locator import Locator, RawSample
    from energon_stream.schedule import Cursor, Refs, Schedule
    from energon_stream.storage import Fetcher

_FIRST_PLAN = 16 << 20
"""Bytes of the plan after the first samples. It is small, so that its answers arrive soon."""

_INDEX_BYTES = 4096
"""Usual size of a page of index entries. A late one is requested twice, because many samples wait for it."""


@dataclass(slots=True, eq=False)
class _Locating:
    """References whose index entries are being loaded."""

    refs: Refs  # the references
    before: int  # number of references before them
    loads: list[Future[object]] | None  # loads of their index entries; None if they must be requested again


def _request_offsets(
    locators: Sequence[Locator], refs: Refs, fetcher: Fetcher, deadline: int
) -> list[Future[object]]:
    return [
        fetcher.call(
            load, deadline=deadline, inline=locators[leaf].index_is_local, repeatable_bytes=_INDEX_BYTES
        )
        for leaf in np.unique(refs.leaf).tolist()
        for load in locators[leaf].claim_loads(refs.index[refs.leaf == leaf])
    ]


class SampleReader:
    """Reads the samples of one schedule in order, from a cursor on. Readers may share an allowance."""

    # Private attributes, in the order of a reference's way:
    # _next_cursor        place in the schedule of the next reference to locate
    # _exhausted          whether the schedule has no more references in this pass
    # _locating           references whose index entries are being loaded
    # _located_refs       number of references whose index entries were requested
    # _window             located ranges that are not planned yet
    # _generation         number of the next generation; _begun is set once generation 0 is planned
    # _planned_ranges     number of planned ranges; _exact_ranges of them belong to generation 0
    # _unconsumed_ranges  number of planned ranges that are not consumed yet
    # _ready              planned samples, in order; _large is a sample to be read alone after these
    # _cursor             place in the schedule, _since_cursor samples before the consumer's

    def __init__(
        self,
        schedule: Schedule,
        cursor: Cursor,
        locators: Sequence[Locator],
        fetcher: Fetcher,
        options: ReadOptions,
        allowance: Allowance | None = None,
    ) -> None:
        self._schedule = schedule
        self._locators = locators
        self._fetcher = fetcher
        self._options = options
        self._allowance = allowance or Allowance(options, fetcher)
        self._allowance.join(self)
        # Planned fetches that are not requested yet, most urgent first.
        self.queue: deque[RangeFetch] = deque()
        self.consumed = 0  # number of consumed ranges
        self._cursor = cursor
        self._since_cursor = 0
        self._next_cursor = cursor
        self._exhausted = False
        self._locating: deque[_Locating] = deque()
        self._window = Window()
        self._begun = False
        self._generation = 0
        self._located_refs = 0
        self._planned_ranges = 0
        self._unconsumed_ranges = 0
        self._ready: deque[PlannedSample] = deque()
        self._large: tuple[int, int, list[tuple[int, int, int]]] | None = None
        self._exact_ranges = 0

    def next(self) -> RawSample | None:
        """Return the next sample; None at the end of the pass.

        Raises:
            StorageError: The bytes could not be read. The next call continues with the next sample.
            IndexMismatchError: The shard is not what its index says.
        """
        allowance = self._allowance
        while True:
            if allowance.look_again or not self._ready:
                allowance.look_ahead(self)
            if self._ready:
                sample = self._next_planned()
            elif self._large is not None:
                sample = self._next_large(*self._large)
            else:
                return None
            if sample is not None:
                return sample

    def _next_planned(self) -> RawSample | None:
        planned = self._ready.popleft()
        self._since_cursor += 1
        self._leave(planned.fetch, planned.number)
        for fetch, number in planned.more:
            self._leave(fetch, number)
        return planned.cut(self._locators[planned.leaf])

    def _leave(self, fetch: RangeFetch, number: int) -> None:
        """Mark one range of a fetch as consumed."""
        self._unconsumed_ranges -= 1
        self.consumed += 1
        if not fetch.is_requested:
            self._allowance.request_now(self, fetch)
        self._allowance.consume(fetch, number)

    def _next_large(self, leaf: int, index: int, ranges: list[tuple[int, int, int]]) -> RawSample | None:
        self._since_cursor += 1
        self._large = None
        return read_large_sample(
            self._locators[leaf], index, ranges, fetcher=self._fetcher, options=self._options
        )

    @property
    def is_awaited(self) -> bool:
        """True if the next sample is planned, and its bytes have not arrived."""
        return bool(self._ready) and not self._ready[0].fetch.has_arrived

    def cursor(self) -> Cursor:
        """Return the cursor after the last consumed sample."""
        if self._since_cursor:
            self._cursor = self._schedule.advance(self._cursor, self._since_cursor)
            self._since_cursor = 0
        return self._cursor

    def close(self) -> None:
        """Cancel queued requests and release all buffers."""
        left = sum(fetch.drop() for fetch in self._window.fetches if fetch is not None)
        for planned in self._ready:
            left += planned.fetch.drop() + sum(fetch.drop() for fetch, _ in planned.more)
        self._allowance.leave(self, left)
        self._ready.clear()
        self._large = None
        self.queue.clear()
        self._window = Window()
        self._exhausted = True
        self._locating.clear()

    def fill(self, wait: bool) -> bool:
        """Plan one generation if nothing is queued and the limits allow; ``wait`` for index entries if no
        sample is ready.
        """
        if self.queue or self._unconsumed_ranges >= self._options.max_ahead or self._large is not None:
            return False
        if self._is_held_back:
            return False
        self._locate(wait and not self._ready)
        return self._plan()

    def waits(self) -> bool:
        """Return whether index entries may arrive that allow planning before bytes are freed."""
        if self._is_held_back:
            return True
        if self.queue or not self._locating:
            return False
        awaited = next((load for load in self._locating[0].loads or [] if not load.done()), None)
        if awaited is None:
            return True
        awaited.add_done_callback(self._on_located)
        return False

    def _on_located(self, _load: Future[object]) -> None:
        """Callback in the fetcher's threads. Polling before every sample would cost more than the samples."""
        self._allowance.look_again = True

    @property
    def _is_held_back(self) -> bool:
        """True if later generations wait until the first samples are consumed."""
        return self._generation == 2 and self._has_first_samples

    @property
    def _has_first_samples(self) -> bool:
        """True if some of the first samples are not consumed yet."""
        return self._planned_ranges - self._unconsumed_ranges < self._exact_ranges

    def begin(self, exact: bool) -> None:
        """Request the first samples as exact ranges, and locate later ones meanwhile.

        The first answers take a round trip, which leaves time to plan. This waits no longer for the index
        entries of later samples.

        Args:
            exact: Whether the consumer waits for the first samples; otherwise they are planned like later
                ones.
        """
        if self._begun:
            return
        self._begun = True
        if not exact:
            self._generation = 1
            return
        options, window = self._options, self._window
        self._take(options.exact_samples)
        self._append_located(wait=True)
        most = self._allowance.plan_bytes
        fitting = max(1, int(np.searchsorted(np.cumsum(window.sizes()), most, side="right")))
        must = min(window.whole(fitting), self._before_large())
        if not must:
            return
        self._plan_fetches(must, 0, 0)
        self._exact_ranges = must
        fetches = list(self.queue)
        self._allowance.request_first(fetches)
        self._take(options.second_take)
        first = fetches[0]
        while not first.has_arrived and not self._append_located(wait=False):
            awaited: list[Future[Any]] = [first.answer]
            awaited += [load for load in self._locating[0].loads or [] if not load.done()]
            wait(awaited, return_when=FIRST_COMPLETED)

    def _before_large(self) -> int:
        """Return the number of ranges before the first reference that must be read alone."""
        window = self._window
        # Samples of local files are views, whatever their size.
        remote = np.array([not locator.index_is_local for locator in self._locators], dtype=np.bool_)
        alone = np.flatnonzero(window.larger_than(self._options.largest_shared) & remote[window.leaf])
        return int(alone[0]) if len(alone) else len(window)

    def _take(self, count: int) -> None:
        """Begin to load the index entries of the next references."""
        refs, self._next_cursor = self._schedule.take(self._next_cursor, count)
        if not len(refs):
            self._exhausted = True
            return
        loads = _request_offsets(self._locators, refs, self._fetcher, self._located_refs)
        self._locating.append(_Locating(refs, self._located_refs, loads))
        self._located_refs += len(refs)

    def _append_located(self, wait: bool) -> bool:
        """Move references whose index entries have arrived to the window. Return False if some have not.

        Raises:
            StorageError: Entries could not be read. The next call requests them again.
        """
        while self._locating:
            first = self._locating[0]
            if first.loads is None:
                first.loads = _request_offsets(self._locators, first.refs, self._fetcher, first.before)
            if not wait and not all(load.done() for load in first.loads):
                return False
            loads, first.loads = first.loads, None
            for load in loads:
                load.result()
            self._window.append(self._locators, first.refs)
            self._locating.popleft()
            wait = False
        return True

    def _locate(self, wait: bool) -> None:
        """Locate enough references for a generation and the samples that it may take in."""
        window, options = self._window, self._options
        enough = 2 * self._allowance.plan_bytes
        most = LOADING if self._generation > 1 else 1  # few requests share the line with the first samples
        while True:
            self._append_located(wait=wait and not len(window))
            pending = len(self._locating)
            if pending >= most or self._exhausted:
                return
            if len(window) >= options.max_ahead or window.sizes().sum() >= enough:
                return
            self._take(min(CHUNK, options.max_ahead))
            if pending:  # the next call takes more
                return

    def _plan(self) -> bool:
        """Plan one generation. Return False if it must wait for references."""
        window, options = self._window, self._options
        if not len(window):
            return False
        shared = self._before_large()
        if not shared:
            if self._ready:
                return False
            self._large = window.pop()
            return True
        wanted = self._allowance.plan_bytes
        if self._generation == 1:
            wanted = min(wanted, _FIRST_PLAN)
        must, may = self._cut(wanted, shared)
        if must == len(window) and self._ready and (self._locating or not self._exhausted):
            return False
        self._plan_fetches(must, min(window.whole(must + may), shared) - must, options.max_gap)
        return True

    def _cut(self, wanted: int, shared: int) -> tuple[int, int]:
        """Return the number of ranges of the next generation, and of those after it that it may take in."""
        window = self._window
        keys = window.leaf << 32 | window.objects
        rest = slice(min(shared, self._options.max_ahead // 2))
        must = window.whole(cut_generation(keys[rest], window.starts[rest], window.stops[rest], wanted))
        if self._allowance.is_shared:
            return (
                must,
                0,
            )  # ranges that are taken in would be held for long, and the next plan would lack them
        # End the ranges that are taken in at a good place, too, so that few neighbours are separated.
        after = slice(must, shared)
        room = max(0, 2 * wanted - int(window.sizes()[:must].sum()))
        return must, cut_generation(keys[after], window.starts[after], window.stops[after], room)

    def _plan_fetches(self, must: int, may: int, max_gap: int) -> None:
        most = self._allowance.request_bytes
        fetches, planned = plan_range_fetches(
            self._locators, self._window, must, may, max_gap, most, self._planned_ranges
        )
        self.queue.extend(fetches)
        self._ready.extend(planned)
        self._planned_ranges += must
        self._unconsumed_ranges += must
        self._generation += 1


def fetch_samples(
    locators: Sequence[Locator], refs: Refs, fetcher: Fetcher, options: ReadOptions
) -> list[RawSample | None]:
    """Read one raw sample per reference, in order, at once and with as few requests as possible; None for an
    excluded one.
    """
    for load in _request_offsets(locators, refs, fetcher, deadline=0):
        load.result()
    window = Window()
    window.append(locators, refs)
    fetches, planned = plan_range_fetches(
        locators, window, len(window), 0, options.max_gap, options.max_request, deadline=0
    )
    for fetch in fetches:
        fetch.request(fetcher)
    return [sample.cut(locators[sample.leaf]) for sample in planned]
