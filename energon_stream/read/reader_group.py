"""What the readers of a process share: one byte budget, and the turns in which they plan and request.

The consumer's calls drive everything; the fetcher's threads run the requests.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

from energon_stream.errors import StorageError
from energon_stream.read.budget import Budget, Lane
from energon_stream.read.fetch import RangeFetch, joined, wait_for_first
from energon_stream.read.read_options import ReadOptions

if TYPE_CHECKING:
    from concurrent.futures import Future

    from energon_stream.read.consume import SampleReader
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

    @property
    def is_shared(self) -> bool:
        return self.readers > 1

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
                if reader.has_ready:  # the first samples wait for no plan of other readers
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
        is_needed = not reader.has_ready
        if not any(each.epoch == self._epoch for each in self._open):
            self._epoch = min(each.epoch for each in self._open)
        epoch = reader.epoch if is_needed else self._epoch
        if not is_needed and not all(each.may_plan for each in self._open if each.epoch == epoch):
            return False
        peers = [each for each in self._open if each.epoch == epoch]
        reader.locate(wait=is_needed)
        for other in peers:
            if other is not reader:
                with suppress(StorageError):
                    other.locate(wait=is_needed)
        if not is_needed and not all(each.is_determined for each in peers):
            return False
        # What lies between the samples of one stream is of others in the same windows, so these wait for it.
        able = [each for each in peers if each.may_plan]
        first = min((each.group for each in able if each.group is not None), default=None)
        planned = [each.plan() for each in able if each.group in (first, None)]
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
