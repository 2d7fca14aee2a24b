"""Pure rules for repeating the late ones among the requests in flight."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from energon_stream.storage.hedge import HedgeBudget, LatencyModel

_ANY_SIZE = 1
_MOST_REPEATS = 2  # if one answer in fifty is late, one late request in fifty has a late second one

STALLED = 20.0
"""Seconds after which even a request whose budget is used up is repeated: its answer may trickle."""
_TRICKLE = 32 << 10
"""Bytes a second. A slower answer is a trickle while nothing is known of the store's speed."""
_FAR_TOO_LATE = 4.0  # times the time after which a request is late


@dataclass(slots=True, eq=False)
class RequestTask:
    """One request that was submitted; only the scheduler changes it."""

    size: int  # 0: not to be repeated
    urgency: tuple[int, int] = (0, 0)  # deadline, order of submission
    has_slot: bool = False
    hedges: int = 0  # second requests
    runs: int = 1  # first and second requests that have not ended
    reading: int = 0  # runs whose first bytes have arrived
    settled: bool = False
    error: BaseException | None = None


T = TypeVar("T", bound=RequestTask)


@dataclass(slots=True)
class _Watched:
    """An attempt that may become late."""

    started: float
    is_answering: bool = False  # the first bytes have arrived
    repeats: int = 0
    look_at: float = 0.0  # not to be repeated before, though it may be late


class LateRequests(Generic[T]):
    """Tracks the requests in flight, and repeats late ones when :meth:`look` is called.

    Args:
        share: As for :class:`HedgeBudget`; 0 repeats nothing.
        repeat: Starts a second request, and returns True; False if there is no room for one now. The argument
            beside the request says that it stalls.
        wake: Called with the time for the next :meth:`look`, when that is sooner than announced before.
    """

    def __init__(
        self, share: float, repeat: Callable[[T, bool], bool], wake: Callable[[float], None]
    ) -> None:
        self._active = share > 0
        self.budget: HedgeBudget = HedgeBudget(share)
        self._to_end = LatencyModel()
        # The time to the first byte is short and hardly depends on the size, so it shows much sooner that a
        # request is late.
        self._to_first_byte = LatencyModel.of_first_bytes()
        self._repeat = repeat
        self._announce = wake
        self._in_flight: dict[T, _Watched] = {}
        self._look_at = math.inf

    def began(self, task: T, now: float) -> None:
        """Note the start of an attempt. After a second request, it is repeated only if it stalls."""
        if not self._active:
            return
        attempt = _Watched(now, repeats=_MOST_REPEATS if task.hedges else 0)
        self._in_flight[task] = attempt
        late_after = min(self._late_after(task, attempt), self._stalls_after(task))
        if now + late_after < self._look_at:
            self._wake(now + late_after)

    def first_byte(self, task: T, seconds: float, now: float) -> None:
        """Note that the first bytes of an answer arrived, ``seconds`` after the request."""
        if task in self._in_flight:
            self._in_flight[task].is_answering = True
        if self._to_first_byte.observe(_ANY_SIZE, seconds) and self._in_flight:
            self._wake(now)  # the requests in flight began before the model knew enough

    def repeat_failed(self, task: T) -> None:
        """Note that a second request failed. The first is repeated only if it stalls."""
        if task in self._in_flight:
            self._in_flight[task].repeats = _MOST_REPEATS

    def ended(self, task: T) -> None:
        """Note that an attempt is over, or that its answer is not needed any more."""
        self._in_flight.pop(task, None)

    def answered(self, size: int, seconds: float, now: float) -> None:
        """Note that an attempt returned its bytes."""
        if self._to_end.observe(size, seconds) and self._in_flight:
            self._wake(now)

    def look(self, now: float) -> float:
        """Repeat the late requests, the most urgent first; return when to look again."""
        pause = max(0.0, now - self._look_at)  # a busy machine overslept, and delays answers as much
        self._look_at = math.inf
        late: list[tuple[tuple[int, int], bool, T]] = []
        for task, attempt in self._in_flight.items():
            late_at = attempt.started + self._late_after(task, attempt) + pause
            stalls_at = attempt.started + self._stalls_after(task) + pause
            look_at = min(stalls_at, max(late_at, attempt.look_at))
            if look_at <= now:
                late.append((task.urgency, stalls_at <= now, task))
            else:
                self._look_at = min(self._look_at, look_at)
        for _, stalls, task in sorted(late, key=lambda entry: entry[0]):
            attempt = self._in_flight[task]
            late_after = self._late_after(task, attempt)
            wait = self._stalls_after(task) if late_after == math.inf else late_after
            if (stalls or self.budget.can_spend(task.size)) and self._repeat(task, stalls):
                if not stalls:
                    self.budget.spend(task.size)
                attempt.repeats += 1
                attempt.started, attempt.is_answering = now, False  # the second request may be late, too
            elif stalls:
                attempt.started = now
            attempt.look_at = now + wait
            self._look_at = min(self._look_at, attempt.look_at)
        return self._look_at

    def _wake(self, look_at: float) -> None:
        self._look_at = look_at
        self._announce(look_at)

    def _late_after(self, task: T, attempt: _Watched) -> float:
        """Return the seconds after which the first or last bytes of an attempt are late; infinite if unknown
        or repeated often enough.
        """
        if attempt.repeats >= _MOST_REPEATS:
            return math.inf
        to_end = self._to_end.late_after(task.size)
        if attempt.is_answering:
            return to_end
        return min(to_end, self._to_first_byte.late_after(_ANY_SIZE), self._to_first_byte.early)

    def _stalls_after(self, task: T) -> float:
        """Return the seconds after which an attempt at a task stalls."""
        late_after = self._to_end.late_after(task.size)
        if late_after == math.inf:
            return STALLED + task.size / _TRICKLE
        return max(STALLED, _FAR_TOO_LATE * late_after)
