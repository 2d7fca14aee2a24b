"""Threads that the fetcher runs requests on, as the scheduler of requests says."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from energon_stream.storage.attempts import AnswerUnwanted, AttemptListener
from energon_stream.storage.request_scheduler import RequestRun, RequestScheduler, RequestTask


class PoolAnswer(Future[Any]):
    """The future answer of a request. An unwanted one makes no further attempt."""

    unwanted = False


@dataclass(slots=True, eq=False, kw_only=True)
class _PoolTask(RequestTask):
    """A task of a pool, whose lock protects its fields."""

    function: Callable[[AttemptListener], Any]
    future: PoolAnswer = field(default_factory=PoolAnswer)
    granted: threading.Lock | None = None  # released when a slot is granted after a back-off


class _PoolRun(RequestRun[_PoolTask], AttemptListener):
    """A run that tells its pool of its attempts."""

    __slots__ = ("_is_retry", "_pool")

    def __init__(self, pool: RequestPool, task: _PoolTask, *, is_second: bool = False) -> None:
        super().__init__(task, is_second=is_second)
        self._pool, self._is_retry = pool, False

    @property
    def hedged_bytes(self) -> int:
        return self.task.size if self.is_second else 0

    def begin(self) -> None:
        """Begin an attempt; after a back-off, wait for a slot.

        Raises AnswerUnwanted for a request that another run answered, or that was abandoned, and
        CancelledError for a pool that was closed.
        """
        pool, task = self._pool, self.task
        self.is_reading = False
        if task.future.unwanted:
            raise AnswerUnwanted
        if self._is_retry:
            pool.backing_off.discard(threading.current_thread())
            if pool.scheduler.is_closing:
                raise CancelledError
        with pool.granting:  # who grants a slot may still hold the lock, and not have noted it
            if pool.scheduler.begin(self, time.monotonic()):
                return
            granted = task.granted = threading.Lock()
            granted.acquire()
        granted.acquire()
        with pool.lock:
            task.granted = None  # it may be queued again, as a fresh one
            pool.scheduler.begin(self, time.monotonic())
        pool.start_threads()

    def answered(self) -> bool:
        with self._pool.lock:
            return self._pool.scheduler.answered(self, time.monotonic())

    def end(self, error: BaseException | None) -> None:
        self._is_retry = True
        if error is not None:
            self._pool.backing_off.add(threading.current_thread())
        with self._pool.granting:
            self._pool.scheduler.end(self, error, time.monotonic())

    def release_slot(self) -> None:
        """Free the slot while the thread goes on; the next attempt, if any, waits for another slot."""
        if not self.is_second:
            with self._pool.granting:
                self._pool.scheduler.release(self.task)


class _Granting:
    """Holds a pool's lock for a change; then grants the slots that are free, and starts threads for them.

    As a generator, this context would cost a microsecond more per use.
    """

    __slots__ = ("_pool",)

    def __init__(self, pool: RequestPool) -> None:
        self._pool = pool

    def __enter__(self) -> None:
        self._pool.lock.acquire()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        pool = self._pool
        try:
            if kind is None:
                pool.grant()
        finally:
            pool.lock.release()
        pool.start_threads()


class RequestPool:
    """Runs tasks on threads, at most as many at a time as there are slots.

    A task holds its slot while it runs, except:

    * between two attempts;
    * after ``release_slot``, while it does slow work with its answer;
    * when a second request was faster. A client cannot be interrupted, so the late request keeps its thread
      until its answer comes and is dropped: at the first bytes, if the answer is large and the store reports
      them.
    """

    def __init__(self, max_in_flight: int, hedged_share: float) -> None:
        self.lock: threading.Lock = threading.Lock()
        self.granting: _Granting = _Granting(self)
        self.scheduler: RequestScheduler[_PoolTask] = RequestScheduler(
            max_in_flight,
            hedged_share,
            lambda task: self._threads_to_start.append(partial(self._second, task)),
            self._wake,
        )
        # A queue waits in C; a Condition would cost 8 us more per request.
        self._granted: SimpleQueue[_PoolTask | None] = SimpleQueue()
        self._threads: set[threading.Thread] = set()
        self.backing_off: set[threading.Thread] = set()  # between two attempts
        self._threads_to_start: list[Callable[[], None]] = []  # targets of threads to start
        self._workers = self._idle = 0
        # Tasks that wait for their next attempt have no slot, but a thread: a store that is down must not
        # hold up the requests to other stores.
        self._max_workers = max(256, 2 * max_in_flight + self.scheduler.max_hedges)
        self._signals: SimpleQueue[bool] = SimpleQueue()  # to the watcher: whether to go on
        self._has_watcher = False

    def submit(self, function: Callable[[AttemptListener], Any], deadline: int, size: int) -> Future[Any]:
        """Run ``function`` as soon as a slot is free and nothing more urgent waits.

        Smaller deadlines go first, equal ones in order of submission. Its argument hears of the attempts that
        it makes. ``size`` is the number of bytes that it reads, if it may run a second time beside the first;
        else 0.
        """
        with self.granting:
            task = _PoolTask(size, function=function)
            future = task.future  # the task forgets it when it is settled, maybe before we return
            if self.scheduler.is_closing:
                future.cancel()
            else:
                self.scheduler.submit(task, deadline)
        return future

    def close(self, grace: float) -> None:
        """Cancel waiting tasks, let attempts end within ``grace`` seconds, and stop the threads."""
        with self.granting:
            waiting = self.scheduler.close()
            for _ in range(self._idle):
                self._granted.put(None)
            self._signals.put(False)
        for task in waiting:
            task.future.cancel()
        limit = time.monotonic() + grace
        for thread in list(self._threads):
            with suppress(RuntimeError):  # another thread is about to start it
                while thread.is_alive() and thread not in self.backing_off and time.monotonic() < limit:
                    thread.join(0.05)

    # Slots

    def grant(self, *, to_caller: bool = False) -> _PoolTask | None:
        """Grant free slots. With ``to_caller``, return the most urgent fresh task to the calling worker."""
        own, grant = None, self.scheduler.grant
        while (task := grant(to_caller or self._idle > 0 or self._workers < self._max_workers)) is not None:
            if task.granted is not None:
                task.granted.release()
            elif to_caller:
                own, to_caller = task, False
            else:
                self._granted.put(task)
                if self._idle:
                    self._idle -= 1
                else:
                    self._workers += 1
                    self._threads_to_start.append(self._work)
        return own

    # Threads

    def _start(self, target: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, name="energon-fetch", daemon=True)
        self._threads.add(thread)
        thread.start()

    def start_threads(self) -> None:
        """Start the threads that :meth:`grant` found necessary. Call it without the lock: ``start`` waits."""
        while self._threads_to_start:
            with suppress(IndexError):  # another thread took it
                self._start(self._threads_to_start.pop())

    def _work(self) -> None:
        task = self._granted.get()
        while task is not None:
            if task.future.running() or task.future.set_running_or_notify_cancel():
                self._run(_PoolRun(self, task))
            with self.lock:
                self.scheduler.release(task)
                task = self.grant(to_caller=True)
                waits = task is None and not self.scheduler.is_closing
                self._idle += waits
            self.start_threads()
            if waits:
                # An idle thread must keep neither a body nor its requester alive, so it holds no task here.
                task = self._granted.get()
        self._unregister()

    def _run(self, run: _PoolRun) -> None:
        task = run.task
        result = error = None
        self.backing_off.discard(threading.current_thread())
        try:
            result = task.function(run)
        except BaseException as raised:
            error = raised
        with self.lock:
            wins = self.scheduler.finish(run, error)
            if wins:  # the future is moved out, so that the other request does not keep the body alive
                future, task.future = task.future, PoolAnswer()
        if wins and error is None:
            future.set_result(result)
        elif wins:
            future.set_exception(task.error)

    def _second(self, task: _PoolTask) -> None:
        self._run(_PoolRun(self, task, is_second=True))
        with self.granting:
            if task.settled:  # the first request, if it still runs, goes on without a slot
                self.scheduler.release(task)
        self._unregister()

    def _unregister(self) -> None:
        with self.lock:
            self._threads.discard(threading.current_thread())
            self.backing_off.discard(threading.current_thread())

    # The watcher's thread repeats late requests. It sleeps until one can be late.

    def _wake(self, _look_at: float) -> None:
        if self._has_watcher:
            self._signals.put(True)
        else:
            self._has_watcher = True
            self._start(self._watch)

    def _watch(self) -> None:
        goes_on = True
        while goes_on:
            with self.lock:
                now = time.monotonic()
                look_at = self.scheduler.look(now)
            self.start_threads()
            with suppress(Empty):
                goes_on = self._signals.get(timeout=None if look_at == math.inf else max(0.0, look_at - now))
