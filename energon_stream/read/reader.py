"""Sample references to raw samples, read ahead of their use.

The reader knows the future, because the schedule is a pure function. It works in *generations*: some
references are located by the index, and their byte ranges are merged to blocks by the pure planner. Generation
0 holds the first batch as exact ranges, generation 1 some more in small blocks, the later ones a quarter of the
byte budget each. A block may take in samples that lie between two wanted ones and are due in the next generation;
their bytes are kept, not fetched again.

Blocks are requested in the order in which their first sample is wanted, as far ahead as the byte budget allows:
bytes count from the request until the last sample of their block is consumed. Two generations fit in the budget, so
a sample's block has always been requested when its turn comes.

Nothing here runs in a thread of its own: the consumer's calls drive the planning, the fetcher's
threads the requests.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Any

import numpy as np

from energon_stream.read.blocks import Block, PlannedSample, plan_blocks
from energon_stream.read.large import read_large_sample
from energon_stream.read.options import ReadOptions, cut_generation
from energon_stream.read.source import RawSample, Source
from energon_stream.read.window import Window
from energon_stream.schedule import Cursor, Refs, Schedule
from energon_stream.storage import Fetcher

__all__ = ["SampleReader", "fetch_samples"]

_CHUNK = 1024
"""References located at a time; bounds the work done between two samples."""

_LOADING = 4
"""Chunks whose index entries are asked for at a time: a late answer holds up only what comes after it."""

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
    sources: Sequence[Source], refs: Refs, fetcher: Fetcher, deadline: int
) -> list[Future[object]]:
    return [
        fetcher.call(
            load, deadline=deadline, inline=sources[leaf].index_is_local, repeatable_bytes=_INDEX_BYTES
        )
        for leaf in np.unique(refs.leaf).tolist()
        for load in sources[leaf].missing_offsets(refs.index[refs.leaf == leaf])
    ]


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
        self._locating: deque[_Locating] = deque()
        self._window = Window()
        self._begun = False
        self._generation = 0
        self._taken = 0
        self._planned = 0
        self._ahead = 0
        self._ready: deque[PlannedSample] = deque()
        self._large: tuple[int, int, list[tuple[int, int, int]]] | None = None
        self._queue: deque[Block] = deque()
        self._first: list[Block] = []
        self._first_asked = 0.0
        self._under_way: deque[Block] = deque()
        self._arrived = 0
        self._slow_start: int | None = None
        self._exact = 0
        self._outstanding = 0
        self._look_again = True

    def next(self) -> RawSample | None:
        """The next sample; None at the end of the pass.

        Raises:
            StorageError: Its bytes could not be read, as when the shard is gone; the next call goes on with
                the sample after it.
            IndexMismatchError: The shard is not what its index says.
        """
        while True:
            if self._look_again or not self._ready:
                self._look_ahead()
            if self._ready:
                sample = self._next_of_block()
            elif self._large is not None:
                sample = self._next_large(*self._large)
            else:
                return None
            if sample is not None:
                return sample

    def _next_of_block(self) -> RawSample | None:
        planned = self._ready.popleft()
        self._consumed += 1
        self._leave(planned.block)
        for block, _ in planned.more:
            self._leave(block)
        return planned.cut(self._sources[planned.leaf])

    def _leave(self, block: Block) -> None:
        """One range of a block is consumed."""
        self._ahead -= 1
        if not block.is_requested:
            self._request_until(block)
        block.users -= 1
        if not block.users:
            self._outstanding -= block.size
            self._look_again = True

    def _next_large(self, leaf: int, index: int, ranges: list[tuple[int, int, int]]) -> RawSample | None:
        self._consumed += 1
        self._large = None
        return read_large_sample(
            self._sources[leaf], index, ranges, fetcher=self._fetcher, options=self._options
        )

    def cursor(self) -> Cursor:
        """Where a reader has to begin that goes on after the last sample given out."""
        if self._consumed:
            self._consumed_cursor = self._schedule.advance(self._consumed_cursor, self._consumed)
            self._consumed = 0
        return self._consumed_cursor

    def close(self) -> None:
        """Cancel what is queued and let go of all buffers."""
        for planned in self._ready:
            for block in (planned.block, *(block for block, _ in planned.more)):
                block.cancel()
        self._ready.clear()
        self._large = None
        self._queue.clear()
        self._window = Window()
        self._exhausted = True
        self._locating.clear()

    def _look_ahead(self) -> None:
        """Locate, plan and request what the limits allow; waits only when there is nothing to give out."""
        if not self._begun:
            self._begun = True
            self._begin()
        while True:
            self._request()
            if self._queue or self._ahead >= self._options.max_ahead or self._large is not None:
                break
            if self._generation == 2 and self._has_first_samples:
                break
            self._locate(wait=not self._ready)
            if not self._plan():
                break
        # Without a freed block there is room for no other; but what is being located may be there soon.
        beginning = bool(self._first) or (self._queue and self._slow_start is not None)
        self._look_again = bool(beginning) or (self._generation == 2 and self._has_first_samples)
        if not self._queue and self._locating:
            loads = self._locating[0].loads or []
            awaited = next((load for load in loads if not load.done()), None)
            if awaited is None:
                self._look_again = True
            else:
                awaited.add_done_callback(self._on_located)

    def _on_located(self, _load: Future[object]) -> None:
        """Called in the fetcher's threads. To try in vain before every sample costs more than the samples."""
        self._look_again = True

    @property
    def _has_first_samples(self) -> bool:
        """Whether some of the first samples are still to be given out: what comes later waits for that."""
        return self._planned - self._ahead < self._exact

    def _begin(self) -> None:
        """Request the first samples as they lie; meanwhile locate and request what comes after them.

        The first answers take a round trip, which is time to plan. The index entries that the later samples
        need are waited for no longer than that.
        """
        options, window = self._options, self._window
        self._take(options.first_samples)
        self._append_located(wait=True)
        fitting = max(1, int(np.searchsorted(np.cumsum(window.sizes()), options.generation, side="right")))
        must = min(window.whole(fitting), self._before_large())
        if not must:
            return
        self._plan_blocks(must, 0, 0)
        self._exact = must
        exact = list(self._queue)
        self._first_asked = time.monotonic()
        self._request()
        self._first = [block for block in exact if block.is_requested]
        self._take(min(options.max_ahead, max(_CHUNK, options.max_ahead // 4)))
        first = exact[0]
        while not first.has_arrived and not self._append_located(wait=False):
            awaited: list[Future[Any]] = [first.answer]
            awaited += [load for load in self._locating[0].loads or [] if not load.done()]
            wait(awaited, return_when=FIRST_COMPLETED)

    def _before_large(self) -> int:
        """Ranges before the first reference that has to be read alone. Local files are views: none has to be."""
        window = self._window
        remote = np.array([not source.index_is_local for source in self._sources], dtype=np.bool_)
        alone = np.flatnonzero(window.larger_than(self._options.largest_shared) & remote[window.leaf])
        return int(alone[0]) if len(alone) else len(window)

    def _request(self) -> None:
        """Request blocks, the most urgent first, within the budget; a larger one when it is alone.

        Nothing competes with the first samples for the line: what comes after them waits for their answers. Nor
        do the blocks after these all compete with each other, or the most urgent of them would come when all have
        come: no more are under way than the line holds, and as much more as has arrived (a slow start).
        """
        if self._first:
            if not all(block.has_arrived for block in self._first):
                return
            self._slow_start = self._options.slow_start_bytes(time.monotonic() - self._first_asked)
            self._first = []
        while self._queue:
            size = self._queue[0].size
            if self._outstanding and self._outstanding + size > self._options.block_bytes:
                return
            if self._slow_start is not None and not self._may_start(size):
                return
            self._outstanding += size
            block = self._queue.popleft()
            block.request(self._fetcher)
            if self._slow_start is not None:
                self._under_way.append(block)

    def _may_start(self, size: int) -> bool:
        """Whether the slow start lets some more bytes be requested; it ends where only the budget limits."""
        waiting = [block for block in self._under_way if not block.has_arrived]
        self._arrived += sum(block.size for block in self._under_way) - sum(block.size for block in waiting)
        self._under_way = deque(waiting)
        allowed = (self._slow_start or 0) + self._arrived
        if allowed >= self._options.block_bytes:
            self._slow_start = None
            self._under_way.clear()
        return not waiting or sum(block.size for block in waiting) + size <= allowed

    def _request_until(self, block: Block) -> None:
        """Request a block that is needed now, whatever the budget: one larger than a generation can be so."""
        while not block.is_requested:
            self._outstanding += self._queue[0].size
            self._queue.popleft().request(self._fetcher)

    def _take(self, count: int) -> None:
        """Begin to locate the next references."""
        refs, self._ahead_cursor = self._schedule.take(self._ahead_cursor, count)
        if not len(refs):
            self._exhausted = True
            return
        loads = _request_offsets(self._sources, refs, self._fetcher, self._taken)
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
                first.loads = _request_offsets(self._sources, first.refs, self._fetcher, first.before)
            if not wait and not all(load.done() for load in first.loads):
                return False
            loads, first.loads = first.loads, None
            for load in loads:
                load.result()
            self._window.append(self._sources, first.refs)
            self._locating.popleft()
            wait = False
        return True

    def _locate(self, wait: bool) -> None:
        """Keep enough located references at hand for a generation and what may be taken in after it."""
        window, options = self._window, self._options
        most = _LOADING if self._generation > 1 else 1  # the first samples share the line with few
        while True:
            self._append_located(wait=wait and not len(window))
            pending = len(self._locating)
            if pending >= most or self._exhausted:
                return
            if len(window) >= options.max_ahead or window.sizes().sum() >= 2 * options.generation:
                return
            self._take(min(_CHUNK, options.max_ahead))
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
        wanted = options.generation_bytes(self._generation)
        rest = slice(min(shared, options.max_ahead // 2))
        keys = window.leaf << 32 | window.objects
        must = window.whole(cut_generation(keys[rest], window.starts[rest], window.stops[rest], wanted))
        if must == len(window) and self._ready and (self._locating or not self._exhausted):
            return False
        # What is taken in ends at a good place, too: a part of what a shard has to give leaves gaps to the rest.
        after = slice(must, shared)
        room = 2 * wanted - int(window.sizes()[:must].sum())
        may = cut_generation(keys[after], window.starts[after], window.stops[after], max(0, room))
        self._plan_blocks(must, min(window.whole(must + may), shared) - must, options.max_gap)
        return True

    def _plan_blocks(self, must: int, may: int, max_gap: int) -> None:
        blocks, planned = plan_blocks(
            self._sources, self._window, must, may, max_gap, self._options.max_request, self._planned
        )
        self._queue.extend(blocks)
        self._ready.extend(planned)
        self._planned += must
        self._ahead += must
        self._generation += 1


def fetch_samples(
    sources: Sequence[Source], refs: Refs, fetcher: Fetcher, options: ReadOptions
) -> list[RawSample | None]:
    """Read some samples at once, with as few requests as their places allow.

    Returns:
        One raw sample for each reference, in the same order; None for an excluded one.
    """
    for load in _request_offsets(sources, refs, fetcher, deadline=0):
        load.result()
    window = Window()
    window.append(sources, refs)
    blocks, planned = plan_blocks(
        sources, window, len(window), 0, options.max_gap, options.max_request, deadline=0
    )
    for block in blocks:
        block.request(fetcher)
    return [sample.cut(sources[sample.leaf]) for sample in planned]
