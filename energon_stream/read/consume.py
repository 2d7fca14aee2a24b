"""Reads raw samples in the order of a schedule, ahead of the consumer.

A :class:`SampleReader` locates references, has them planned, and cuts samples out of the answers. The
readers of a process share a :class:`ReaderGroup` with one byte budget. The consumer's calls drive everything;
the fetcher's threads run the requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING

from energon_stream.errors import DatasetError, IndexMismatchError
from energon_stream.read.fetch import RangeFetch, fetches_of, stop_keeping
from energon_stream.read.large import read_large_sample
from energon_stream.read.locating import Locating, ReadPosition
from energon_stream.read.plan_limits import plan_limits
from energon_stream.read.read_options import CHUNK, LOADING
from energon_stream.read.read_plan import LargeSample, ReadySamples, Row, Window
from energon_stream.read.request_planner import Planner

if TYPE_CHECKING:
    from energon_stream.read.locator import Locator, RawSample
    from energon_stream.read.reader_group import ReaderGroup
    from energon_stream.schedule import Cursor, Schedule


class SampleReader:
    """Reads the samples of one schedule in order, from a cursor on. ``locators`` are by leaf number."""

    def __init__(
        self, schedule: Schedule, cursor: Cursor, locators: Sequence[Locator], group: ReaderGroup
    ) -> None:
        self._group = group
        # Leaves whose samples may have several ranges.
        self._wide = {leaf: locator for leaf, locator in enumerate(locators) if locator.width != 1}
        self._is_local = all(locator.index_is_local for locator in locators)
        self._position = ReadPosition(schedule, cursor)
        # In the order of a reference's way: index entries, located ranges, planned requests.
        self._locating = Locating(schedule, cursor, locators, group.fetcher)
        self._planner = Planner(plan_limits(group.options, locators, group.readers))
        self._lane = group.join(self)
        self._ready = ReadySamples()
        self._fetches: dict[int, RangeFetch] = {}  # by number, until their last sample is consumed

    def next(self) -> RawSample | None:
        """Return the next sample; None at the end of the pass.

        Raises StorageError if the bytes could not be read, and IndexMismatchError if the shard is not what
        its index says. The next call continues with the next sample.
        """
        group, ready = self._group, self._ready
        while True:
            if group.look_again or not ready.left:
                group.look_ahead(self)
                if not ready.left:
                    return None
            planned = ready.pop()
            self._position.since += 1
            if isinstance(planned, LargeSample):
                sample = self._read_alone(planned)
            elif planned[0] in self._wide:
                sample = self._cut_wide(planned)
            else:
                _, number, request, place, _ = planned
                fetch = self._fetches[request]
                cut = fetch.cutting
                if (
                    cut is None
                    or fetch.left is not None
                    or (fetch.uses == 1 and not fetch.keeps)
                    or monotonic() > fetch.due
                ):
                    sample = self._leave(request, place).cut(number, place)
                else:  # most samples: the answer is there, and stays; without a call that can be spared
                    self._lane.consumed += 1
                    fetch.uses -= 1
                    try:
                        sample = cut(number, place)
                    except DatasetError:
                        sample = fetch.cut(number, place)
            if sample is not None:
                return sample

    def restart(self, cursor: Cursor) -> None:
        """Begin another pass at a cursor, after the end of this one. Answers that are kept serve it, too."""
        self._locating.restart(cursor)
        self._planner = self._planner.restart()
        self._position = ReadPosition(self._position.schedule, cursor, begun=self._planner.generation > 0)
        self._group.look_again = True

    def cursor(self, behind: int = 0) -> Cursor:
        """Return the place after the last sample, or ``behind`` samples before it."""
        return self._position.settle(behind)

    def is_at_hand(self) -> bool:
        """Return True if the bytes of the next sample are there."""
        if not self._ready.left:
            return False
        planned = self._ready.peek()
        if isinstance(planned, LargeSample):
            return False
        requests = (planned[2], *(number for number, _ in planned[4]))
        return all(self._fetches[number].has_arrived for number in requests)

    @property
    def since(self) -> int:
        """Samples consumed since the last call of :meth:`cursor`."""
        return self._position.since

    def close(self) -> None:
        """Cancel queued requests and release all buffers."""
        self._group.leave(self, self._lane, sum(fetch.drop() for fetch in self._fetches.values()))
        self._fetches.clear()
        self._ready = ReadySamples()
        self._lane.queue.clear()
        self._locating.close()

    # Consuming

    def _cut_wide(self, planned: Row) -> RawSample | None:
        leaf, sample, request, place, more = planned
        ranges = [(self._leave(number, at), at) for number, at in ((request, place), *more)]
        while True:
            found = [(each.request.object, each.cut(sample, at)) for each, at in ranges]
            try:
                return self._wide[leaf].merge(sample, found)
            except IndexMismatchError as error:
                asked = [each.ask_again(error) for each, _ in ranges]
                if not any(asked):
                    raise

    def _leave(self, request: int, place: int) -> RangeFetch:
        """Mark one range of a request as consumed."""
        fetch, lane = self._fetches[request], self._lane
        lane.consumed += 1
        if monotonic() > fetch.due:
            fetch.look()
        while not fetch.is_requested:  # the budget has no room for a request that is needed now
            self._group.send(self._group.budget.pop(lane))
        freed = fetch.leave(place)
        if freed:
            if fetch.is_done:
                del self._fetches[request]
            if self._group.budget.free(freed):
                self._group.look_again = True
        if not fetch.is_split:
            self._group.wait_for(fetch)
        return fetch

    def _read_alone(self, planned: LargeSample) -> RawSample | None:
        group, locator = self._group, self._locating.locators[planned.leaf]
        self._lane.consumed += len(planned.ranges)
        group.look_again = True
        return read_large_sample(
            locator, planned.sample, planned.ranges, fetcher=group.fetcher, options=group.options
        )

    # Looking ahead

    def begin(self) -> None:
        """Request the first samples of a pass in small requests, and locate later ones meanwhile.

        The first answers take a round trip, which leaves time to plan. This waits no longer for the index
        entries of later samples.
        """
        if self._position.begun:
            return
        self._position.begun = True
        group, locating = self._group, self._locating
        if group.joins:
            packs = self._position.whole_packs(group.options.exact_samples)
            self._planner = self._planner.opening_with(packs)
        limits = self._planner.limits
        locating.begin(limits.opening_take)
        self._add_located(wait=True)
        self._planner = locating.widened(self._planner)
        earlier = self._planner.requests  # of earlier passes, whose answers are kept
        if self._planner.starts_large or not self._plan():
            return
        group.request()
        made = [fetch for number, fetch in self._fetches.items() if number >= earlier and fetch.is_requested]
        first = [fetch for fetch in made if not fetch.is_local]
        group.budget.first(first, group.fetcher.latency, group.fetcher.pace)
        locating.take(group.options.chunk if group.joins else limits.second_take)
        while first and not first[0].has_arrived and not self._add_located(wait=False):
            group.wait([first[0].answer, *locating.awaited()], None)

    def fill(self, wait: bool) -> bool:
        """Plan one generation if the limits allow; return whether it did. ``wait`` if no sample is ready."""
        if self._is_local and not (wait or self._position.begun):
            return False  # of local files, nothing is gained before the first sample is read
        self.locate(wait and not self._ready.left)
        return self.plan()

    def locate(self, wait: bool) -> None:
        """Locate references if a generation may be planned."""
        if not self._position.begun:  # the first samples of another reader are in small requests
            self._position.begun = True
            self._planner = self._planner.without_exact()
        if self.may_plan:
            self._locate(wait)

    @property
    def is_determined(self) -> bool:
        """True if what was located determines the next generation."""
        return self._locating.is_all or self._planner.has_enough(False)

    def plan(self) -> bool:
        """Plan one generation of what was located, if the limits allow; return whether that was done."""
        return self.may_plan and not (self._ready.left and self._planner.starts_large) and self._plan()

    @property
    def epoch(self) -> int:
        """Number of the pass that is planned."""
        return self._locating.epoch

    @property
    def group(self) -> Window | None:
        """The windows of planned packs that are planned next, by pass and number; None if none is known."""
        return self._planner.group

    @property
    def has_ready(self) -> bool:
        return self._ready.left > 0

    @property
    def may_plan(self) -> bool:
        """True if no planned request waits, and the limits allow to plan."""
        return self._has_room and not self.is_held_back and not (self._ready.left and self._ready.ends_large)

    def may_plan_soon(self) -> bool:
        """Return whether planning may be possible before bytes are freed."""
        locating = self._locating
        if not self._has_room or not locating.pending or self._planner.has_enough(locating.is_all):
            return False
        awaited = locating.awaited()
        if awaited:
            awaited[0].add_done_callback(self._group.wake)
        return not awaited

    @property
    def _has_room(self) -> bool:
        """True if no planned request waits, and more samples may be planned."""
        planned, most = self._planner.ranges - self._lane.consumed, self._group.options.max_ahead
        if self._planner.is_served:  # nothing is gained by planning far ahead what is there
            most = min(most, 8 * CHUNK)
        if self._is_local:
            most = min(most, 2 * CHUNK)
        return not self._lane.queue and planned < most

    @property
    def is_held_back(self) -> bool:
        """True if later generations wait until the first samples are consumed, or follow them closely."""
        is_first = self._planner.generation == 2 and self._lane.consumed < self._planner.exact_end
        return is_first and not self._group.budget.follows

    def _add_located(self, wait: bool) -> bool:
        """Add located references to the planner. Return False if index entries of some have not arrived."""
        while self._locating.pending:
            located = self._locating.next(wait)
            if located is None:
                return False
            self._planner = self._planner.add(located, self._locating.ended)
            wait = False
        return True

    def _locate(self, wait: bool) -> None:
        """Locate references until the next generation is determined, and load the entries of later ones."""
        locating, options = self._locating, self._group.options
        # Few loads share the line with the first samples, and entries that are here need none.
        most = LOADING if self._planner.generation > 1 and not self._is_local else 1
        while not self._planner.has_enough(locating.is_all) and not locating.is_all:
            self._add_located(wait)
            pending = locating.pending
            if pending < most and not locating.is_exhausted:
                locating.take(options.take_of(self._group.readers))
            elif not wait:
                return
            if pending and not wait:  # the next call takes more
                return
        locating.take_ahead(most, options.take_of(self._group.readers))

    def _plan(self) -> bool:
        """Plan the next generation. Return False if it must wait for references."""
        planned = self._planner.plan(self._locating.is_all)
        if planned is None:
            return False
        plan, self._planner = planned
        made = fetches_of(plan, self._locating.locators, self._group.is_shared)
        self._fetches.update(made)
        self._lane.queue.extend(made.values())
        for number, places in plan.reused.items():
            self._fetches[number].reuse(places)
        if not plan.keeps and (freed := stop_keeping(self._fetches)):
            self._group.budget.free(freed)
        self._ready.add(plan.samples)
        return True
