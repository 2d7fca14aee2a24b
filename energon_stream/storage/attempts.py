"""Callbacks from the retry layer, and from stores, to the scheduler of a request.

The scheduler (``RequestPool``) runs a function on a thread, and does not see the attempts that the retry
layer makes inside. It registers a listener for the thread, which hears of each attempt.
"""

from __future__ import annotations

import threading

from energon_stream.storage.fork import PerProcess


class AnswerUnwanted(Exception):
    """Ends an attempt because another request brought the answer first."""


class AttemptListener:
    """Hears of every attempt that one thread makes at a remote store.

    This one is for requests outside a fetcher: attempts start at once, and every answer is wanted.
    """

    __slots__ = ()
    retries: bool = True  # whether failed attempts are retried
    hedged_bytes: int = 0  # bytes that the attempts request a second time; 0 for a first request

    def begin(self) -> None:
        """Called before an attempt. It may wait; an error raised here ends the request."""

    def answered(self) -> bool:
        """Called by some stores at the first bytes of an answer. Returns whether the rest is wanted."""
        return True

    def end(self, error: BaseException | None) -> None:
        """Called after an attempt."""

    def release_slot(self) -> None:
        """Called when the thread needs no connection for a while; it may make another attempt later."""


class _Thread(threading.local):
    listener = AttemptListener()


# A child that is forked on a thread with a listener must not release the parent's locks.
_threads = PerProcess(_Thread)


def attempt_listener() -> AttemptListener:
    """Return this thread's listener."""
    return _threads.get().listener


def listen(listener: AttemptListener) -> None:
    """Set this thread's listener."""
    _threads.get().listener = listener


def is_answer_wanted() -> bool:
    """Tell a store, at the first bytes of an answer, whether to read on. If not, the store drops the
    connection and raises :class:`AnswerUnwanted`.
    """
    return attempt_listener().answered()


def release_slot() -> None:
    """Let other requests start while this thread does slow work, such as writing its answer to a disk."""
    attempt_listener().release_slot()
