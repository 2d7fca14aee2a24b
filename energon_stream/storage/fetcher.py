"""Range requests of one process: a bounded number in flight, the most urgent first."""

from __future__ import annotations

import functools
import heapq
import itertools
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

from energon_stream.errors import ConfigError
from energon_stream.storage.base import Body, ByteRange, Store
from energon_stream.storage.fork import PerProcess

__all__ = ["Fetcher", "shared_fetcher"]

_EXIT_GRACE = 5.0  # seconds that requests in flight get to finish when the interpreter exits

_Job = tuple[int, int, "Future[Any]", Callable[[], Any]]
_T = TypeVar("_T")


class Fetcher:
    """Runs range requests on threads that are born as they are needed.

    Args:
        max_in_flight: Largest number of requests at one time, and of threads.
    """

    def __init__(self, max_in_flight: int = 32) -> None:
        if max_in_flight < 1:
            raise ConfigError(f"max_in_flight is {max_in_flight}", hint="Use 1 or more.")
        self._max_in_flight = max_in_flight
        self._reset()
        # Before atexit's callbacks: among those are the ones that close s3fs's sessions, after which a
        # request in flight never ends. (concurrent.futures waits for its threads by the same hook.)
        threading._register_atexit(self._drain)  # type: ignore[attr-defined]

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._jobs: list[_Job] = []
        # One token a job: SimpleQueue waits in C, a Condition would cost some 8 us more a request.
        self._tokens: SimpleQueue[bool] = SimpleQueue()
        self._order = itertools.count()
        self._threads: list[threading.Thread] = []
        self._unfinished = 0

    def submit(
        self, store: Store, path: str, byte_range: ByteRange, *, etag: str | None = None, deadline: int = 0
    ) -> Future[Body]:
        """Ask for a byte range.

        Args:
            store: Where to read; local stores answer within this call.
            path: Path relative to the store.
            byte_range: The bytes.
            etag: Content version that the object must have.
            deadline: Requests with smaller numbers go first; equal ones in order of submission.

        Returns:
            The body to come. ``cancel()`` works until the request starts.
        """
        return self.call(
            functools.partial(store.get_range, path, byte_range, etag=etag),
            deadline=deadline,
            inline=store.is_local,
        )

    def call(self, function: Callable[[], _T], *, deadline: int = 0, inline: bool = False) -> Future[_T]:
        """Run any function that makes requests.

        Args:
            function: What to run.
            deadline: As in :meth:`submit`.
            inline: Whether to run it within this call.
        """
        future: Future[_T] = Future()
        job: _Job = (deadline, next(self._order), future, function)
        if inline:
            _answer(job)
            return future
        if self._pid != os.getpid():  # the threads and requests of before the fork are the parent's
            self._reset()
        with self._lock:
            heapq.heappush(self._jobs, job)
            self._unfinished += 1
            if len(self._threads) < min(self._unfinished, self._max_in_flight):
                thread = threading.Thread(target=self._work, name="energon-fetch", daemon=True)
                self._threads.append(thread)
                thread.start()
        self._tokens.put(True)
        return future

    def close(self) -> None:
        """Cancel what waits, let what runs end, and end the threads. It may be used again."""
        self._drain()
        self._reset()

    def _work(self) -> None:
        while self._tokens.get():
            with self._lock:
                job = heapq.heappop(self._jobs)
            _answer(job)
            del job  # an idle thread must not keep a body alive
            with self._lock:
                self._unfinished -= 1

    def _drain(self) -> None:
        """Let requests in flight end before the interpreter goes; a thread in a client must not meet that."""
        if self._pid != os.getpid():
            return
        with self._lock:
            for job in self._jobs:
                job[2].cancel()
            threads = list(self._threads)
        for _ in threads:
            self._tokens.put(False)
        limit = time.monotonic() + _EXIT_GRACE
        for thread in threads:
            thread.join(max(0.0, limit - time.monotonic()))


def _answer(job: _Job) -> None:
    _, _, future, function = job
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


_DEFAULT_IN_FLIGHT = 48  # clients open a few more sockets than that; they stay below 64
_SHARED: PerProcess[dict[int, Fetcher]] = PerProcess(dict)


def shared_fetcher(max_in_flight: int = _DEFAULT_IN_FLIGHT) -> Fetcher:
    """The one fetcher of this process that has this limit; not to be closed by one of its users."""
    fetchers = _SHARED.get()
    if max_in_flight not in fetchers:
        fetchers[max_in_flight] = Fetcher(max_in_flight)
    return fetchers[max_in_flight]
