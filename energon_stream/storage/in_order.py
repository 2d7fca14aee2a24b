"""Results of work that runs ahead, in order and with a bounded number of results waiting."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from energon_stream.storage import ByteRange, Store, shared_fetcher
from energon_stream.threads import thread_errors

_T = TypeVar("_T")
_R = TypeVar("_R")

PIECE_BYTES = 8 << 20


def in_order(futures: Iterable[Future[_R]], limit: int) -> Generator[_R, None, None]:
    """Yield results in order. Takes a future, which starts it, while fewer than ``limit`` wait; closing the
    iterator cancels futures that have not begun.
    """
    waiting: deque[Future[_R]] = deque()
    try:
        for future in futures:
            waiting.append(future)
            if len(waiting) == limit:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


def ordered_map(function: Callable[[_T], _R], items: Iterable[_T], workers: int) -> Iterator[_R]:
    """Yield ``function(item)`` of each item, in order; ``workers`` threads run the function. The caller's
    thread takes the items, at most ``2 * workers`` ahead.

    If an item fails, no other is begun. After Ctrl-C, and if the caller stops early, the threads are not
    awaited.
    """
    pool = ThreadPoolExecutor(workers, thread_name_prefix="energon-prepare")
    wait = True
    try:
        with thread_errors():
            yield from in_order((pool.submit(function, item) for item in items), 2 * workers)
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        wait = False
        raise
    finally:
        pool.shutdown(wait=wait, cancel_futures=True)


def stream_object(
    store: Store, path: str, piece: int = PIECE_BYTES, *, etag: str | None = None
) -> Iterator[memoryview]:
    """Yield an object in pieces of ``piece`` bytes, all of the version ``etag``, or of the one at first.

    Raises ObjectNotFoundError if there is no such object, and ObjectChangedError if it was replaced.
    """
    meta = store.head(path)
    version = etag or meta.etag
    fetcher = shared_fetcher()
    requests = (
        fetcher.submit(store, path, ByteRange(start, min(start + piece, meta.size)), etag=version)
        for start in range(0, meta.size, piece)
    )
    for body in in_order(requests, 1 if store.is_local else 8):
        yield body.data
