"""Doing things at the same time without having all of them at the same time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

__all__ = ["ordered_map"]

_T = TypeVar("_T")
_R = TypeVar("_R")


def ordered_map(function: Callable[[_T], _R], items: Iterable[_T], workers: int) -> Iterator[_R]:
    """Results in the order of the items, with few waiting; items are taken by the caller's thread."""
    pool = ThreadPoolExecutor(workers, thread_name_prefix="energon-prepare")
    waiting: deque[Future[_R]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) == 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
