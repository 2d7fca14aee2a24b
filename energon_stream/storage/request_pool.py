"""Threads and slots that the fetcher runs requests on."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from energon_stream.errors import ThrottledError, TransientStorageError
from energon_stream.storage.attempts import AnswerUnwanted, AttemptListener
from energon_stream.storage.limiter import ConcurrencyLimit
from energon_stream.storage.watcher import LateWatcher

_WORTH_DROPPING = 1 << 20
"""Bytes of an answer that have arrived anyway when its first ones are read. To drop a smaller answer costs a
connection and saves nothing."""
_LEAST_THREADS = 256
"""Threads that may be started on any pool. Tasks that wait for their next attempt have no slot, but a thread:
those of a store that is down must not hold up the requests to another one."""


class Answer(Future[Any]):
    """The future answer of a request. An unwanted one makes no further attempt."""

    unwanted = False


@dataclass(slots=True, eq=False)
class _Task:
    """One request; the pool's lock protects its fields."""

    function: Callable[[AttemptListener], Any]
    urgency: tuple[int, int]  # deadline, order of submission
    size: int  # 0: not to be repeated
    future: Answer = field(default_factory=Answer)
    has_slot: bool = False
    granted: threading.Lock | None = None  # released when a slot is granted after a back-off
    hedges: int = 0  # second requests
    runs: int = 1  # first and second requests that have not ended
    reading: int = 0  # runs whose first bytes have arrived
    settled: bool = False
    error: BaseException | None = None


class _Run(AttemptListener):
    """One run of a task: hears of its attempts, and keeps the pool informed.

    A second run makes one attempt and has no slot.
    """

    __slots__ = ("_pool", "hedged_bytes", "is_reading", "is_second", "started", "task")

    def __init__(self, pool: RequestPool, task: _Task, *, is_second: bool = False) -> None:
        self._pool = pool
        self.task = task
        self.is_second = is_second
        self.hedged_bytes = task.size if is_second else 0
        self.started = 0.0  # of the latest attempt; 0 while there was none
        self.is_reading = False  # whether the latest attempt's first bytes arrived

    def begin(self) -> None:
        """Begin an attempt; after a back-off, wait for a slot.

        Raises AnswerUnwanted if another run was faster, or the answer was abandoned.
        """
        pool, task = self._pool, self.task
        self.is_reading = False
        if task.future.unwanted:
            raise AnswerUnwanted
        with pool.granting():  # who grants a slot may still hold the lock, and not have noted it
            waits = not (self.is_second or task.has_slot or task.settled)
            if waits:
                granted = task.granted = threading.Lock()
                granted.acquire()
                heapq.heappush(pool.returning, (task.urgency, task))
            else:
                self._note_begin()
        if waits:
            granted.acquire()
            with pool.lock:
                self._note_begin()

    def _note_begin(self) -> None:
        task = self.task
        if task.settled and not self.is_second:
            raise AnswerUnwanted
        self.started = time.monotonic()
        if task.size and not self.is_second:
            self._pool.watcher.began(task, task.size, task.urgency, only_if_stalled=task.hedges > 0)

    def answered(self) -> bool:
        """Note that the first bytes of an answer arrived; returns whether the rest is wanted."""
        pool, task = self._pool, self.task
        with pool.lock:
            self.is_reading = not (task.settled and task.size > _WORTH_DROPPING)
            task.reading += self.is_reading
            if self.is_reading and task.size:
                pool.watcher.first_byte(task, time.monotonic() - self.started)
        return self.is_reading

    def end(self, error: BaseException | None) -> None:
        """End an attempt, and learn from it."""
        pool, task = self._pool, self.task
        is_transient = isinstance(error, TransientStorageError)
        is_rejected = isinstance(error, ThrottledError)
        with pool.granting():
            task.reading -= self.is_reading
            if not self.is_second:
                pool.watcher.ended(task)
            elif error is not None:  # a failing store must not get a third request
                pool.watcher.repeat_failed(task)
            if is_rejected or not is_transient:
                pool.limiter.observe(rejected=is_rejected, in_flight=pool.busy)
            if task.size and error is None:
                pool.watcher.answered(task.size, time.monotonic() - self.started)
            if is_transient and not self.is_second:
                pool.release(task)

    def release_slot(self) -> None:
        """Free the slot while the thread goes on; the next attempt, if any, waits for another one."""
        if not self.is_second:
            with self._pool.granting():
                self._pool.release(self.task)


class RequestPool:
    """Runs tasks on threads that are started as they are needed, at most as many at a time as there are
    slots.

    A free slot goes to the most urgent task. A task holds its slot while it runs, except:

    * between two attempts;
    * after ``release_slot``, while it does slow work with its answer;
    * when a second request was faster. A client cannot be interrupted, so the late request keeps its thread
      until its answer comes and is dropped: at the first bytes, if the answer is large and the store reports
      them.
    """

    def __init__(self, max_in_flight: int, hedged_share: float) -> None:
        self.lock: threading.Lock = threading.Lock()
        self.limiter: ConcurrencyLimit = ConcurrencyLimit(max_in_flight)
        self.watcher: LateWatcher[_Task] = LateWatcher(self.lock, hedged_share, self._repeat, self._start)
        self.busy: int = 0  # slots taken
        self._submitted = 0
        self._fresh: list[tuple[tuple[int, int], _Task]] = []  # heap: no attempt yet, no thread
        self.returning: list[tuple[tuple[int, int], _Task]] = []  # heap: after a back-off
        # A queue waits in C; a Condition would cost 8 us more per request.
        self._granted: SimpleQueue[_Task | None] = SimpleQueue()
        self._threads: set[threading.Thread] = set()
        self._threads_to_start: list[Callable[[], None]] = []  # targets of threads to start
        self._workers = self._idle = 0
        self._hedges = 0  # second requests of tasks that have not ended
        self._max_hedges = max(1, max_in_flight // 3)
        self._max_stalled = self._max_hedges + 2 * max_in_flight
        self._max_workers = max(_LEAST_THREADS, 2 * max_in_flight + self._max_hedges)
        self._closing = False

    def submit(self, function: Callable[[AttemptListener], Any], deadline: int, size: int) -> Future[Any]:
        """Run ``function`` as soon as a slot is free and nothing more urgent waits: smaller deadlines go
        first, equal ones in order of submission.

        Its argument hears of the attempts that it makes.
        ``size`` is the number of bytes that it reads, if it may run a second time beside the first; else 0.
        """
        with self.granting():
            self._submitted += 1
            task = _Task(function, (deadline, self._submitted), size)
            future = task.future  # the task forgets it when it is settled, maybe before we return
            if self._closing:
                future.cancel()
            else:
                self.watcher.budget.earn(size)
                heapq.heappush(self._fresh, (task.urgency, task))
        return future

    def close(self, grace: float) -> None:
        """Cancel waiting tasks, let running ones end within ``grace`` seconds, and stop the threads."""
        with self.granting():
            self._closing = True
            waiting, self._fresh = self._fresh, []
            for _ in range(self._idle):
                self._granted.put(None)
            self.watcher.stop()
        for _, task in waiting:
            task.future.cancel()
        limit = time.monotonic() + grace
        for thread in list(self._threads):
            with suppress(RuntimeError):  # another thread is about to start it
                thread.join(max(0.0, limit - time.monotonic()))

    # Slots

    @contextmanager
    def granting(self) -> Iterator[None]:
        """Hold the lock for a change; then grant the slots that are free, and start threads for them."""
        with self.lock:
            yield
            self._grant()
        self._start_threads()

    def release(self, task: _Task) -> None:
        """Free a task's slot; called with the lock held."""
        if task.has_slot:
            task.has_slot = False
            self.busy -= 1

    def _grant(self, *, to_caller: bool = False) -> _Task | None:
        """Grant free slots. With ``to_caller``, return the most urgent fresh task to the calling worker."""
        own = None
        while self.busy < self.limiter.limit or self._closing:
            has_thread = to_caller or self._idle or self._workers < self._max_workers
            fresh = self._fresh[0] if self._fresh and has_thread else None
            if self.returning and (fresh is None or self.returning[0] < fresh):
                task = heapq.heappop(self.returning)[1]
                if task.granted is not None:
                    task.granted.release()
            elif fresh is not None:
                task = heapq.heappop(self._fresh)[1]
                if to_caller:
                    own, to_caller = task, False
                else:
                    self._granted.put(task)
                    if self._idle:
                        self._idle -= 1
                    else:
                        self._workers += 1
                        self._threads_to_start.append(self._work)
            else:
                break
            task.has_slot = True
            self.busy += 1
        return own

    # Threads

    def _start(self, target: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, name="energon-fetch", daemon=True)
        self._threads.add(thread)
        thread.start()

    def _start_threads(self) -> None:
        """Start the threads that ``_grant`` found necessary. Call it without the lock: ``start`` waits."""
        while self._threads_to_start:
            with suppress(IndexError):  # another thread took it
                self._start(self._threads_to_start.pop())

    def _work(self) -> None:
        task = self._granted.get()
        while task is not None:
            if task.future.set_running_or_notify_cancel():
                self._run(_Run(self, task))
            with self.lock:
                self.release(task)
                task = self._grant(to_caller=True)
                waits = task is None and not self._closing
                self._idle += waits
            self._start_threads()
            if waits:
                # An idle thread must keep neither a body nor its requester alive, so it holds no task here.
                task = self._granted.get()
        self._unregister()

    def _run(self, run: _Run) -> None:
        task = run.task
        result = error = None
        try:
            result = task.function(run)
        except BaseException as raised:
            error = raised
        with self.lock:
            task.runs -= 1
            if not task.runs:
                self._hedges -= task.hedges
            if task.error is None or not run.is_second:  # prefer the first request's error
                task.error = error
            wins = not task.settled and (error is None or not task.runs)
            if wins:  # the future is moved out, so that the other request does not keep the body alive
                task.settled = True
                self.watcher.ended(task)
                if not run.started and not run.is_second:  # a cache answered: no bytes were requested
                    self.watcher.budget.earn(-task.size)
                if run.is_reading and task.size > _WORTH_DROPPING:  # so the store reports first bytes
                    self.watcher.budget.spend((task.reading - task.runs) * (task.size - _WORTH_DROPPING))
                future, task.future = task.future, Answer()
        if wins and error is None:
            future.set_result(result)
        elif wins:
            future.set_exception(task.error)

    def _repeat(self, task: _Task, stalls: bool) -> bool:
        if self._closing or self._hedges >= (self._max_stalled if stalls else self._max_hedges):
            return False
        self._hedges += 1
        task.hedges += 1
        task.runs += 1
        self._start(self._second, task)
        return True

    def _second(self, task: _Task) -> None:
        self._run(_Run(self, task, is_second=True))
        with self.granting():
            if task.settled:  # the first request, if it still runs, goes on without a slot
                self.release(task)
        self._unregister()

    def _unregister(self) -> None:
        with self.lock:
            self._threads.discard(threading.current_thread())
