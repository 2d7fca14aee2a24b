"""Second requests: rules of lateness, a budget of bytes, and a watcher of the requests in flight."""

from __future__ import annotations

import math
import time
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    import threading

T = TypeVar("T")

_REMEMBERED = 64  # durations per size class
_ENOUGH = 12  # durations, before any request of the class is called late
_LATE = 2.0  # times the median
_FLOOR = 0.05  # seconds more; what a busy machine can add to a fast answer
_QUANTILE = 0.9
_BEYOND = 1.25  # times the quantile
_ALLOWANCE = 256 * 1024  # bytes that even a short run may repeat
_MOST_SAVED = 64 * 1024 * 1024  # bytes of allowance that quiet hours can save up
_ANY_SIZE = 1
_MOST_REPEATS = 2  # if one answer in fifty is late, one late request in fifty has a late second one


class LatencyModel:
    """Learns the usual duration of requests by size, from answers.

    Sizes fall in classes of powers of two; a class remembers its last 64 durations. A request is late after
    twice their median and 50 ms, but not before 1.25 times their 90th percentile. ("The Tail at Scale", Dean
    and Barroso, CACM 56(2), 2013, sends a second request at the 95th percentile. Answers come in bursts, so a
    high percentile of a few answers says more of the last burst than of the store.) A class with fewer than
    12 answers borrows from the nearest class that has them: unchanged from a larger size, whose requests take
    longer; in proportion to the size from a smaller one, which is too much by the time to the first byte. If
    a tenth of all answers is slow, slow is usual, and no request is late.
    """

    def __init__(self) -> None:
        self._recent: dict[int, deque[float]] = {}
        self._sorted: dict[int, list[float]] = {}
        self._late_after: dict[int, float] = {}

    @property
    def answers(self) -> int:
        return sum(map(len, self._recent.values()))

    def observe(self, size: int, seconds: float) -> bool:
        """Learn from the answer to a request of ``size`` bytes; returns True if its class becomes known."""
        kind = size.bit_length()
        recent = self._recent.setdefault(kind, deque())
        ordered = self._sorted.setdefault(kind, [])
        if len(recent) == _REMEMBERED:
            del ordered[bisect_left(ordered, recent.popleft())]
        recent.append(seconds)
        insort(ordered, seconds)
        if len(ordered) < _ENOUGH:
            return False
        is_new = kind not in self._late_after
        usual, slow = ordered[len(ordered) // 2], ordered[int(_QUANTILE * len(ordered))]
        self._late_after[kind] = max(_LATE * usual + _FLOOR, _BEYOND * slow)
        return is_new

    def late_after(self, size: int) -> float | None:
        """Return the seconds after which a request of ``size`` bytes is late; None while unknown."""
        kind = size.bit_length()
        known = self._late_after.get(kind)
        if known is not None or not self._late_after:
            return known
        nearest = min(self._late_after, key=lambda other: abs(other - kind))
        return self._late_after[nearest] * 2.0 ** max(0, kind - nearest)


class HedgeBudget:
    """Keeps the bytes that are requested twice below a share of all requested bytes.

    At no time are they more than ``share`` of the bytes requested so far, or 256 KiB if that is more: a short
    run may repeat a few small requests, and no large one. A share of 0 allows none.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self.earned = 0.0  # bytes that may be repeated, for the bytes requested so far
        self._spent = 0
        self._allowance = _ALLOWANCE if share else 0

    def earn(self, size: int) -> None:
        """Note that ``size`` more bytes are requested; a negative number takes that back."""
        self.earned = min(self.earned + self._share * size, self._spent + _MOST_SAVED)

    def can_spend(self, size: int) -> bool:
        return self._spent + size <= max(self.earned, self._allowance)

    def spend(self, size: int) -> None:
        self._spent += size

    def give_back(self, size: int) -> None:
        """Note that ``size`` bytes that were requested again are not sent again."""
        self._spent -= size


class HedgeSnapshot(NamedTuple):
    """State of second requests."""

    earned_bytes: float  # bytes that all requests so far allow to be requested a second time
    answers: int  # answers whose durations are remembered


@dataclass(slots=True)
class _Attempt:
    size: int
    urgency: tuple[int, int]
    started: float
    is_answering: bool = False  # the first bytes have arrived
    repeats: int = 0
    look_at: float = 0.0  # not to be repeated before, though it may be late


class LateWatcher(Generic[T]):
    """Tracks the requests in flight, and calls ``repeat`` for late ones.

    The thread sleeps until the first moment at which one of them can be late; without requests it sleeps
    until woken. All methods except :meth:`run` and :meth:`snapshot` are called with the owner's lock held.
    So is ``repeat``, which starts a second request, or returns False if there is no room for one now.
    ``start`` runs a function on a new thread. A share of 0 watches nothing.
    """

    def __init__(
        self,
        lock: threading.Lock,
        share: float,
        repeat: Callable[[T], bool],
        start: Callable[[Callable[[], None]], None],
    ) -> None:
        self._lock = lock
        self._active = share > 0
        self.budget = HedgeBudget(share)
        self._to_end = LatencyModel()
        # The time to the first byte is short and hardly depends on the size, so it shows much sooner that a
        # request is late.
        self._to_first_byte = LatencyModel()
        self._repeat = repeat
        self._start = start
        self._in_flight: dict[T, _Attempt] = {}
        self._look_at = math.inf
        self._signals: SimpleQueue[bool] = SimpleQueue()  # whether to go on
        self._has_thread = False

    def snapshot(self) -> HedgeSnapshot:
        with self._lock:
            return HedgeSnapshot(self.budget.earned, self._to_end.answers)

    def began(self, request: T, size: int, urgency: tuple[int, int]) -> None:
        """Note the start of an attempt. Of several late ones, the most urgent is repeated first."""
        if not self._active:
            return
        now = time.monotonic()
        attempt = self._in_flight[request] = _Attempt(size, urgency, now)
        late_after = self._late_after(attempt)
        if late_after is not None and now + late_after < self._look_at:
            self._wake(now + late_after)

    def first_byte(self, request: T, seconds: float) -> None:
        """Note that the first bytes of an answer arrived, so many seconds after the request."""
        if not self._active:
            return
        if request in self._in_flight:
            self._in_flight[request].is_answering = True
        if self._to_first_byte.observe(_ANY_SIZE, seconds) and self._in_flight:
            self._wake(time.monotonic())  # the requests in flight began before the model knew enough

    def ended(self, request: T) -> None:
        """Note that an attempt is over, or that nobody waits for it any more."""
        self._in_flight.pop(request, None)

    def answered(self, size: int, seconds: float) -> None:
        """Note that an attempt returned its bytes."""
        if self._active and self._to_end.observe(size, seconds) and self._in_flight:
            self._wake(time.monotonic())

    def stop(self) -> None:
        self._signals.put(False)

    def run(self) -> None:
        """Run the thread's loop."""
        goes_on = True
        while goes_on:
            with self._lock:
                now = time.monotonic()
                overslept = max(0.0, now - self._look_at)  # a busy machine delays answers as much
                self._look_at = self._repeat_late(now, overslept)
                wait = None if self._look_at == math.inf else max(0.0, self._look_at - now)
            with suppress(Empty):
                goes_on = self._signals.get(timeout=wait)

    def _wake(self, look_at: float) -> None:
        self._look_at = look_at
        if self._has_thread:
            self._signals.put(True)
        else:
            self._has_thread = True
            self._start(self.run)

    def _late_after(self, attempt: _Attempt) -> float | None:
        """Return the seconds after which the first or last bytes of an attempt are late; None if unknown."""
        to_end = self._to_end.late_after(attempt.size)
        to_first_byte = None if attempt.is_answering else self._to_first_byte.late_after(_ANY_SIZE)
        if to_end is None or to_first_byte is None:
            return to_end if to_first_byte is None else to_first_byte
        return min(to_end, to_first_byte)

    def _repeat_late(self, now: float, pause: float) -> float:
        """Repeat requests that are late by more than a pause of the machine; returns when to look again."""
        next_look = math.inf
        late: list[tuple[tuple[int, int], float, T]] = []
        for request, attempt in self._in_flight.items():
            late_after = self._late_after(attempt)
            if late_after is None:
                continue
            look_at = max(attempt.started + late_after + pause, attempt.look_at)
            if look_at <= now:
                late.append((attempt.urgency, late_after, request))
            else:
                next_look = min(next_look, look_at)
        for _, late_after, request in sorted(late, key=lambda entry: entry[0]):
            attempt = self._in_flight[request]
            if self.budget.can_spend(attempt.size) and self._repeat(request):
                self.budget.spend(attempt.size)
                attempt.repeats += 1
                attempt.started, attempt.is_answering = now, False  # the second request may be late, too
                if attempt.repeats == _MOST_REPEATS:
                    del self._in_flight[request]
            attempt.look_at = now + late_after
            next_look = min(next_look, attempt.look_at)
        return next_look
