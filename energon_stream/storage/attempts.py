"""Base class of stores that report their attempts to the pool of requests, or have bytes at hand.

``RequestPool`` calls functions that make requests, and does not see the attempts that the retry layer makes
inside. So it gives them stores that report each attempt to a listener.
"""

from __future__ import annotations

import copy
from typing import Self, TypeVar

from energon_stream.storage.store import Body, ByteRange

StoreT = TypeVar("StoreT")


class AnswerUnwanted(Exception):
    """Ends an attempt because another request brought the answer first."""


class AttemptListener:
    """Hears of every attempt that one request makes at a remote store.

    This one is for requests outside a fetcher: attempts start at once, and every answer is wanted.
    """

    __slots__ = ()

    @property
    def hedged_bytes(self) -> int:
        """Bytes that the attempt requests a second time; 0 for a first request, which is retried."""
        return 0

    def begin(self) -> None:
        """Called before an attempt. It may wait; an error raised here ends the request."""

    def answered(self) -> bool:
        """Called by some stores at the first bytes of an answer. If this returns False, the store drops the
        connection and raises :class:`AnswerUnwanted`.
        """
        return True

    def end(self, error: BaseException | None) -> None:
        """Called after an attempt."""

    def release_slot(self) -> None:
        """Called when the request needs no connection for a while; it may make another attempt later."""


class ScheduledStore:
    """Base class of stores that report their attempts, or have some bytes at hand.

    Of a store without it, answers are read to the end even if a second request was faster.
    """

    _listener = AttemptListener()

    def with_listener(self, listener: AttemptListener) -> Self:
        """Return this store, reporting to ``listener``. It shares all else with this one."""
        heard = copy.copy(self)
        heard._listener = listener
        return heard

    def get_at_hand(self, path: str, byte_range: ByteRange, *, etag: str | None = None) -> Body | None:
        """Read a byte range if that needs neither a request nor the disk; else return None."""
        return None


def with_listener(store: StoreT, listener: AttemptListener) -> StoreT:
    """Return a store that reports to ``listener``; ``store`` itself if it cannot report."""
    return store.with_listener(listener) if isinstance(store, ScheduledStore) else store
