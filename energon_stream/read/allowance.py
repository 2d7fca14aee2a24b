"""The byte budget that the readers of a process share; decides which fetch is requested next.

The streams of a process rotate, so all readers use their *n*-th next sample at about the same time. Fetches
are requested in that order, whichever reader planned them, as far ahead as the byte budget allows.

A single reader keeps a fetch until its last sample is consumed; two plans fit in the budget. Of many readers,
each has a small share of the budget, and only a large plan has neighbours to merge. So their fetches are
taken apart when they arrive: each sample is copied out and counts until it is consumed, and the next plan
moves in as the old one is used up.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from energon_stream.errors import StorageError

if TYPE_CHECKING:
    from energon_stream.read.options import ReadOptions
    from energon_stream.read.range_fetch import RangeFetch
    from energon_stream.storage import Fetcher

_SMALL_PLAN = 16 << 20
"""Plans of many readers take 9/10 of their share up to this size; above it, half of the share."""
_SMALL_REQUEST = 2 << 20
"""Largest request of many readers, unless their plans are large."""
_QUANTA = 64
"""Many readers look ahead again whenever this fraction of the budget, 1/64, is freed."""


class SharingReader(Protocol):
    """A reader, as an allowance uses it."""

    consumed: int
    """Number of consumed ranges, from which deadlines count."""

    @property
    def queue(self) -> deque[RangeFetch]:
        """Planned fetches that are not requested yet, most urgent first."""

    def begin(self, exact: bool) -> None:
        """Plan the first samples, once."""

    def fill(self, wait: bool) -> bool:
        """Plan one generation if nothing is queued and the limits allow; ``wait`` for index entries if no
        sample is ready. Return whether it was planned.
        """

    def waits(self) -> bool:
        """Return whether planning may be possible before bytes are freed."""


class Allowance:
    """A byte budget that readers share. All join before the first sample is read."""

    def __init__(self, options: ReadOptions, fetcher: Fetcher) -> None:
        self._options = options
        self._fetcher = fetcher
        self._readers: list[SharingReader] = []
        self.look_again = True  # whether something has changed that may let a reader plan or request
        self.outstanding_bytes = 0  # bytes of fetches that are requested and not yet consumed
        self._freed = 0
        self._first: list[RangeFetch] = []
        self._first_asked = 0.0
        self._under_way: deque[RangeFetch] = deque()
        self._arrived = 0
        self._slow_start: int | None = None

    def join(self, reader: SharingReader) -> None:
        """Add a reader."""
        self._readers.append(reader)
        self.look_again = True

    def leave(self, reader: SharingReader, left: int) -> None:
        """Remove a closed reader, whose requested fetches held ``left`` bytes."""
        self._readers = [other for other in self._readers if other is not reader]
        self.outstanding_bytes -= left

    @property
    def is_shared(self) -> bool:
        """True if several readers share the budget."""
        return len(self._readers) > 1

    @property
    def fetch_bytes(self) -> int:
        """Bytes that all fetches may hold together."""
        whole = self._options.fetch_bytes * max(1, len(self._readers))
        return whole * 15 // 16 if self.is_shared else whole  # single samples leave gaps in memory

    @property
    def plan_bytes(self) -> int:
        """Bytes of one plan. A single reader may take in as much again of later samples."""
        if not self.is_shared:
            return self._options.generation
        share = self.fetch_bytes // len(self._readers)
        return max(1, share // 2, min(share * 9 // 10, _SMALL_PLAN))

    @property
    def request_bytes(self) -> int:
        """Largest fetch. Of many readers they are small, to fill freed bytes at once."""
        most = self._options.max_request
        return most if not self.is_shared else min(most, max(_SMALL_REQUEST, self.plan_bytes // 4))

    def look_ahead(self, reader: SharingReader) -> None:
        """Locate, plan and request within the limits. Wait only if ``reader`` has no sample ready."""
        self._freed = 0
        self.look_again = False  # from here on, other threads may set it again
        reader.begin(exact=True)
        others = [other for other in self._readers if other is not reader]
        if others:
            self._take_apart()
        while True:
            self._request()
            planned = reader.fill(wait=True)
            for other in others:
                with suppress(StorageError):  # the other reader raises it when it is read
                    other.begin(exact=False)
                    planned |= other.fill(wait=False)
            if not planned:
                break
        # Without freed bytes no other fetch has room, but index entries may arrive soon.
        waiting = [one.waits() for one in self._readers]
        starting = self._slow_start is not None and any(one.queue for one in self._readers)
        if self._first or starting or any(waiting):
            self.look_again = True

    def request_first(self, fetches: Sequence[RangeFetch]) -> None:
        """Request the first samples. Nothing competes with them for the line."""
        self._first_asked, self._arrived = time.monotonic(), 0
        self._request()
        self._first = [fetch for fetch in fetches if fetch.is_requested]

    def request_now(self, reader: SharingReader, fetch: RangeFetch) -> None:
        """Request a fetch that is needed now, whatever the budget, as one larger than a plan may be."""
        while not fetch.is_requested:
            self._send(reader)

    def consume(self, fetch: RangeFetch, number: int) -> None:
        """Mark one range of a fetch as consumed."""
        freed = fetch.leave(number)
        if freed:
            self.outstanding_bytes -= freed
            self._freed += freed
            if not self.is_shared or self._freed * _QUANTA >= self.fetch_bytes:
                self.look_again = True

    def _request(self) -> None:
        """Request fetches, most urgent first, within the budget. A larger one goes out when it is alone.

        Later fetches wait until the first samples have arrived. After that comes a slow start: no more bytes
        are in flight than the line holds, and one more for each that has arrived. Otherwise all would arrive
        together, the most urgent with the last.
        """
        if self._first:
            if not all(fetch.has_arrived for fetch in self._first):
                return
            self._slow_start = self._options.slow_start_bytes(time.monotonic() - self._first_asked)
            self._first = []
        while (reader := self._most_urgent()) is not None:
            size = reader.queue[0].size
            if self.outstanding_bytes and self.outstanding_bytes + size > self.fetch_bytes:
                return
            if self._slow_start is not None and not self._may_start(size):
                return
            if self.is_shared and sum(fetch.size for fetch in self._under_way) + size > self.fetch_bytes // 3:
                return  # the client keeps its memory for requests in flight
            self._send(reader)

    def _most_urgent(self) -> SharingReader | None:
        waiting = [reader for reader in self._readers if reader.queue]
        if len(waiting) < 2:
            return waiting[0] if waiting else None
        return min(waiting, key=lambda reader: reader.queue[0].deadline - reader.consumed)

    def _send(self, reader: SharingReader) -> None:
        fetch = reader.queue.popleft()
        self.outstanding_bytes += fetch.size
        fetch.request(self._fetcher)
        if self.is_shared and not fetch.locator.index_is_local:  # fetches of local files are views
            fetch.may_be_taken_apart()
            fetch.answer.add_done_callback(self._on_arrived)
        elif self._slow_start is None:
            return
        self._under_way.append(fetch)

    def _on_arrived(self, _answer: object) -> None:
        """Callback in the fetcher's threads."""
        self.look_again = True

    def _may_start(self, size: int) -> bool:
        """Return whether the slow start allows more bytes. It ends when only the budget limits."""
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
        """Copy the samples out of fetches that have arrived."""
        waiting: deque[RangeFetch] = deque()
        for fetch in self._under_way:
            if fetch.has_arrived:
                self._arrived += fetch.size
                self.outstanding_bytes -= fetch.take_apart()
            else:
                waiting.append(fetch)
        self._under_way = waiting
