"""Fetches into a cache, many requests at a time; their bytes are dropped as soon as they are kept."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue

from energon_stream.cache.blocks import BlockCache
from energon_stream.prewarming.requests import Request, store_of
from energon_stream.storage import Fetcher

__all__ = ["Filled", "Verified", "fill", "look", "read_back"]

_BESIDE_BYTES = 64 << 10
"""What a range takes on disk beside its bytes, rather more than less."""

_QUEUED = 8
"""Requests that are planned ahead, for each that may be in flight: work for while the next window is planned."""


@dataclass(slots=True)
class Filled:
    """What was fetched.

    Attributes:
        bytes: Bytes that are kept.
        requests: Requests for them.
        first_left: The smallest turn of what the cache did not take; None if it took all.
    """

    bytes: int = 0
    requests: int = 0
    first_left: int | None = None

    def leave(self, turn: int) -> None:
        """Something was not taken."""
        self.first_left = turn if self.first_left is None else min(turn, self.first_left)


def fill(
    windows: Iterable[list[Request]],
    caches: Collection[BlockCache],
    fetcher: Fetcher,
    in_flight: int,
    held_bytes: int,
    room: Callable[[BlockCache], int | None],
    on_bytes: Callable[[int], object],
) -> Filled:
    """Fetch what is missing until all is there, or no cache takes more.

    Args:
        windows: What to fetch, from stores with a cache; the next window is planned while the last one is fetched.
        caches: All caches of these.
        fetcher: Runs the requests.
        in_flight: How many it runs at a time.
        held_bytes: How many may be in memory, or on their way there, at a time: more than are in flight, because some
            are being written.
        room: Bytes of disk that may be taken in a cache; None for any number.
        on_bytes: Told how many bytes came.

    Raises:
        StorageError: Something could not be fetched. What came is kept.
    """
    found = Filled()
    memory = _Memory(held_bytes)
    pending: dict[Future[bool], Request] = {}
    done: SimpleQueue[Future[bool]] = SimpleQueue()
    taken = Counter[BlockCache]()
    full: set[BlockCache] = set()

    def settle() -> None:
        future = done.get()
        request = pending.pop(future)
        if future.cancelled() or not future.result():
            found.leave(request.turn)
            full.add(store_of(request).cache)
            for other, its in pending.items():  # what has begun may find room, nothing else is worth trying
                if store_of(its).cache in full:
                    other.cancel()
            return
        found.bytes += len(request.bytes)
        found.requests += 1
        on_bytes(len(request.bytes))

    counted = ExitStack()
    try:
        for cache in caches:
            counted.enter_context(cache.filling())
        for number, request in enumerate(request for window in windows for request in window):
            while len(pending) >= _QUEUED * in_flight:
                settle()
            cache, size = store_of(request).cache, len(request.bytes) + _BESIDE_BYTES
            left = room(cache)
            if cache in full or (left is not None and taken[cache] + size > left):
                full.add(cache)
                found.leave(request.turn)
                if full.issuperset(caches):
                    break
                continue
            future = fetcher.call(partial(_fetch, request, memory), deadline=number)
            pending[future] = request
            taken[cache] += size
            future.add_done_callback(done.put)
        while pending:
            settle()
    finally:
        for future in list(pending):
            future.cancel()
        counted.close()
    return found


def _fetch(request: Request, memory: _Memory) -> bool:
    """Fetch some bytes; False where the cache does not take them."""
    with memory.taken(len(request.bytes)):
        return store_of(request).keep(request.path, request.bytes)


class _Memory:
    """Bytes that threads may take, first come, first served; one that wants more than there are gets all of them."""

    def __init__(self, size: int) -> None:
        self._size = self._free = size
        self._turn = threading.Lock()  # so that only one waits for bytes
        self._more = threading.Condition()

    @contextmanager
    def taken(self, size: int) -> Iterator[None]:
        """Take bytes, and give them back."""
        size = min(size, self._size)
        with self._turn, self._more:
            while self._free < size:
                self._more.wait()
            self._free -= size
        try:
            yield
        finally:
            with self._more:
                self._free += size
                self._more.notify()


def look(windows: Iterable[list[Request]]) -> Filled:
    """What :func:`fill` would leave if it fetched nothing."""
    found = Filled()
    for window in windows:
        for request in window:
            found.leave(request.turn)
    return found


@dataclass(slots=True)
class Verified:
    """What was read back: bytes that have the right hash, and bytes that have not."""

    right: int = 0
    wrong: int = 0


def read_back(pieces: Iterable[Request], on_bytes: Callable[[int], object]) -> Verified:
    """Read back what is in the cache; every byte is compared with its hash. What is wrong is taken out."""
    found = Verified()
    for piece in pieces:
        store = store_of(piece)
        cache, identity = store.cache, store.identify(piece.path)
        start, stop = piece.bytes.start, piece.bytes.stop
        if identity is None or cache.missing(identity, start, stop):
            continue
        if cache.read(identity, start, stop) is None:
            found.wrong += stop - start
        else:
            found.right += stop - start
        on_bytes(stop - start)
    return found
