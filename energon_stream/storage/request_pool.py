"""The fetcher's machinery: threads, and slots for requests in flight."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from energon_stream.errors import ThrottledError, TransientStorageError
from energon_stream.storage.attempts import AnswerUnwanted, listen
from energon_stream.storage.limiter import ConcurrencyLimit
from energon_stream.storage.watcher import LateWatcher

__all__ = ["RequestPool"]


_WORTH_LEAVING = 1 << 20
"""Bytes of a late answer that arrive anyway while its first ones are read. Dropping a smaller answer costs a connection
and saves nothing."""


class _Task:
    """One request; the pool's lock guards what changes."""

    __slots__ = (
        "error",
        "function",
        "future",
        "granted",
        "has_slot",
        "hedges",
        "reading",
        "runs",
        "settled",
        "size",
        "started",
        "urgency",
    )

    def __init__(self, function: Callable[[], Any], urgency: tuple[int, int], size: int) -> None:
        self.function = function
        self.urgency = urgency
        self.size = size  # 0: not to be repeated
        self.future: Future[Any] = Future()
        self.has_slot = False
        self.granted: threading.Lock | None = None  # released when a slot is granted after a back-off
        self.started = 0.0
        self.hedges = 0  # requests beside the first
        self.runs = 1  # requests under way
        self.reading = 0  # those of them whose first bytes are there
        self.settled = False
        self.error: BaseException | None = None


class RequestPool:
    """Runs tasks on threads that are born as they are needed, as many at a time as there are slots.

    A task holds a slot while it runs, except between two attempts, when it says that it needs none for now, and when a
    second request was faster: the transport cannot be interrupted, so the late one then keeps its thread,
    and only that, until its answer comes and is dropped (at the first bytes, where it is large and the store
    tells of them). A free slot goes to the most urgent task.

    Args:
        max_in_flight: Most slots; there are fewer while the store rejects many requests.
        hedged_share: Bytes that may be asked for twice, as a share of all bytes asked for.
    """

    def __init__(self, max_in_flight: int, hedged_share: float) -> None:
        self._lock = threading.Lock()
        self._limiter = ConcurrencyLimit(max_in_flight)
        self._watcher: LateWatcher[_Task] = LateWatcher(self._lock, hedged_share, self._repeat, self._watch)
        self._busy = 0  # slots taken
        self._submitted = 0
        self._fresh: list[tuple[tuple[int, int], _Task]] = []
        self._returning: list[tuple[tuple[int, int], _Task]] = []  # after a back-off, their threads waiting
        # Threads wait on a queue because it does so in C; a Condition costs some 8 us more a request.
        self._granted: SimpleQueue[_Task | None] = SimpleQueue()
        self._threads: set[threading.Thread] = set()
        self._threads_to_start: list[Callable[[], None]] = []  # what threads are to be started with
        self._workers = self._idle = 0
        self._hedges = 0  # requests beside the first of tasks that still have one under way
        self._max_hedges = max(1, max_in_flight // 3)
        self._max_workers = 2 * max_in_flight + self._max_hedges
        self._closing = False

    def submit(self, function: Callable[[], Any], deadline: int, size: int) -> Future[Any]:
        """Run ``function`` as soon as a slot is free and nothing more urgent waits.

        Args:
            function: What to run.
            deadline: Smaller ones first, equal ones in order.
            size: Bytes that it reads, where it may run a second time beside the first; else 0.
        """
        with self._lock:
            self._submitted += 1
            task = _Task(function, (deadline, self._submitted), size)
            future = task.future  # the task lets go of it when it is done, which may be before the return
            if self._closing:
                future.cancel()
            else:
                self._watcher.asked(size)
                heapq.heappush(self._fresh, (task.urgency, task))
                self._grant()
        self._start_threads()
        return future

    def close(self, grace: float) -> None:
        """Cancel what waits, let what runs end within ``grace`` seconds, and end the threads."""
        with self._lock:
            self._closing = True
            waiting, self._fresh = self._fresh, []
            self._grant()
            for _ in range(self._idle):
                self._granted.put(None)
            self._watcher.stop()
        self._start_threads()
        for _, task in waiting:
            task.future.cancel()
        limit = time.monotonic() + grace
        for thread in list(self._threads):
            with suppress(RuntimeError):  # another thread is just starting it
                thread.join(max(0.0, limit - time.monotonic()))

    # Attempts, told by the retry layer

    def begin(self, task: _Task) -> None:
        """A task's own attempt begins; after a back-off it waits for a slot.

        Raises:
            AnswerUnwanted: The second request was faster.
        """
        if task.has_slot and not task.size:  # only this thread changes it
            task.started = time.monotonic()
            return
        with self._lock:
            if task.has_slot or task.settled:
                self._begin(task)
                return
            granted = task.granted = threading.Lock()
            granted.acquire()
            heapq.heappush(self._returning, (task.urgency, task))
            self._grant()
        self._start_threads()
        granted.acquire()
        with self._lock:
            self._begin(task)

    def _begin(self, task: _Task) -> None:
        if task.settled:
            raise AnswerUnwanted
        task.started = time.monotonic()
        if task.size and not task.hedges:
            self._watcher.began(task, task.size, task.urgency)

    def answered(self, task: _Task, started: float) -> bool:
        """The first bytes of an answer are there; tells whether the rest is wanted."""
        if not task.size:  # there is no other request
            task.reading += 1
            return True
        with self._lock:
            if task.settled and task.size > _WORTH_LEAVING:
                return False
            task.reading += 1
            if task.size:
                self._watcher.answers(task, time.monotonic() - started)
            return True

    def end(self, task: _Task, error: BaseException | None, *, was_reading: bool) -> None:
        """A task's own attempt is over."""
        with self._lock:
            task.reading -= was_reading
            self._watcher.ended(task)
            limit = self._limiter.limit
            self._learn(task.size, task.started, error)
            if isinstance(error, TransientStorageError):
                self._release(task)
                self._grant()
            elif self._limiter.limit > limit:
                self._grant()
        self._start_threads()

    def release_slot(self, task: _Task) -> None:
        """Give a task's slot away while its thread goes on; its next attempt, if there is one, waits for another."""
        with self._lock:
            self._release(task)
            self._grant()
        self._start_threads()

    def end_second(
        self, task: _Task, started: float, error: BaseException | None, *, was_reading: bool
    ) -> None:
        """A task's second request is over."""
        with self._lock:
            task.reading -= was_reading
            if error is not None:  # a store that is in trouble must not get a third
                self._watcher.ended(task)
            self._learn(task.size, started, error)

    def _learn(self, size: int, started: float, error: BaseException | None) -> None:
        rejected = isinstance(error, ThrottledError)
        if rejected or not isinstance(error, TransientStorageError):
            self._limiter.observe(rejected=rejected, in_flight=self._busy)
        if size and error is None:
            self._watcher.answered(size, time.monotonic() - started)

    # Slots

    def _release(self, task: _Task) -> None:
        if task.has_slot:
            task.has_slot = False
            self._busy -= 1

    def _grant(self, *, to_caller: bool = False) -> _Task | None:
        """Give free slots away; a worker that asks for one gets the first fresh task."""
        own = None
        while self._busy < self._limiter.limit or self._closing:
            has_thread = to_caller or self._idle or self._workers < self._max_workers
            fresh = self._fresh[0] if self._fresh and has_thread else None
            if self._returning and (fresh is None or self._returning[0] < fresh):
                task = heapq.heappop(self._returning)[1]
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
            self._busy += 1
        return own

    # Threads

    def _start(self, target: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, name="energon-fetch", daemon=True)
        self._threads.add(thread)
        thread.start()

    def _start_threads(self) -> None:
        """Start threads that were found necessary; without the lock: ``start`` waits until the thread runs."""
        while self._threads_to_start:
            try:
                target = self._threads_to_start.pop()
            except IndexError:  # another thread was faster
                return
            self._start(target)

    def _work(self) -> None:
        task = self._granted.get()
        while task is not None:
            if task.future.set_running_or_notify_cancel():
                self._run(task, _First(self, task))
            with self._lock:
                self._release(task)
                task = self._grant(to_caller=True)
                waits = task is None and not self._closing
                self._idle += waits
            self._start_threads()
            if waits:
                # With no task in hand: an idle thread must not keep a body alive, nor what asked for it.
                listen(None)
                task = self._granted.get()
        self._unregister()

    def _run(self, task: _Task, listener: _First | _Second) -> None:
        result = error = None
        listen(listener)
        try:
            result = task.function()
        except BaseException as raised:
            error = raised
        with self._lock:
            task.runs -= 1
            if not task.runs:
                self._hedges -= task.hedges
            if task.error is None or listener.retries:  # the first request's error says more
                task.error = error
            wins = not task.settled and (error is None or not task.runs)
            if wins:  # the other request must not keep the body alive
                task.settled = True
                self._watcher.ended(task)
                if not task.started:  # answered by a cache: nothing was asked for
                    self._watcher.asked(-task.size)
                if listener.is_reading and task.size > _WORTH_LEAVING:  # then the store tells of first bytes
                    self._watcher.left((task.runs - task.reading) * (task.size - _WORTH_LEAVING))
                future, task.future = task.future, Future()
        if wins and error is None:
            future.set_result(result)
        elif wins:
            future.set_exception(task.error)

    def _repeat(self, task: _Task) -> bool:
        if self._closing or self._hedges >= self._max_hedges:
            return False
        self._hedges += 1
        task.hedges += 1
        task.runs += 1
        self._start(self._second, task)
        return True

    def _second(self, task: _Task) -> None:
        self._run(task, _Second(self, task))
        with self._lock:
            if task.settled:  # the first request goes on without a slot
                self._release(task)
            self._grant()
        self._start_threads()
        self._unregister()

    def _watch(self) -> None:
        self._start(self._watcher.run)

    def _unregister(self) -> None:
        with self._lock:
            self._threads.discard(threading.current_thread())


class _First:
    """Hears of a task's own attempts."""

    __slots__ = ("_pool", "_task", "is_reading")
    retries = True
    hedged_bytes = 0

    def __init__(self, pool: RequestPool, task: _Task) -> None:
        self._pool = pool
        self._task = task
        self.is_reading = False  # whether the latest attempt's first bytes came, if the store tells

    def begin(self) -> None:
        self.is_reading = False
        self._pool.begin(self._task)

    def answered(self) -> bool:
        self.is_reading = self._pool.answered(self._task, self._task.started)
        return self.is_reading

    def end(self, error: BaseException | None) -> None:
        self._pool.end(self._task, error, was_reading=self.is_reading)

    def release_slot(self) -> None:
        self._pool.release_slot(self._task)


class _Second:
    """Hears of the one attempt of a request beside a late one; a failed one is not tried again."""

    __slots__ = ("_pool", "_started", "_task", "hedged_bytes", "is_reading")
    retries = False

    def __init__(self, pool: RequestPool, task: _Task) -> None:
        self._pool = pool
        self._task = task
        self._started = time.monotonic()
        self.hedged_bytes = task.size
        self.is_reading = False

    def begin(self) -> None:
        self._started = time.monotonic()

    def answered(self) -> bool:
        self.is_reading = self._pool.answered(self._task, self._started)
        return self.is_reading

    def end(self, error: BaseException | None) -> None:
        self._pool.end_second(self._task, self._started, error, was_reading=self.is_reading)

    def release_slot(self) -> None: ...  # it has no slot
