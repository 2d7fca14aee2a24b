"""Range requests of one process: a bounded number in flight, the most urgent first."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

from energon_stream.errors import ConfigError
from energon_stream.storage.at_hand import get_at_hand
from energon_stream.storage.base import Body, ByteRange, Store
from energon_stream.storage.fork import PerProcess
from energon_stream.storage.request_pool import RequestPool

__all__ = ["Fetcher", "shared_fetcher"]

_EXIT_GRACE = 5.0  # seconds that requests in flight get to finish when the interpreter exits
_HEDGED_SHARE = 0.03

_T = TypeVar("_T")


class Fetcher:
    """Runs range requests on threads that are born as they are needed.

    A request that is late is sent a second time, and the first answer counts. While the store rejects
    many requests, fewer are in flight.

    Args:
        max_in_flight: Largest number of requests at one time. (Where a request is late or waits
            to be tried again, another takes its place; up to a third more may then be open.)
        hedged_share: Bytes that may be asked for a second time, as a share of all bytes asked for; 0
            switches second requests off.
    """

    def __init__(self, max_in_flight: int = 32, *, hedged_share: float = _HEDGED_SHARE) -> None:
        if max_in_flight < 1:
            raise ConfigError(f"max_in_flight is {max_in_flight}", hint="Use 1 or more.")
        if not 0 <= hedged_share <= 1:
            raise ConfigError(f"hedged_share is {hedged_share}", hint="Use 0 to 1.")
        self._pools = PerProcess(partial(RequestPool, max_in_flight, hedged_share))
        # Before atexit's callbacks: among those are the ones that close s3fs's sessions, after which a
        # request in flight never ends. (concurrent.futures waits for its threads by the same hook.)
        threading._register_atexit(self._drain)  # type: ignore[attr-defined]

    def submit(
        self, store: Store, path: str, byte_range: ByteRange, *, etag: str | None = None, deadline: int = 0
    ) -> Future[Body]:
        """Ask for a byte range.

        Args:
            store: Where to read; local stores answer within this call, and so do caches whose bytes are in memory.
            path: Path relative to the store.
            byte_range: The bytes.
            etag: Content version that the object must have.
            deadline: Requests with smaller numbers go first; equal ones in order of submission.

        Returns:
            The body to come. ``cancel()`` works until the request starts.
        """
        request = partial(store.get_range, path, byte_range, etag=etag)
        if store.is_local:
            return _answered(request)
        body = get_at_hand(store, path, byte_range, etag=etag)
        if body is not None:
            future: Future[Body] = Future()
            future.set_result(body)
            return future
        return self._pools.get().submit(request, deadline, len(byte_range))

    def call(
        self,
        function: Callable[[], _T],
        *,
        deadline: int = 0,
        inline: bool = False,
        repeatable_bytes: int = 0,
    ) -> Future[_T]:
        """Run any function that makes requests.

        Args:
            function: What to run.
            deadline: As in :meth:`submit`.
            inline: Whether to run it within this call.
            repeatable_bytes: About what it reads, where a second run beside a late first one does no harm; 0
                for a function that is never run twice.
        """
        return (
            _answered(function) if inline else self._pools.get().submit(function, deadline, repeatable_bytes)
        )

    def close(self) -> None:
        """Cancel what waits, let what runs end, and end the threads. It may be used again."""
        self._drain()
        self._pools.pop()

    def _drain(self) -> None:
        """Let requests in flight end before the interpreter goes; a thread in a client must not meet that."""
        self._pools.get().close(_EXIT_GRACE)


def _answered(function: Callable[[], _T]) -> Future[_T]:
    future: Future[_T] = Future()
    try:
        result = function()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
    return future


_DEFAULT_IN_FLIGHT = 48  # clients open a few more sockets than that; they stay below 64
_fetchers: PerProcess[Fetcher] = PerProcess()


def shared_fetcher(
    max_in_flight: int = _DEFAULT_IN_FLIGHT, *, hedged_share: float = _HEDGED_SHARE
) -> Fetcher:
    """The one fetcher of this process that has these options; not to be closed by one of its users."""
    return _fetchers.map(
        (max_in_flight, hedged_share), lambda: Fetcher(max_in_flight, hedged_share=hedged_share)
    )
