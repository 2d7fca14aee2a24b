"""Reading saved values. They come from files, so their types and sizes are checked before they are used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from energon_stream.errors import EnergonStreamError, SampleError, StateError

_HINT = "pass what save_state_rank() returned, or restore an earlier checkpoint"
MOST_COUNT = 1 << 48
"""Counters of states are smaller: the samples of a year at nine million a second. Sums fit in 64 bits."""


def damaged(problem: str, where: str | None = None) -> StateError:
    """Return the error for a damaged state."""
    return StateError(f"the state is damaged: {problem}", where=where, hint=_HINT)


def is_count(value: Any) -> bool:
    """Return True for a counter: an integer from 0 to :data:`MOST_COUNT`, and no bool."""
    return type(value) is int and 0 <= value < MOST_COUNT


def shown(value: Any) -> str:
    """Describe a value in a few characters, whatever its size."""
    if value is None or (type(value) is str and len(value) <= 20):
        return repr(value)
    if type(value) is int and abs(value) < 1 << 64:
        return str(value)
    size = f" of {len(value)}" if isinstance(value, (bytes, str, list, tuple, dict)) else ""
    return f"a {type(value).__name__}{size}"


@contextmanager
def reading(where: str | None = None) -> Iterator[None]:
    """Turn errors of reading a saved state, other than of stores and the configuration, into a StateError."""
    try:
        yield
    except StateError as error:
        if where is None or error.where is not None:
            raise
        raise type(error)(error.what, where=where, hint=error.hint) from error
    except Exception as error:
        if isinstance(error, (EnergonStreamError, OSError)) and not isinstance(error, SampleError):
            raise
        raise damaged(f"{type(error).__name__}: {error!s:.200}", where) from error
