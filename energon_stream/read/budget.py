"""The byte budget of one process: decides which planned request is made next.

Each reader has a *lane*: its planned requests, and the number of ranges that it has consumed. Streams of a
process rotate, so all lanes use their *n*-th next range at about the same time, and the request with the
nearest deadline goes first, as far ahead as the budget allows. Bytes count from the request until the last
sample of the request is consumed. Of many lanes, each has a small share, so their answers are taken apart
when they arrive: each sample counts until it is consumed.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from energon_stream.read.fetch import RangeFetch


def slow_start_bytes(latency: float) -> int:
    """Return the bytes that may be in flight at first: what a line of ten gigabits and this latency holds."""
    return max(16 << 20, int(latency * 1.25e9))


_SLOW_LINE = 125e6
"""Bytes per second of a line of a gigabit. For as long as it takes, the first samples have a head start."""
_AT_ONCE = 1e-9
"""Seconds a byte of an answer that was there at once. Where they take longer, line or machine is slow."""


@dataclass(slots=True, eq=False)
class Lane:
    """Planned requests of one reader, most urgent first, and the reader's place."""

    queue: deque[RangeFetch] = field(default_factory=deque)
    consumed: int = 0  # number of consumed ranges, from which deadlines count

    @property
    def slack(self) -> int:
        """Number of ranges that are consumed before the next request is needed."""
        return self.queue[0].deadline - self.consumed


class Budget:
    """Admits planned requests within ``size`` bytes, for several readers if it ``is_shared``."""

    def __init__(self, size: int, *, is_shared: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self.size = size
        self.outstanding_bytes: int = 0  # of requests that are made and not yet consumed
        self._is_shared = is_shared
        self._clock = clock
        self._lanes: list[Lane] = []
        self._freed = 0  # bytes freed since the last look ahead
        self._under_way: list[RangeFetch] = []  # requests whose arrival still counts
        self._bytes_under_way: int = 0
        self._first: list[RangeFetch] = []  # requests of the first samples; all others wait for them
        self._first_made = 0.0  # when they were made
        self._latency = 0.0  # seconds to the first byte, as far as that is known; else 0
        self._head_start = math.inf  # when others may follow before their answers
        self._arrived = 0  # bytes that have arrived since
        self._start_bytes: int | None = None  # bytes that may be in flight at first; None if that is over

    def open_lane(self) -> Lane:
        lane = Lane()
        self._lanes.append(lane)
        return lane

    def close_lane(self, lane: Lane, held: int) -> None:
        """Remove a lane, whose requests hold ``held`` bytes."""
        self._lanes.remove(lane)
        self.outstanding_bytes -= held

    @property
    def is_starting(self) -> bool:
        """True if arrivals, not only consumption, admit further requests."""
        return bool(self._first) or (self._start_bytes is not None and self.has_waiting)

    @property
    def has_waiting(self) -> bool:
        """True if planned requests are not made yet."""
        return any(lane.queue for lane in self._lanes)

    def starting(self) -> list[RangeFetch]:
        """Return requests under way, of which each that arrives may admit others; none after the start."""
        return [] if self._start_bytes is None else [each for each in self._under_way if not each.has_arrived]

    def free(self, size: int) -> bool:
        """Note that bytes were consumed. Return whether there is enough room to look ahead again."""
        self.outstanding_bytes -= size
        self._freed += size
        return not self._is_shared or self._freed * 64 >= self.size

    def look(self) -> None:
        """Note that all readers look ahead now."""
        self._freed = 0
        self._note_arrivals()

    def first(self, requests: Iterable[RangeFetch], latency: float, pace: float = 0.0) -> None:
        """Note that these requests of the first samples were made. All others wait for their answers.

        If the latency is known, in seconds to a first byte, others follow so closely that they arrive behind.
        They do not if earlier answers took their time, ``pace`` in seconds a byte: many of them would leave
        the last of the first ones a small share of the line, or of the core.
        """
        self._first_made, self._arrived, self._latency = self._clock(), 0, latency
        self._first = list(requests)
        follows = latency and pace <= _AT_ONCE
        pause = sum(request.size for request in self._first) / _SLOW_LINE
        self._head_start = self._first_made + pause if follows else math.inf

    @property
    def follows(self) -> bool:
        """True while other requests are made before the answers of the first ones."""
        return bool(self._first) and self._start_bytes is not None

    @property
    def pause(self) -> float | None:
        """Seconds until other requests may follow those of the first samples, if they wait for that."""
        left = self._head_start - self._clock() if self._first and self._start_bytes is None else 0.0
        return left if 0.0 < left < math.inf else None

    def admit(self) -> Iterator[RangeFetch]:
        """Yield the requests to make now, most urgent first. A larger one than the budget goes out alone.

        Later requests wait until the first samples have arrived. After that comes a slow start: no more bytes
        are in flight than the line holds, and one more for each that has arrived. Otherwise all would arrive
        together, the most urgent with the last.
        """
        if self._first:
            if all(request.has_arrived for request in self._first):
                self._start_bytes = slow_start_bytes(self._clock() - self._first_made)
                self._first = []
            elif self._clock() < self._head_start:
                return
            elif self._start_bytes is None:
                self._start_bytes = slow_start_bytes(self._latency)
        # By slack; of equal ones, the lane comes first that was opened first.
        urgent = [(lane.slack, number, lane) for number, lane in enumerate(self._lanes) if lane.queue]
        heapify(urgent)
        while urgent:
            _, number, lane = heappop(urgent)
            size = lane.queue[0].size
            if self.outstanding_bytes and self.outstanding_bytes + size > self.size:
                return
            if self._start_bytes is not None and not self._may_start(size):
                return
            if self._is_shared and self._bytes_under_way + size > self.size // 3:
                return  # the client keeps its memory for requests in flight
            yield self.pop(lane)
            if lane.queue:
                heappush(urgent, (lane.slack, number, lane))

    def pop(self, lane: Lane) -> RangeFetch:
        """Admit the next request of a lane, whatever the budget: the reader needs it now."""
        request = lane.queue.popleft()
        self.outstanding_bytes += request.size
        if self._start_bytes is not None or (self._is_shared and not request.is_local):
            self._under_way.append(request)
            self._bytes_under_way += request.size
        return request

    def _note_arrivals(self) -> None:
        """Count the answers that have arrived, and take them apart."""
        under_way, self._under_way = self._under_way, []
        for request in under_way:
            if request.has_arrived:
                self._arrived += request.size
                self._bytes_under_way -= request.size
                self.outstanding_bytes -= request.take_apart()
            else:
                self._under_way.append(request)

    def _may_start(self, size: int) -> bool:
        """Return whether the slow start allows more bytes. It ends when only the budget limits."""
        if self._bytes_under_way + size > (self._start_bytes or 0) + self._arrived:
            self._note_arrivals()  # only now, because it looks at each request under way
        allowed = (self._start_bytes or 0) + self._arrived
        if allowed >= self.size:
            self._start_bytes = None
        return not self._under_way or self._bytes_under_way + size <= allowed
