"""The error of a system that starts no more threads, as an error of this library."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from energon_stream.errors import ConfigError


@contextmanager
def thread_errors(where: str | None = None) -> Iterator[None]:
    """Raise ConfigError in place of Python's ``RuntimeError: can't start new thread``.

    Args:
        where: What the threads are for, for the message.
    """
    try:
        yield
    except RuntimeError as error:
        if "can't start new thread" not in str(error) or isinstance(error, ConfigError):
            raise
        raise ConfigError(
            "the system starts no more threads",
            where=where,
            hint="raise its limit (`ulimit -u`, or pids of the container), or use fewer workers",
        ) from error
