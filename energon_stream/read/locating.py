"""Locates the references of one schedule, some chunks at a time, while their index entries are loaded.

:func:`iterate_plans` yields what a reader would request, without reading it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from energon_stream.arrays import distinct
from energon_stream.read.located import Located
from energon_stream.read.read_plan import Window
from energon_stream.schedule import PackedSchedule
from energon_stream.storage import Fetcher, abandon

if TYPE_CHECKING:
    from concurrent.futures import Future

    from energon_stream.read.locator import Locator
    from energon_stream.read.read_plan import ReadPlan
    from energon_stream.read.request_planner import Planner
    from energon_stream.schedule import Cursor, Refs, Schedule


def load_entries(
    locators: Sequence[Locator], refs: Refs, fetcher: Fetcher, deadline: int
) -> list[Future[object]]:
    """Load the missing index entries of some references."""
    # A page has about 4 KiB. A late one is requested twice, because many samples wait for it.
    return [
        fetcher.ask(load.store, load.read, deadline=deadline, repeatable_bytes=4096)
        for leaf in distinct(refs.leaf).tolist()
        for load in locators[leaf].claim_loads(refs.index[refs.leaf == leaf])
    ]


@dataclass(slots=True, eq=False)
class _Chunk:
    """References whose index entries are being loaded."""

    locators: Sequence[Locator]
    refs: Refs
    before: int  # number of references before them
    loads: list[Future[object]] | None  # None if they must be requested again
    ends: Window | None  # the window of planned packs that ends with them

    def awaited(self) -> list[Future[object]]:
        return [load for load in self.loads or () if not load.done()]


@dataclass(slots=True)
class ReadPosition:
    """The consumer's place in one pass of a schedule."""

    schedule: Schedule
    cursor: Cursor
    since: int = 0  # samples consumed after the cursor
    begun: bool = False  # whether the pass was planned

    def whole_packs(self, count: int) -> int:
        """Return how many references make whole packs: ``count``, or some more, if the packs are planned."""
        if isinstance(self.schedule, PackedSchedule):
            _, ends = self.schedule.rest_of_window(self.cursor)
            return next((end for end in ends if end >= count), count)
        return count

    def settle(self, behind: int = 0) -> Cursor:
        """Return the cursor after the last consumed sample, or some samples before that."""
        if self.since > behind:
            self.cursor = self.schedule.advance(self.cursor, self.since - behind)
            self.since = behind
        return self.cursor


class Locating:
    """Takes references from a schedule, from a cursor on, and returns their byte ranges in order.

    ``locators`` are by leaf number. ``fetcher`` loads index entries.
    """

    def __init__(
        self, schedule: Schedule, cursor: Cursor, locators: Sequence[Locator], fetcher: Fetcher
    ) -> None:
        self._schedule = schedule
        self._cursor = cursor
        self.locators = locators
        self._openers = [locator.opening for locator in locators]
        self._fetcher = fetcher
        self._opening = 0  # first references, which are read as Locator.opening says
        self._chunks: deque[_Chunk] = deque()
        self.taken: int = 0  # references taken from the schedule
        self.ended: Window | None = None  # window of planned packs that ends with what was returned last
        self.is_exhausted: bool = False  # whether the schedule has no more references in this pass

    def restart(self, cursor: Cursor) -> None:
        self._cursor, self.is_exhausted = cursor, False
        self._chunks.clear()

    @property
    def pending(self) -> int:
        """Number of chunks whose index entries are being loaded."""
        return len(self._chunks)

    @property
    def epoch(self) -> int:
        """Number of the pass of planned packs; 0 of other schedules."""
        return int(self._cursor.epoch) if isinstance(self._schedule, PackedSchedule) else 0

    @property
    def is_all(self) -> bool:
        """True if every reference of the pass has been located."""
        return self.is_exhausted and not self._chunks

    def begin(self, count: int) -> None:
        """Take the first references of a pass, for the stream that a process reads first.

        In its first pass, these are read whole if a leaf's parts are not declared, because it takes several
        round trips to find out whether reading parts saves bytes.
        """
        if not self.taken:
            self._opening = count
        self.take(count)

    def widened(self, planner: Planner) -> Planner:
        """Return the planner of the first samples, with the rest of their window if that is few bytes."""
        _, ends = self._window()
        if not ends or not planner.may_widen(ends[-1]):
            return planner
        if self.taken == self._opening:
            self._opening += ends[-1]
        self.take(ends[-1])
        while (located := self.next(wait=True)) is not None:
            planner = planner.add(located, self.ended)
        return planner.with_window()

    def _window(self) -> tuple[Window | None, list[int]]:
        """Return the window of planned packs that has the next reference, and the ends of its packs."""
        schedule = self._schedule
        return schedule.rest_of_window(self._cursor) if isinstance(schedule, PackedSchedule) else (None, [])

    def take(self, count: int) -> None:
        """Begin to load the index entries of the next references."""
        is_opening = self.taken < self._opening
        if is_opening:
            count = min(count, self._opening - self.taken)
        window, ends = self._window()
        count = min([count, *ends[-1:]])
        refs, self._cursor = self._schedule.take(self._cursor, count)
        self.is_exhausted = len(refs) < count
        if not len(refs):
            return
        locators = self._openers if is_opening else self.locators
        loads = load_entries(locators, refs, self._fetcher, self.taken)
        self._chunks.append(
            _Chunk(locators, refs, self.taken, loads, window if [len(refs)] == ends[-1:] else None)
        )
        self.taken += len(refs)

    def next(self, wait: bool) -> Located | None:
        """Return the ranges of the next chunk; None if its index entries have not arrived.

        Raises StorageError if entries could not be read. The next call requests them again.
        """
        if not self._chunks:
            return None
        first = self._chunks[0]
        if first.loads is None:
            first.loads = load_entries(first.locators, first.refs, self._fetcher, first.before)
        if not wait and first.awaited():
            return None
        loads, first.loads = first.loads, None
        for load in loads:
            load.result()
        located = Located.of(first.locators, first.refs)
        self.ended = self._chunks.popleft().ends
        return located

    def awaited(self) -> list[Future[object]]:
        """Return the loads that the next chunk waits for."""
        return self._chunks[0].awaited() if self._chunks else []

    def take_ahead(self, chunks: int, size: int) -> None:
        """Load the index entries of the next references, until ``chunks`` chunks are loading."""
        while len(self._chunks) < chunks and not self.is_exhausted:
            self.take(size)

    def close(self) -> None:
        """Forget all references. Loads that fail are not tried again."""
        self.is_exhausted = True
        for chunk in self._chunks:
            for load in chunk.awaited():
                abandon(load)
        self._chunks.clear()


def iterate_plans(locating: Locating, planner: Planner, *, chunk: int, chunks: int = 1) -> Iterator[ReadPlan]:
    """Yield the generations of one reader, one after another, as it would plan them.

    The index entries of ``chunk`` references are loaded together, and ``chunks`` of these at the same time
    when the first samples are planned.
    """
    while True:
        while not planner.has_enough(locating.is_all):
            if locating.is_all:
                return
            locating.take_ahead(chunks if planner.generation else 1, chunk)
            located = locating.next(wait=True)
            if located is not None:
                planner = locating.widened(planner.add(located, locating.ended))
        made = planner.plan(locating.is_all)
        if made is None:
            return
        plan, planner = made
        yield plan
