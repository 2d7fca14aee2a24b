"""Pure scheduler of requests, without I/O, threads or clock, for :class:`RequestPool` and for simulations."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from energon_stream.errors import ThrottledError, TransientStorageError
from energon_stream.storage.attempts import AnswerUnwanted
from energon_stream.storage.hedge import HedgeBudget, LatencyModel
from energon_stream.storage.limiter import ConcurrencyLimit

_WORTH_DROPPING = 1 << 20
"""Bytes of an answer that have arrived anyway when its first ones are read. To drop a smaller answer costs a
connection and saves nothing."""
_ANY_SIZE = 1
_CHEAP = 256 << 10
"""Bytes of a request that is sent twice at once where the store rejects others."""
_MOST_REPEATS = 2  # if one answer in fifty is late, one late request in fifty has a late second one

_TELLS_PACE = 32 << 10
"""Bytes of an answer that tells how fast the line is: smaller ones arrive at once on any."""
_JITTER = 0.002  # seconds that a busy machine adds to the end of an answer

STALLED = 20.0
"""Seconds after which even a request whose budget is used up is repeated: its answer may trickle."""


@dataclass(slots=True, eq=False)
class RequestTask:
    """One request that was submitted; only the scheduler changes it."""

    size: int  # 0: not to be repeated
    urgency: tuple[int, int] = (0, 0)  # deadline, order of submission
    has_slot: bool = False
    hedges: int = 0  # second requests
    is_rejected: bool = False  # whether the store rejected an attempt
    twin_bytes: int = 0  # bytes set aside for a second attempt that was sent beside the latest one
    runs: int = 1  # first and second requests that have not ended
    reading: int = 0  # runs whose first bytes have arrived
    is_dropped: bool = False  # whether the first run's answer was dropped for that of a second
    is_alone: bool = False  # whether that failed, so that no attempt is sent twice at once any more
    settled: bool = False
    error: BaseException | None = None


T = TypeVar("T", bound=RequestTask)


class RequestRun(Generic[T]):
    """One run of a task, which makes attempts. A second run makes one attempt and has no slot."""

    __slots__ = ("answered_at", "is_accepted", "is_reading", "is_second", "started", "task")

    def __init__(self, task: T, *, is_second: bool = False) -> None:
        self.task: T = task
        self.is_second: bool = is_second
        self.started: float = -1.0  # of the latest attempt; negative before the first
        self.answered_at: float = 0.0  # when its first bytes arrived
        self.is_accepted: bool = False  # whether the latest attempt's first bytes arrived
        self.is_reading: bool = False  # and are wanted


@dataclass(slots=True)
class _Watched:
    """An attempt of a first run that may become late."""

    started: float
    repeats: int
    is_answering: bool = False  # the first bytes have arrived
    look_at: float = 0.0  # not to be repeated before, though it may be late


class RequestScheduler(Generic[T]):
    """Decides which request is next, how many are in flight, and when a late one is repeated.

    A free slot goes to the most urgent task, which holds it until :meth:`release`, and not between two
    attempts. Call :meth:`grant` after everything that may free a slot. The caller's clock gives all times.
    ``repeat`` starts a second run of a task. ``wake`` is called with the time for the next :meth:`look`, when
    that is sooner than it returned.
    """

    def __init__(
        self,
        max_in_flight: int,
        hedged_share: float,
        repeat: Callable[[T], object],
        wake: Callable[[float], None],
    ) -> None:
        self.budget: HedgeBudget = HedgeBudget(hedged_share)
        self.is_closing: bool = False  # tasks that return get a slot at once, and none is repeated
        self.max_hedges: int = max(1, max_in_flight // 3)  # second requests at a time
        self._next = max(1, max_in_flight // 4)  # requests in flight that are needed next
        self._max_stalled = self.max_hedges + 2 * max_in_flight
        self._limiter = ConcurrencyLimit(max_in_flight)
        self._busy = 0  # slots taken
        self._submitted = 0
        self._fresh: list[tuple[tuple[int, int], T]] = []  # heap: no attempt yet
        self._returning: list[tuple[tuple[int, int], T]] = []  # heap: after a back-off
        self._hedges = 0  # second requests of tasks that have not ended
        self._repeats_late = hedged_share > 0
        self._repeat = repeat
        self._wake = wake
        self._watched: dict[T, _Watched] = {}
        self._look_at = math.inf
        self.to_end: LatencyModel = LatencyModel()
        # The time to the first byte is short and hardly depends on the size, so it shows much sooner that a
        # request is late.
        self._to_first_byte = LatencyModel.of_first_bytes()
        self.pace: float = 0.0  # seconds a byte of the answer that came fastest; 0 without a large one

    @property
    def latency(self) -> float:
        """Seconds to the first byte of the fastest of the latest answers; 0 without any."""
        return self._to_first_byte.fastest

    # Slots

    def submit(self, task: T, deadline: int) -> None:
        """Queue a task: smaller deadlines go first, equal ones in order of submission."""
        self._submitted += 1
        task.urgency = (deadline, self._submitted)
        self.budget.earn(task.size)
        heapq.heappush(self._fresh, (task.urgency, task))

    def close(self) -> list[T]:
        """Begin to close; return the tasks that never had a slot."""
        self.is_closing = True
        waiting, self._fresh = self._fresh, []
        return [task for _, task in waiting]

    def grant(self, has_thread: bool = True) -> T | None:
        """Give a free slot to the most urgent task, and return it, or None. A fresh task needs a thread."""
        if self._busy >= self._limiter.limit and not self.is_closing:
            return None
        queue, fresh = self._returning, self._fresh
        if fresh and has_thread and not (queue and queue[0] < fresh[0]):
            queue = fresh
        if not queue:
            return None
        task = heapq.heappop(queue)[1]
        task.has_slot = True
        self._busy += 1
        return task

    def release(self, task: T) -> None:
        if task.has_slot:
            task.has_slot = False
            self._busy -= 1

    # Attempts

    def begin(self, run: RequestRun[T], now: float) -> bool:
        """Begin an attempt; return False if the task must be granted a slot first, and this called again.

        Raises AnswerUnwanted if another run was faster.
        """
        task = run.task
        run.is_reading = run.is_accepted = False
        if not (run.is_second or task.has_slot or task.settled):
            heapq.heappush(self._returning, (task.urgency, task))
            return False
        if task.settled and not run.is_second:
            raise AnswerUnwanted
        run.started = now
        if self._repeats_late and task.size and not run.is_second:
            # After a second request, this attempt is repeated only if it stalls.
            watched = self._watched[task] = _Watched(now, _MOST_REPEATS if task.hedges else 0)
            if self._is_sent_twice(task):
                task.twin_bytes = task.size
                self._begin_second(task, task.size)
            late_at = now + min(self._late_after(task, watched), self._stalls_after(task))
            if late_at < self._look_at:
                self._look_again(late_at)
        return True

    def answered(self, run: RequestRun[T], now: float) -> bool:
        """Note that the first bytes of an answer arrived; return whether the rest is wanted."""
        task = run.task
        # Not at the end: a rejection has no body, so it would be noted before answers that came earlier.
        run.is_accepted, run.answered_at = True, now
        self._limiter.observe(rejected=False, in_flight=self._busy)
        is_surplus = task.twin_bytes > 0 and task.reading > 0
        run.is_reading = not ((task.settled or is_surplus) and task.size > _WORTH_DROPPING)
        if is_surplus and not run.is_reading:
            self.budget.spend(_WORTH_DROPPING - task.size)
            task.is_dropped |= not (run.is_second or task.settled)
        task.reading += run.is_reading
        if run.is_reading and task.size:
            if task in self._watched:
                self._watched[task].is_answering = True
            if self._to_first_byte.observe(_ANY_SIZE, now - run.started) and self._watched:
                self._look_again(now)  # the requests in flight began before the model knew enough
        return run.is_reading

    def end(self, run: RequestRun[T], error: BaseException | None, now: float) -> None:
        """End an attempt, and learn from it. The next attempt waits for a slot again."""
        task = run.task
        is_transient = isinstance(error, TransientStorageError)
        is_rejected = isinstance(error, ThrottledError)
        task.reading -= run.is_reading
        if not run.is_second:
            if not task.is_dropped:  # else the second one may stall
                self._watched.pop(task, None)
        elif error is not None and task in self._watched:  # a failing store must not get a third request
            self._watched[task].repeats = _MOST_REPEATS
        if is_rejected:  # of two attempts at once, the store answers one at most
            task.is_rejected = True
            self.budget.spend(-task.twin_bytes)
            task.twin_bytes = 0
        if is_rejected or not (is_transient or run.is_accepted):
            self._limiter.observe(rejected=is_rejected, in_flight=self._busy)
        if task.size >= _TELLS_PACE and error is None and run.is_reading:
            pace = max(1e-12, (now - run.answered_at - _JITTER) / task.size)
            self.pace = min(self.pace or pace, pace)
        is_learnt = task.size > 0 and error is None and self.to_end.observe(task.size, now - run.started)
        if is_learnt and self._watched:
            self._look_again(now)
        if is_transient and not run.is_second:
            self.release(task)

    def finish(self, run: RequestRun[T], error: BaseException | None) -> bool:
        """End a run; return whether it settles the task, with ``task.error`` if ``error`` is not None.

        A task whose first answer was dropped for one that broke off is queued again, as a fresh one.
        """
        task = run.task
        task.runs -= 1
        if not task.runs:
            self._hedges -= task.hedges
        is_dropped = task.is_dropped and not run.is_second
        if not is_dropped and (task.error is None or not run.is_second):  # prefer the first request's error
            task.error = error
        if task.settled or (error is not None and task.runs):
            return False
        if error is not None and task.is_dropped and not self.is_closing:  # begin again, without a second
            task.is_dropped, task.is_alone, task.error = False, True, None
            task.runs, task.hedges, task.twin_bytes = 1, 0, 0
            heapq.heappush(self._fresh, (task.urgency, task))
            return False
        task.settled = True
        self._watched.pop(task, None)
        if run.started < 0 and not run.is_second:  # a cache answered: no bytes were requested
            self.budget.earn(-task.size)
        if run.is_reading and task.size > _WORTH_DROPPING:  # so the store reports first bytes
            self.budget.spend((task.reading - task.runs) * (task.size - _WORTH_DROPPING))
        return True

    # Late requests

    def look(self, now: float) -> float:
        """Repeat the late requests, the most urgent first; return when to look again."""
        pause = max(0.0, now - self._look_at)  # a busy machine overslept, and delays answers as much
        self._look_at = math.inf
        late: list[tuple[tuple[int, int], bool, T]] = []
        for task, watched in self._watched.items():
            late_at = watched.started + self._late_after(task, watched) + pause
            stalls_at = watched.started + self._stalls_after(task) + pause
            look_at = min(stalls_at, max(late_at, watched.look_at))
            if look_at <= now:
                late.append((task.urgency, stalls_at <= now, task))
            else:
                self._look_at = min(self._look_at, look_at)
        for _, stalls, task in sorted(late, key=lambda entry: entry[0]):
            watched = self._watched[task]
            late_after = self._late_after(task, watched)
            wait = self._stalls_after(task) if late_after == math.inf else late_after
            if self._may_repeat(task, stalls):
                self._begin_second(task, 0 if stalls else task.size)
                watched.repeats += 1
                watched.started, watched.is_answering = now, False  # the second request may be late, too
            elif stalls:
                watched.started = now
            watched.look_at = now + wait
            self._look_at = min(self._look_at, watched.look_at)
        return self._look_at

    def _may_repeat(self, task: T, stalls: bool = False) -> bool:
        has_room = self._hedges < (self._max_stalled if stalls else self.max_hedges)
        return has_room and not self.is_closing and (stalls or self.budget.can_spend(task.size))

    def _begin_second(self, task: T, cost: int) -> None:
        self._hedges += 1
        task.hedges += 1
        task.runs += 1
        self.budget.spend(cost)
        self._repeat(task)

    def _is_sent_twice(self, task: T) -> bool:
        """Return whether an attempt is sent twice at once: it is needed next, and the store rejects some.

        Each rejection of one of the next requests costs a round trip for which the consumer waits. A store
        that rejects because it is busy gets no such requests: it shrinks the limit.
        """
        limiter = self._limiter
        if task.is_alone or not (task.is_rejected or (task.size <= _CHEAP and limiter.has_rejected)):
            return False
        if not limiter.is_wide or not self._may_repeat(task):
            return False
        return sum(other.urgency < task.urgency for other in self._watched) < self._next

    def _look_again(self, look_at: float) -> None:
        self._look_at = look_at
        self._wake(look_at)

    def _late_after(self, task: T, watched: _Watched) -> float:
        """Return the seconds after which an attempt's first or last bytes are late, if it may be repeated."""
        if watched.repeats >= _MOST_REPEATS:
            return math.inf
        to_end = self.to_end.late_after(task.size)
        if watched.is_answering:
            return to_end
        return min(to_end, self._to_first_byte.late_after(_ANY_SIZE), self._to_first_byte.early)

    def _stalls_after(self, task: T) -> float:
        """Return the seconds after which an attempt at a task stalls: it is far too late, or trickles."""
        late_after = self.to_end.late_after(task.size)
        return STALLED + task.size / (32 << 10) if late_after == math.inf else max(STALLED, 4.0 * late_after)
