"""What the readers of one process may hold together, and whose request is next.

The streams of a process consume in turn, so what a reader wants in ``n`` samples is wanted by all at about the same
time. Fetches are requested in that order, whichever reader planned them, as far ahead as the byte budget allows.

A reader alone keeps a fetch until its last sample is consumed: two plans fit in the budget. Of many readers each
has a small part of it, so plans must be large to hold neighbours at all. Their fetches are taken apart as they come:
each sample is copied out, and its bytes count until it is consumed, so that one plan fits and the next one moves in as
the old one is used up.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from energon_stream.errors import StorageError
from energon_stream.read.options import ReadOptions
from energon_stream.read.range_fetch import RangeFetch
from energon_stream.storage import Fetcher

__all__ = ["Allowance", "SharingReader"]

_SMALL_PLAN = 16 << 20
"""Plans of many readers are made as large as fits up to here, and larger only where half of what fits is."""
_SMALL_REQUEST = 2 << 20
"""Requests of many readers are no larger, unless plans hold many."""
_QUANTA = 64
"""Parts of the budget after which many readers look ahead again."""


class SharingReader(Protocol):
    """What an allowance asks of a reader."""

    consumed: int
    """Ranges that were given out, by which deadlines are counted."""

    @property
    def queue(self) -> deque[RangeFetch]:
        """Planned fetches that are to be requested, the most urgent first."""

    def begin(self, exact: bool) -> None:
        """Plan the first samples, if that was not done."""

    def fill(self, wait: bool) -> bool:
        """Plan one generation, where nothing is queued and the limits allow; whether that was done.

        Args:
            wait: Whether to wait for index entries where there is nothing to give out.
        """

    def waits(self) -> bool:
        """Whether there may be something to plan before bytes are freed."""


class Allowance:
    """A byte budget that some readers share; they join before the first of them is asked for a sample.

    Args:
        options: Limits of one reader: its share.
        fetcher: Runs the requests.

    Attributes:
        look_again: Whether something changed that may let a reader go on.
    """

    def __init__(self, options: ReadOptions, fetcher: Fetcher) -> None:
        self._options = options
        self._fetcher = fetcher
        self._readers: list[SharingReader] = []
        self.look_again = True
        self._outstanding = 0
        self._freed = 0
        self._first: list[RangeFetch] = []
        self._first_asked = 0.0
        self._under_way: deque[RangeFetch] = deque()
        self._arrived = 0
        self._slow_start: int | None = None

    def join(self, reader: SharingReader) -> None:
        """Share the budget with another reader."""
        self._readers.append(reader)
        self.look_again = True

    def leave(self, reader: SharingReader, left: int) -> None:
        """A reader is closed; ``left`` bytes of requested fetches are dropped with it."""
        self._readers = [other for other in self._readers if other is not reader]
        self._outstanding -= left

    @property
    def is_shared(self) -> bool:
        """Whether several readers have it."""
        return len(self._readers) > 1

    @property
    def fetch_bytes(self) -> int:
        """Bytes that fetches may hold together."""
        whole = self._options.fetch_bytes * max(1, len(self._readers))
        return whole * 15 // 16 if self.is_shared else whole  # single samples leave gaps in memory

    @property
    def plan_bytes(self) -> int:
        """Bytes of one plan of a reader.

        A reader alone may take in as much again of what comes after them.
        """
        if not self.is_shared:
            return self._options.generation
        share = self.fetch_bytes // len(self._readers)
        return max(1, share // 2, min(share * 9 // 10, _SMALL_PLAN))

    @property
    def request_bytes(self) -> int:
        """Largest fetch. Many small ones fill what the samples of others leave, as soon as they leave it."""
        most = self._options.max_request
        return most if not self.is_shared else min(most, max(_SMALL_REQUEST, self.plan_bytes // 4))

    def look_ahead(self, reader: SharingReader) -> None:
        """Locate, plan and request what the limits allow; waits only where ``reader`` has nothing to give out."""
        self._freed = 0
        self.look_again = False  # from now on, other threads may say so
        reader.begin(exact=True)
        others = [other for other in self._readers if other is not reader]
        if others:
            self._take_apart()
        while True:
            self._request()
            planned = reader.fill(wait=True)
            for other in others:
                with suppress(StorageError):  # it meets it again, and tells of it, in its own turn
                    other.begin(exact=False)
                    planned |= other.fill(wait=False)
            if not planned:
                break
        # Without freed bytes there is room for no other fetch; but what is being located may be there soon.
        waiting = [one.waits() for one in self._readers]
        starting = self._slow_start is not None and any(one.queue for one in self._readers)
        if self._first or starting or any(waiting):
            self.look_again = True

    def request_first(self, fetches: Sequence[RangeFetch]) -> None:
        """Request the first samples of all; nothing competes with them for the line."""
        self._first_asked, self._arrived = time.monotonic(), 0
        self._request()
        self._first = [fetch for fetch in fetches if fetch.is_requested]

    def request_now(self, reader: SharingReader, fetch: RangeFetch) -> None:
        """Request a fetch that is needed now, whatever the budget: one larger than a plan can be so."""
        while not fetch.is_requested:
            self._send(reader)

    def consume(self, fetch: RangeFetch, number: int) -> None:
        """One range of a fetch is consumed."""
        freed = fetch.leave(number)
        if freed:
            self._outstanding -= freed
            self._freed += freed
            if not self.is_shared or self._freed * _QUANTA >= self.fetch_bytes:
                self.look_again = True

    def _request(self) -> None:
        """Request fetches, the most urgent first, within the budget; a larger one when it is alone.

        Nothing competes with the first samples for the line: what comes after them waits for their answers. Nor
        do the fetches after these all compete with each other, or the most urgent of them would come when all have
        come: no more are under way than the line holds, and as much more as has arrived (a slow start).
        """
        if self._first:
            if not all(fetch.has_arrived for fetch in self._first):
                return
            self._slow_start = self._options.slow_start_bytes(time.monotonic() - self._first_asked)
            self._first = []
        while (reader := self._most_urgent()) is not None:
            size = reader.queue[0].size
            if self._outstanding and self._outstanding + size > self.fetch_bytes:
                return
            if self._slow_start is not None and not self._may_start(size):
                return
            if self.is_shared and sum(fetch.size for fetch in self._under_way) + size > self.fetch_bytes // 3:
                return  # the client's memory for fetches under way is not given back
            self._send(reader)

    def _most_urgent(self) -> SharingReader | None:
        waiting = [reader for reader in self._readers if reader.queue]
        if len(waiting) < 2:
            return waiting[0] if waiting else None
        return min(waiting, key=lambda reader: reader.queue[0].deadline - reader.consumed)

    def _send(self, reader: SharingReader) -> None:
        fetch = reader.queue.popleft()
        self._outstanding += fetch.size
        fetch.request(self._fetcher)
        if self.is_shared and not fetch.locator.index_is_local:  # local files are views
            fetch.may_be_taken_apart()
            fetch.answer.add_done_callback(self._on_arrived)
        elif self._slow_start is None:
            return
        self._under_way.append(fetch)

    def _on_arrived(self, _answer: object) -> None:
        """Called in the fetcher's threads."""
        self.look_again = True

    def _may_start(self, size: int) -> bool:
        """Whether the slow start lets some more bytes be requested; it ends where only the budget limits."""
        waiting = [fetch for fetch in self._under_way if not fetch.has_arrived]
        if not self.is_shared:
            self._arrived += sum(fetch.size for fetch in self._under_way) - sum(
                fetch.size for fetch in waiting
            )
            self._under_way = deque(waiting)
        allowed = (self._slow_start or 0) + self._arrived
        if allowed >= self.fetch_bytes:
            self._slow_start = None
            if not self.is_shared:
                self._under_way.clear()
        return not waiting or sum(fetch.size for fetch in waiting) + size <= allowed

    def _take_apart(self) -> None:
        """Copy the samples out of the fetches that have arrived, and drop these."""
        waiting: deque[RangeFetch] = deque()
        for fetch in self._under_way:
            if fetch.has_arrived:
                self._arrived += fetch.size
                self._outstanding -= fetch.take_apart()
            else:
                waiting.append(fetch)
        self._under_way = waiting
