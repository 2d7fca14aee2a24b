"""Reads raw samples in the order of a schedule, ahead of the consumer.

A :class:`SampleReader` locates references, has them planned, and cuts samples out of the answers. The
readers of a process share a :class:`ReaderGroup` with one byte budget. The consumer's calls drive everything;
the fetcher's threads run the requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

from energon_stream.errors import DatasetError, IndexMismatchError, StorageError
from energon_stream.read.budget import Budget, Lane
from energon_stream.read.fetch import RangeFetch, fetches_of, joined, stop_keeping, wait_for_first
from energon_stream.read.large import read_large_sample
from energon_stream.read.locating import Locating, ReadPosition
from energon_stream.read.plan_limits import plan_limits
from energon_stream.read.read_options import CHUNK, LOADING, ReadOptions
from energon_stream.read.read_plan import LargeSample, ReadySamples, Row
from energon_stream.read.request_planner import Planner

if TYPE_CHECKING:
    from concurrent.futures import Future

    from energon_stream.read.locator import Locator, RawSample
    from energon_stream.schedule import Cursor, Schedule
    from energon_stream.storage import Fetcher


class ReaderGroup:
    """The readers of a process that share a byte budget, and what they share.

    ``options`` are the limits of each reader. ``wait`` waits until one of some answers is there.
    """

    def __init__(
        self,
        options: ReadOptions,
        fetcher: Fetcher,
        readers: int = 1,
        *,
        clock: Callable[[], float] = monotonic,
        wait: Callable[[list[Future[Any]], float | None], None] = wait_for_first,
    ) -> None:
        size = options.fetch_bytes * readers
        self.options = options
        self.fetcher = fetcher
        self.readers = readers
        self.is_shared: bool = readers > 1
        self.budget: Budget = Budget(
            size * 15 // 16 if readers > 1 else size,  # single samples leave gaps in memory
            is_shared=self.is_shared,
            clock=clock,
        )
        self.wait = wait
        self.look_again: bool = True  # something has changed that may let a reader plan or request
        self._open: list[SampleReader] = []
        self.joins = options.is_planned and readers > 1  # whether requests serve several readers
        # The reader of the first samples of all, until another one is read; itself where none goes first.
        self._opener: SampleReader | ReaderGroup | None = None if self.joins else self
        self._epoch = -1  # number of the pass that is planned, if readers plan together

    def join(self, reader: SampleReader) -> Lane:
        self._open.append(reader)
        self._epoch, self.look_again = -1, True
        return self.budget.open_lane()

    def leave(self, reader: SampleReader, lane: Lane, held: int) -> None:
        """Remove a closed reader, whose requests hold ``held`` bytes."""
        if reader in self._open:
            self._open.remove(reader)
            self.budget.close_lane(lane, held)

    def look_ahead(self, reader: SampleReader) -> None:
        """Locate, plan and request within the limits. Wait only if ``reader`` has no sample ready."""
        self.look_again = False  # from here on, other threads may set it again
        if self._opener is not self:
            if self._opener in (None, reader):
                self._opener = reader
                reader.begin()
                if reader.ready.left:  # the first samples wait for no plan of other readers
                    return
            self._opener = self
            reader.locate(wait=False)  # it is not the first one, so that all request together
        reader.begin()
        self.budget.look()
        fill: Callable[[SampleReader], bool] = self._fill_together if self.joins else self._fill
        while True:
            self.request()
            if not fill(reader):
                break
        if self.budget.is_starting or any(each.is_held_back for each in self._open):
            self.look_again = True
            return
        # Without freed bytes no other request has room, but index entries may arrive soon.
        # (Each reader is asked, because it may begin to wait for its entries.)
        waits = self.joins and not all(each.may_plan for each in self._open)
        soon = [] if waits else [reader.may_plan_soon() for reader in self._open]
        if any(soon):
            self.look_again = True

    def wait_for(self, fetch: RangeFetch) -> None:
        """Wait for an answer. At the start, request others meanwhile, as far as answers arrive."""
        while not fetch.has_arrived:
            pause, others = self.budget.pause, list[RangeFetch]()
            if not self.joins or self.budget.has_waiting:  # else no arrival lets this request more
                others = self.budget.starting()
            if pause is None and not others:
                return
            self.wait([fetch.answer, *(other.answer for other in others)], pause)
            self.budget.look()
            self.request()
            while not self.joins and self._fill(None):
                self.request()

    def _fill(self, reader: SampleReader | None) -> bool:
        """Let each reader plan one generation if it can; return whether one did. Wait only for ``reader``."""
        planned = reader is not None and reader.fill(wait=True)
        for other in self._open:
            if other is not reader:
                with suppress(StorageError):  # the other reader raises it when it is read
                    planned |= other.fill(wait=False)
        return planned

    def _fill_together(self, reader: SampleReader) -> bool:
        """The same, but all plan at the same time, unless ``reader`` has no sample ready.

        Readers whose pass is over wait for the others: the next pass begins with all of them.
        """
        is_needed = not reader.ready.left
        if not any(each.locating.epoch == self._epoch for each in self._open):
            self._epoch = min(each.locating.epoch for each in self._open)
        epoch = reader.locating.epoch if is_needed else self._epoch
        if not is_needed and not all(each.may_plan for each in self._open if each.locating.epoch == epoch):
            return False
        peers = [each for each in self._open if each.locating.epoch == epoch]
        reader.locate(wait=is_needed)
        for other in peers:
            if other is not reader:
                with suppress(StorageError):
                    other.locate(wait=is_needed)
        if not is_needed and not all(each.is_determined for each in peers):
            return False
        # What lies between the samples of one stream is of others in the same windows, so these wait for it.
        able = [each for each in peers if each.may_plan]
        first = min((each.planner.group for each in able if each.planner.group is not None), default=None)
        planned = [each.plan() for each in able if each.planner.group in (first, None)]
        return any(planned) or (is_needed and reader.plan())

    def request(self) -> None:
        """Make the requests that the budget admits; of planned packs, one for fetches that lie together."""
        admitted = self.budget.admit()
        if self.joins:
            for fetches in joined(list(admitted), self.options):
                self.send(*fetches)
        else:
            for fetch in admitted:
                self.send(fetch)

    def send(self, fetch: RangeFetch, *others: RangeFetch) -> None:
        fetch.send(self.fetcher, *others)
        if self.is_shared and not fetch.is_local:
            fetch.answer.add_done_callback(self.wake)

    def wake(self, _done: object) -> None:
        """Look again at the next sample: a callback in the fetcher's threads. Polling would cost more."""
        self.look_again = True


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
        self.locating: Locating = Locating(schedule, cursor, locators, group.fetcher)
        self.planner: Planner = Planner(plan_limits(group.options, locators, group.readers))
        self._lane = group.join(self)
        self.ready: ReadySamples = ReadySamples()
        self._opening = 0  # ranges up to the end of the first packs, if nobody else plans with this reader
        self._fetches: dict[int, RangeFetch] = {}  # by number, until their last sample is consumed

    def next(self) -> RawSample | None:
        """Return the next sample; None at the end of the pass.

        Raises StorageError if the bytes could not be read, and IndexMismatchError if the shard is not what
        its index says. The next call continues with the next sample.
        """
        group, ready = self._group, self.ready
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
        self.locating.restart(cursor)
        self.planner = self.planner.restart()
        self._position = ReadPosition(self._position.schedule, cursor, begun=self.planner.generation > 0)
        self._group.look_again = True

    def cursor(self, behind: int = 0) -> Cursor:
        """Return the place after the last sample, or ``behind`` samples before it."""
        return self._position.settle(behind)

    def is_at_hand(self) -> bool:
        """Return True if the bytes of the next sample are there."""
        requests = self.ready.requests()
        return bool(requests) and all(self._fetches[number].has_arrived for number in requests)

    @property
    def since(self) -> int:
        """Samples consumed since the last call of :meth:`cursor`."""
        return self._position.since

    def close(self) -> None:
        """Cancel queued requests and release all buffers."""
        self._group.leave(self, self._lane, sum(fetch.drop() for fetch in self._fetches.values()))
        self._fetches.clear()
        self.ready = ReadySamples()
        self._lane.queue.clear()
        self.locating.close()

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
        group, locator = self._group, self.locating.locators[planned.leaf]
        self._lane.consumed += len(planned.ranges)
        group.look_again = True
        return read_large_sample(
            locator, planned.sample, planned.ranges, fetcher=group.fetcher, options=group.options
        )

    def begin(self) -> None:
        """Request the first samples of a pass in small requests, and locate later ones meanwhile.

        The first answers take a round trip, which leaves time to plan. This waits no longer for the index
        entries of later samples.
        """
        if self._position.begun:
            return
        self._position.begun = True
        group, locating = self._group, self.locating
        packs = self._position.whole_packs(group.options.exact_samples)
        self._opening = 0 if group.joins else self._lane.consumed + packs
        if group.joins:
            self.planner = self.planner.opening_with(packs)
        limits = self.planner.limits
        locating.begin(limits.opening_take)
        self._add_located(wait=True)
        self.planner = locating.widened(self.planner)
        earlier = self.planner.requests  # of earlier passes, whose answers are kept
        if self.planner.starts_large or not self._plan():
            return
        group.request()
        made = [fetch for number, fetch in self._fetches.items() if number >= earlier and fetch.is_requested]
        first = [fetch for fetch in made if not fetch.is_local]
        group.budget.first(first, group.fetcher.latency, group.fetcher.pace)
        most = limits.opening_take + (group.options.chunk if group.joins else limits.second_take)
        if not self._is_first_window:
            locating.take(max(0, most - locating.taken))
        while first and not first[0].has_arrived and not self._add_located(wait=False):
            group.wait([first[0].answer, *locating.awaited()], None)

    def fill(self, wait: bool) -> bool:
        """Plan one generation if the limits allow; return whether it did. ``wait`` if no sample is ready."""
        if self._is_local and not (wait or self._position.begun):
            return False  # of local files, nothing is gained before the first sample is read
        self.locate(wait and not self.ready.left)
        return self.plan()

    def locate(self, wait: bool) -> None:
        """Locate references if a generation may be planned."""
        if not self._position.begun:  # the first samples of another reader are in small requests
            self._position.begun = True
            self.planner = self.planner.without_exact()
        if self.may_plan and not self._is_first_window:
            self._locate(wait)

    @property
    def is_determined(self) -> bool:
        """True if what was located determines the next generation."""
        return self.locating.is_all or self.planner.has_enough(False)

    def plan(self) -> bool:
        """Plan one generation of what was located, if the limits allow; return whether that was done."""
        return self.may_plan and not (self.ready.left and self.planner.starts_large) and self._plan()

    @property
    def may_plan(self) -> bool:
        """True if no planned request waits, and the limits allow to plan."""
        return self._has_room and not self.is_held_back and not (self.ready.left and self.ready.ends_large)

    def may_plan_soon(self) -> bool:
        """Return whether planning may be possible before bytes are freed."""
        locating = self.locating
        if not self._has_room or not locating.pending or self.planner.has_enough(locating.is_all):
            return False
        awaited = locating.awaited()
        if awaited:
            awaited[0].add_done_callback(self._group.wake)
        return not awaited

    @property
    def _has_room(self) -> bool:
        """True if no planned request waits, and more samples may be planned."""
        planned, most = self.planner.ranges - self._lane.consumed, self._group.options.max_ahead
        if self.planner.is_served:  # nothing is gained by planning far ahead what is there
            most = min(most, 8 * CHUNK)
        if self._is_local:
            most = min(most, 2 * CHUNK)
        return not self._lane.queue and planned < most

    @property
    def is_held_back(self) -> bool:
        """True if later generations wait until the first samples are consumed, or follow them closely."""
        is_first = self.planner.generation == 2 and self._lane.consumed < self.planner.exact_end
        return is_first and not self._group.budget.follows

    def _add_located(self, wait: bool) -> bool:
        """Add located references to the planner. Return False if index entries of some have not arrived."""
        while self.locating.pending:
            located = self.locating.next(wait)
            if located is None:
                return False
            self.planner = self.planner.add(located, self.locating.ended)
            wait = False
        return True

    @property
    def _is_first_window(self) -> bool:
        """True while the first packs are consumed, if more samples are of a window that is not planned."""
        is_first = self.locating.ended is not None and self._lane.consumed < self._opening
        return is_first and self.ready.left > 0

    def _locate(self, wait: bool) -> None:
        """Locate references until the next generation is determined, and load the entries of later ones."""
        locating, options = self.locating, self._group.options
        # Few loads share the line with the first samples, and entries that are here need none.
        most = LOADING if self.planner.generation > 1 and not self._is_local else 1
        while not self.planner.has_enough(locating.is_all) and not locating.is_all:
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
        planned = self.planner.plan(self.locating.is_all)
        if planned is None:
            return False
        plan, self.planner = planned
        made = fetches_of(plan, self.locating.locators, self._group.is_shared)
        self._fetches.update(made)
        self._lane.queue.extend(made.values())
        for number, places in plan.reused.items():
            self._fetches[number].reuse(places)
        if not plan.keeps and (freed := stop_keeping(self._fetches)):
            self._group.budget.free(freed)
        self.ready.add(plan.samples)
        return True
