"""Range requests of one process: a bounded number in flight, the most urgent first."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from energon_stream.errors import ConfigError
from energon_stream.fork import PerProcess
from energon_stream.storage.attempts import ScheduledStore, with_listener
from energon_stream.storage.request_pool import PoolAnswer, RequestPool
from energon_stream.storage.request_scheduler import RequestScheduler
from energon_stream.storage.store import Body, ByteRange, Store

HEDGED_SHARE = 0.03

_T = TypeVar("_T")
StoreT = TypeVar("StoreT", bound="Store")


class Fetcher:
    """Runs range requests on threads, which are started as they are needed.

    At most ``max_in_flight`` are in flight at a time, and fewer while the store rejects many. (While one is
    late or waits for its next attempt, the next may start, so up to a third more can be open.) A late request
    is sent a second time, and the first answer counts; ``hedged_share`` is the share of all bytes that may be
    requested so, 0 for none. A fetcher may be used after a fork: the child gets threads of its own.

    Raises ConfigError if an argument is out of range.

    Example:
        >>> from energon_stream.storage import ByteRange, Fetcher, StoreSpec
        >>> store = StoreSpec("s3://data/captions/.nv-meta").open()
        >>> fetcher = Fetcher(max_in_flight=4)
        >>> future = fetcher.submit(store, "dataset.yaml", ByteRange(0, 11))
        >>> bytes(future.result().data)
        b'sample_type'
        >>> fetcher.close()
    """

    def __init__(self, max_in_flight: int = 32, *, hedged_share: float = HEDGED_SHARE) -> None:
        if max_in_flight < 1:
            raise ConfigError(f"max_in_flight is {max_in_flight}", hint="Use 1 or more.")
        if not 0 <= hedged_share <= 1:
            raise ConfigError(f"hedged_share is {hedged_share}", hint="Use 0 to 1.")
        self._pools = PerProcess(partial(RequestPool, max_in_flight, hedged_share))
        # The hook runs before atexit's callbacks, one of which closes s3fs's sessions: a request in flight
        # would then never end. (concurrent.futures waits for its threads by the same hook.)
        threading._register_atexit(self._drain)  # type: ignore[attr-defined]

    def submit(
        self, store: Store, path: str, byte_range: ByteRange, *, etag: str | None = None, deadline: int = 0
    ) -> Future[Body]:
        """Request a byte range; ``cancel()`` works until the request starts.

        Local stores, and caches with the bytes in memory, answer within this call. Requests with a smaller
        ``deadline`` go first; equal ones in order of submission.
        """
        if isinstance(store, ScheduledStore):
            body = store.get_at_hand(path, byte_range, etag=etag)
            if body is not None:
                return _answered(lambda: body)
        request: Callable[[Store], Body] = lambda store: store.get_range(path, byte_range, etag=etag)  # noqa: E731
        return self.ask(store, request, deadline=deadline, repeatable_bytes=len(byte_range))

    def ask(
        self,
        store: StoreT,
        request: Callable[[StoreT], _T],
        *,
        deadline: int = 0,
        repeatable_bytes: int = 0,
    ) -> Future[_T]:
        """Make requests to a store, and return what ``request`` returns. It runs within this call if the
        store is local.

        Args:
            store: Store to read.
            request: Called with a store that reads like ``store``, and reports its attempts to the fetcher.
            deadline: As in :meth:`submit`.
            repeatable_bytes: About how many bytes ``request`` reads, if a second run beside a late first one
                does no harm; 0 if it must not run twice.
        """
        if store.is_local:
            return _answered(lambda: request(store))
        return self._pools.get().submit(
            lambda listener: request(with_listener(store, listener)), deadline, repeatable_bytes
        )

    def call(self, function: Callable[[], _T]) -> Future[_T]:
        """Run any function; it has a slot until it returns."""
        return self._pools.get().submit(lambda _: function(), 0, 0)

    @property
    def scheduler(self) -> RequestScheduler[Any]:
        """Scheduler of this process's requests, with what it knows of the store."""
        return self._pools.get().scheduler

    @property
    def latency(self) -> float:
        """Seconds to the first byte of the fastest of the latest answers; 0 without any."""
        return self.scheduler.latency

    @property
    def pace(self) -> float:
        """Seconds that a byte of an answer took, after the first ones, at best; 0 while that is unknown."""
        return self.scheduler.pace

    def close(self) -> None:
        """Cancel waiting requests, let those in flight end, and stop the threads. It may be used again."""
        self._drain()
        self._pools.pop()

    def _drain(self) -> None:
        """Let requests in flight end: a thread inside a client must not outlive the interpreter."""
        self._pools.get().close(grace=5.0)


def abandon(answer: Future[Any]) -> None:
    """Do not try a request again if it fails: its answer is not needed any more."""
    if isinstance(answer, PoolAnswer):
        answer.unwanted = True


def _answered(function: Callable[[], _T]) -> Future[_T]:
    future: Future[_T] = Future()
    try:
        result = function()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
    return future


_fetchers: PerProcess[Fetcher] = PerProcess()


def shared_fetcher(max_in_flight: int = 64, *, hedged_share: float = HEDGED_SHARE) -> Fetcher:
    """Return the one fetcher of this process with these options. Do not close it: others use it too.

    Opening and reading share one, which so knows the store's latency and rejections when reading begins.
    """
    return _fetchers.map(
        (max_in_flight, hedged_share), lambda: Fetcher(max_in_flight, hedged_share=hedged_share)
    )
