"""How whoever runs a request hears of its single attempts, which the retry layer makes below it."""

from __future__ import annotations

import threading
from typing import Protocol

from energon_stream.storage.fork import PerProcess

__all__ = [
    "AnswerUnwanted",
    "AttemptListener",
    "attempt_listener",
    "is_answer_wanted",
    "release_slot",
    "listen",
]


class AnswerUnwanted(Exception):
    """Ends an attempt whose answer came in another way."""


class AttemptListener(Protocol):
    """Hears of every attempt that one thread makes at a remote store.

    Attributes:
        retries: Whether failed attempts are worth another one.
        hedged_bytes: Bytes that the attempts ask for a second time, 0 for those of their own.
    """

    retries: bool
    hedged_bytes: int

    def begin(self) -> None:
        """An attempt is about to start. May wait; an error raised here ends the request."""

    def answered(self) -> bool:
        """The first bytes of the answer are there; tells whether the rest is wanted. Not every store knows."""

    def end(self, error: BaseException | None) -> None:
        """The attempt is over."""

    def release_slot(self) -> None:
        """What this thread does next needs no connection; another attempt of it is still possible."""


# A child that is forked on a listened thread must not wake the parent's locks.
_threads = PerProcess(threading.local)


def attempt_listener() -> AttemptListener | None:
    """Who listens to this thread's attempts."""
    return getattr(_threads.get(), "listener", None)


def is_answer_wanted() -> bool:
    """Called by a store at the first bytes of an answer.

    Returns:
        False where the store should release_slot the rest, and raise :class:`AnswerUnwanted`.
    """
    listener = attempt_listener()
    return listener is None or listener.answered()


def release_slot() -> None:
    """Called by who has an answer and something to do with it that takes long, such as writing it to a disk."""
    listener = attempt_listener()
    if listener is not None:
        listener.release_slot()


def listen(listener: AttemptListener | None) -> None:
    """Let ``listener`` hear of the attempts that this thread makes from now on, until the next call; None for nobody."""
    _threads.get().listener = listener
