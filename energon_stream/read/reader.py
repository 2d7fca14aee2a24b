"""Sample references to raw samples, read ahead of their use.

The reader knows the future, because the schedule is a pure function. It works in *generations*: some
references are located by the index, and their byte ranges are merged to fetches by the pure planner. Generation
0 holds the first batch as exact ranges, generation 1 some more in small fetches, the later ones a quarter of the
byte budget each. A fetch may take in samples that lie between two wanted ones and are due in the next generation;
their bytes are kept, not fetched again.

Fetches are requested in the order in which their first sample is wanted, as far ahead as the byte budget allows:
bytes count from the request until the last sample of their fetch is consumed. Two generations fit in the budget, so
a sample's fetch has always been requested when its turn comes.

Nothing here runs in a thread of its own: the consumer's calls drive the planning, the fetcher's
threads the requests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Any

import numpy as np

from energon_stream.read.allowance import Allowance
from energon_stream.read.large import read_large_sample
from energon_stream.read.locator import Locator, RawSample
from energon_stream.read.options import CHUNK, LOADING, ReadOptions, cut_generation
from energon_stream.read.range_fetch import PlannedSample, RangeFetch, plan_range_fetches
from energon_stream.read.window import Window
from energon_stream.schedule import Cursor, Refs, Schedule
from energon_stream.storage import Fetcher

__all__ = ["SampleReader", "fetch_samples"]

_FIRST_PLAN = 16 << 20
"""Bytes of the plan after the first samples: small, so that its answers come soon."""

_INDEX_BYTES = 4096
"""What the part of an index that samples need has, as a rule: many samples wait for one that is late."""


@dataclass(slots=True, eq=False)
class _Locating:
    """References, how many there were before, and the loads of their index entries that are under way.

    The loads are None where they have to be asked for again.
    """

    refs: Refs
    before: int
    loads: list[Future[object]] | None


def _request_offsets(
    locators: Sequence[Locator], refs: Refs, fetcher: Fetcher, deadline: int
) -> list[Future[object]]:
    return [
        fetcher.call(
            load, deadline=deadline, inline=locators[leaf].index_is_local, repeatable_bytes=_INDEX_BYTES
        )
        for leaf in np.unique(refs.leaf).tolist()
        for load in locators[leaf].missing_offsets(refs.index[refs.leaf == leaf])
    ]


class SampleReader:
    """Reads the samples of one schedule in its order.

    Args:
        schedule: Which samples, in which order.
        cursor: Where to begin.
        locators: Locators by leaf number, opened in this process.
        fetcher: Runs the requests.
        options: Limits of one reader.
        allowance: The budget that it shares with other readers; None for one of its own.
    """

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
        self.queue: deque[RangeFetch] = deque()
        self.consumed = 0
        self._consumed_cursor = cursor
        self._consumed = 0
        self._ahead_cursor = cursor
        self._exhausted = False
        self._locating: deque[_Locating] = deque()
        self._window = Window()
        self._begun = False
        self._generation = 0
        self._taken = 0
        self._planned = 0
        self._ahead = 0
        self._ready: deque[PlannedSample] = deque()
        self._large: tuple[int, int, list[tuple[int, int, int]]] | None = None
        self._exact = 0

    def next(self) -> RawSample | None:
        """The next sample; None at the end of the pass.

        Raises:
            StorageError: Its bytes could not be read, as when the shard is gone; the next call goes on with
                the sample after it.
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
        self._consumed += 1
        self._leave(planned.fetch, planned.number)
        for fetch, number in planned.more:
            self._leave(fetch, number)
        return planned.cut(self._locators[planned.leaf])

    def _leave(self, fetch: RangeFetch, number: int) -> None:
        """One range of a fetch is consumed."""
        self._ahead -= 1
        self.consumed += 1
        if not fetch.is_requested:
            self._allowance.request_now(self, fetch)
        self._allowance.consume(fetch, number)

    def _next_large(self, leaf: int, index: int, ranges: list[tuple[int, int, int]]) -> RawSample | None:
        self._consumed += 1
        self._large = None
        return read_large_sample(
            self._locators[leaf], index, ranges, fetcher=self._fetcher, options=self._options
        )

    def cursor(self) -> Cursor:
        """Where a reader has to begin that goes on after the last sample given out."""
        if self._consumed:
            self._consumed_cursor = self._schedule.advance(self._consumed_cursor, self._consumed)
            self._consumed = 0
        return self._consumed_cursor

    def close(self) -> None:
        """Cancel what is queued and let go of all buffers."""
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
        """Plan one generation, where nothing is queued and the limits allow.

        Args:
            wait: Whether to wait for index entries where there is nothing to give out.

        Returns:
            Whether that was done.
        """
        if self.queue or self._ahead >= self._options.max_ahead or self._large is not None:
            return False
        if self._is_held_back:
            return False
        self._locate(wait and not self._ready)
        return self._plan()

    def waits(self) -> bool:
        """Whether there may be something to plan before bytes are freed; what is being located may be there soon."""
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
        """Called in the fetcher's threads. To try in vain before every sample costs more than the samples."""
        self._allowance.look_again = True

    @property
    def _is_held_back(self) -> bool:
        """Whether what comes later waits for the first samples to be given out."""
        return self._generation == 2 and self._has_first_samples

    @property
    def _has_first_samples(self) -> bool:
        """Whether some of the first samples are still to be given out: what comes later waits for that."""
        return self._planned - self._ahead < self._exact

    def begin(self, exact: bool) -> None:
        """Request the first samples as they lie; meanwhile locate what comes after them.

        The first answers take a round trip, which is time to plan. The index entries that the later samples
        need are waited for no longer than that.

        Args:
            exact: Whether somebody waits for the first samples; else they are planned like later ones.
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
        self._exact = must
        fetches = list(self.queue)
        self._allowance.request_first(fetches)
        self._take(options.second_take)
        first = fetches[0]
        while not first.has_arrived and not self._append_located(wait=False):
            awaited: list[Future[Any]] = [first.answer]
            awaited += [load for load in self._locating[0].loads or [] if not load.done()]
            wait(awaited, return_when=FIRST_COMPLETED)

    def _before_large(self) -> int:
        """Ranges before the first reference that has to be read alone. Local files are views: none has to be."""
        window = self._window
        remote = np.array([not locator.index_is_local for locator in self._locators], dtype=np.bool_)
        alone = np.flatnonzero(window.larger_than(self._options.largest_shared) & remote[window.leaf])
        return int(alone[0]) if len(alone) else len(window)

    def _take(self, count: int) -> None:
        """Begin to locate the next references."""
        refs, self._ahead_cursor = self._schedule.take(self._ahead_cursor, count)
        if not len(refs):
            self._exhausted = True
            return
        loads = _request_offsets(self._locators, refs, self._fetcher, self._taken)
        self._locating.append(_Locating(refs, self._taken, loads))
        self._taken += len(refs)

    def _append_located(self, wait: bool) -> bool:
        """Move references whose index entries are there to the window; False where some are still awaited.

        Args:
            wait: Whether to wait for the next chunk of them.

        Raises:
            StorageError: Entries could not be read; the next call asks for them again.
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
        """Keep enough located references at hand for a generation and what may be taken in after it."""
        window, options = self._window, self._options
        enough = 2 * self._allowance.plan_bytes
        most = LOADING if self._generation > 1 else 1  # the first samples share the line with few
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
        """Plan one generation; False when it has to wait for references."""
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
        """Ranges of the next generation, and how many after these may be taken in; of the first ``shared``."""
        window = self._window
        keys = window.leaf << 32 | window.objects
        rest = slice(min(shared, self._options.max_ahead // 2))
        must = window.whole(cut_generation(keys[rest], window.starts[rest], window.stops[rest], wanted))
        if self._allowance.is_shared:  # what is taken in would be held long, and be missing in the next plan
            return must, 0
        # What is taken in ends at a good place, too: a part of what a shard has to give leaves gaps to the rest.
        after = slice(must, shared)
        room = max(0, 2 * wanted - int(window.sizes()[:must].sum()))
        return must, cut_generation(keys[after], window.starts[after], window.stops[after], room)

    def _plan_fetches(self, must: int, may: int, max_gap: int) -> None:
        most = self._allowance.request_bytes
        fetches, planned = plan_range_fetches(
            self._locators, self._window, must, may, max_gap, most, self._planned
        )
        self.queue.extend(fetches)
        self._ready.extend(planned)
        self._planned += must
        self._ahead += must
        self._generation += 1


def fetch_samples(
    locators: Sequence[Locator], refs: Refs, fetcher: Fetcher, options: ReadOptions
) -> list[RawSample | None]:
    """Read some samples at once, with as few requests as their places allow.

    Returns:
        One raw sample for each reference, in the same order; None for an excluded one.
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
