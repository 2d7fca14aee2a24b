"""Pure scheduler of requests, without I/O, threads or clock, for :class:`RequestPool` and for simulations."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Generic

from energon_stream.errors import ThrottledError, TransientStorageError
from energon_stream.storage.attempts import AnswerUnwanted
from energon_stream.storage.late_requests import LateRequests, T
from energon_stream.storage.limiter import ConcurrencyLimit

_WORTH_DROPPING = 1 << 20
"""Bytes of an answer that have arrived anyway when its first ones are read. To drop a smaller answer costs a
connection and saves nothing."""


class RequestRun(Generic[T]):
    """One run of a task, which makes attempts. A second run makes one attempt and has no slot."""

    __slots__ = ("is_reading", "is_second", "started", "task")

    def __init__(self, task: T, *, is_second: bool = False) -> None:
        self.task: T = task
        self.is_second: bool = is_second
        self.started: float = -1.0  # of the latest attempt; negative before the first
        self.is_reading: bool = False  # whether the latest attempt's first bytes arrived


class RequestScheduler(Generic[T]):
    """Decides which request is next, how many are in flight, and when a late one is repeated.

    A free slot goes to the most urgent task, which holds it until :meth:`release`, and not between two
    attempts. Call :meth:`grant` after everything that may free a slot. The caller's clock
    gives all times.

    Args:
        max_in_flight: Slots; fewer while the store rejects many requests.
        hedged_share: As for :class:`Fetcher`.
        repeat: Starts a second run of a task.
        wake: Called with the time for the next ``late.look``, when that is sooner than announced before.

    Attributes:
        late: The requests in flight that may become late.
        is_closing: Whether tasks that return get a slot at once, and no late request is repeated.
    """

    def __init__(
        self,
        max_in_flight: int,
        hedged_share: float,
        repeat: Callable[[T], object],
        wake: Callable[[float], None],
    ) -> None:
        self.late: LateRequests[T] = LateRequests(hedged_share, self._repeat, wake)
        self.is_closing: bool = False
        self.max_hedges: int = max(1, max_in_flight // 3)
        self._max_stalled = self.max_hedges + 2 * max_in_flight
        self._limiter = ConcurrencyLimit(max_in_flight)
        self._busy = 0  # slots taken
        self._submitted = 0
        self._fresh: list[tuple[tuple[int, int], T]] = []  # heap: no attempt yet
        self._returning: list[tuple[tuple[int, int], T]] = []  # heap: after a back-off
        self._hedges = 0  # second requests of tasks that have not ended
        self._start_second = repeat

    # Slots

    def submit(self, task: T, deadline: int) -> None:
        """Queue a task: smaller deadlines go first, equal ones in order of submission."""
        self._submitted += 1
        task.urgency = (deadline, self._submitted)
        self.late.budget.earn(task.size)
        heapq.heappush(self._fresh, (task.urgency, task))

    def close(self) -> list[T]:
        """Begin to close; return the tasks that never had a slot."""
        self.is_closing = True
        waiting, self._fresh = self._fresh, []
        return [task for _, task in waiting]

    def grant(self, has_thread: bool = True) -> T | None:
        """Give a free slot to the most urgent task, and return the task, or None.

        A task that never had a slot waits until there is a thread for it.
        """
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
        """Free a task's slot, if it has one."""
        if task.has_slot:
            task.has_slot = False
            self._busy -= 1

    # Attempts

    def begin(self, run: RequestRun[T], now: float) -> bool:
        """Begin an attempt. Returns False if it must wait: call this again when the task was granted a slot.

        Raises AnswerUnwanted if another run was faster.
        """
        task = run.task
        run.is_reading = False
        if not (run.is_second or task.has_slot or task.settled):
            heapq.heappush(self._returning, (task.urgency, task))
            return False
        if task.settled and not run.is_second:
            raise AnswerUnwanted
        run.started = now
        if task.size and not run.is_second:
            self.late.began(task, now)
        return True

    def answered(self, run: RequestRun[T], now: float) -> bool:
        """Note that the first bytes of an answer arrived; return whether the rest is wanted."""
        task = run.task
        run.is_reading = not (task.settled and task.size > _WORTH_DROPPING)
        task.reading += run.is_reading
        if run.is_reading and task.size:
            self.late.first_byte(task, now - run.started, now)
        return run.is_reading

    def end(self, run: RequestRun[T], error: BaseException | None, now: float) -> None:
        """End an attempt, and learn from it. The next attempt waits for a slot again."""
        task = run.task
        is_transient = isinstance(error, TransientStorageError)
        is_rejected = isinstance(error, ThrottledError)
        task.reading -= run.is_reading
        if not run.is_second:
            self.late.ended(task)
        elif error is not None:  # a failing store must not get a third request
            self.late.repeat_failed(task)
        if is_rejected or not is_transient:
            self._limiter.observe(rejected=is_rejected, in_flight=self._busy)
        if task.size and error is None:
            self.late.answered(task.size, now - run.started, now)
        if is_transient and not run.is_second:
            self.release(task)

    def finish(self, run: RequestRun[T], error: BaseException | None) -> bool:
        """End a run; return whether it settles the task, with ``task.error`` if ``error`` is not None."""
        task = run.task
        task.runs -= 1
        if not task.runs:
            self._hedges -= task.hedges
        if task.error is None or not run.is_second:  # prefer the first request's error
            task.error = error
        if task.settled or (error is not None and task.runs):
            return False
        task.settled = True
        self.late.ended(task)
        budget = self.late.budget
        if run.started < 0 and not run.is_second:  # a cache answered: no bytes were requested
            budget.earn(-task.size)
        if run.is_reading and task.size > _WORTH_DROPPING:  # so the store reports first bytes
            budget.spend((task.reading - task.runs) * (task.size - _WORTH_DROPPING))
        return True

    def _repeat(self, task: T, stalls: bool) -> bool:
        if self.is_closing or self._hedges >= (self._max_stalled if stalls else self.max_hedges):
            return False
        self._hedges += 1
        task.hedges += 1
        task.runs += 1
        self._start_second(task)
        return True
