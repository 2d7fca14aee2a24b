"""Bounds the memory of answers that are made at the same time, and ends answers whose reader has left."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar

from energon_stream.errors import ConfigError

CLIENT_LEFT: ContextVar[threading.Event | None] = ContextVar("CLIENT_LEFT", default=None)
"""Set when the client of the request has left."""


def check_client() -> None:
    """Raise ConfigError if the client of the request has left, so that its answer is in vain."""
    left = CLIENT_LEFT.get()
    if left is not None and left.is_set():
        raise ConfigError("the client has left", hint="ask again")


class MemoryBudget:
    """Bytes that threads may take together. A thread that wants more than all waits until it is alone.

    Example:
        >>> budget = MemoryBudget(100)
        >>> with budget.taken(60), budget.taken(40):
        ...     budget.free
        0
    """

    def __init__(self, size: int) -> None:
        self.free: int = size  # bytes that nobody has taken
        self.size: int = size
        self._changed = threading.Condition()

    @contextmanager
    def taken(self, amount: int) -> Iterator[None]:
        """Take bytes for a block, as soon as they are free. Raises ConfigError if the client leaves."""
        amount = min(amount, self.size)
        with self._changed:
            while not self._changed.wait_for(lambda: self.free >= amount, 0.2):
                check_client()
            self.free -= amount
        try:
            check_client()
            yield
        finally:
            with self._changed:
                self.free += amount
                self._changed.notify_all()


ANSWERS = MemoryBudget(512 << 20)
"""Of all answers of the process."""


def return_large_blocks() -> None:
    """Let freed pictures go back to the system: otherwise each thread keeps the memory of its largest one."""
    with suppress(AttributeError, OSError, TypeError):  # a C library without mallopt
        ctypes.CDLL(None).mallopt(-3, 1 << 20)  # M_MMAP_THRESHOLD of glibc's malloc.h
