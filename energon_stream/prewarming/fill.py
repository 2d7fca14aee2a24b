"""Fetches into a cache, many requests at a time; their bytes are dropped as soon as they are kept."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from queue import SimpleQueue

from energon_stream.cache import BlockCache
from energon_stream.prewarming.planner import PlannedFetch, store_of
from energon_stream.storage import ByteRange, Fetcher

__all__ = ["Filled", "Verified", "fill", "look", "read_back"]

_BESIDE_BYTES = 64 << 10
"""What a range takes on disk beside its bytes, rather more than less."""

_LEAST_BYTES = 1 << 20
"""What requests are cut to in the end; smaller ones would mostly wait for their first byte."""

_QUEUED = 8
"""FetchPlanner that are planned ahead, for each that may be in flight: work for while the next window is planned."""


@dataclass(slots=True)
class Filled:
    """What was fetched.

    Attributes:
        bytes: Bytes that are kept.
        requests: FetchPlanner for them.
        first_left: The smallest turn of what the cache did not take; None if it took all.
    """

    bytes: int = 0
    requests: int = 0
    first_left: int | None = None

    def leave(self, turn: int) -> None:
        """Something was not taken."""
        self.first_left = turn if self.first_left is None else min(turn, self.first_left)


def fill(
    windows: Iterable[list[PlannedFetch]],
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
    filling = _Filling(fetcher, in_flight, held_bytes, on_bytes)
    full, taken = filling.full, Counter[BlockCache]()
    counted = ExitStack()
    try:
        for cache in caches:
            counted.enter_context(cache.filling())
        for request in (request for window in windows for request in window):
            filling.settle(_QUEUED * in_flight - 1)
            cache, size = store_of(request).cache, len(request.bytes) + _BESIDE_BYTES
            left = room(cache)
            if cache in full or (left is not None and taken[cache] + size > left):
                full.add(cache)
                filling.found.leave(request.turn)
                if full.issuperset(caches):
                    break
                continue
            filling.begin(request)
            taken[cache] += size
        filling.settle(in_flight + in_flight // 2)
        filling.cut_rest()
        filling.settle(0)
    finally:
        filling.cancel()
        counted.close()
    return filling.found


class _Filling:
    """FetchPlanner under way, and what came of those that are not.

    Attributes:
        found: What came.
        full: Caches that took no more.
    """

    def __init__(
        self, fetcher: Fetcher, in_flight: int, held_bytes: int, on_bytes: Callable[[int], object]
    ) -> None:
        self.found = Filled()
        self.full: set[BlockCache] = set()
        self._fetcher = fetcher
        self._in_flight = in_flight
        self._memory = _Memory(held_bytes)
        self._on_bytes = on_bytes
        self._begun = 0
        self._pending: dict[Future[bool], PlannedFetch] = {}
        self._done: SimpleQueue[Future[bool]] = SimpleQueue()

    def begin(self, request: PlannedFetch) -> None:
        """Ask for it, after all others."""
        future = self._fetcher.call(partial(_fetch, request, self._memory), deadline=self._begun)
        self._begun += 1
        self._pending[future] = request
        future.add_done_callback(self._done.put)

    def settle(self, pending: int) -> None:
        """Wait until no more than so many requests are under way.

        Raises:
            StorageError: One failed.
        """
        while len(self._pending) > pending:
            future = self._done.get()
            if (request := self._pending.pop(future, None)) is None:  # it was cut
                continue
            if future.cancelled() or not future.result():
                self._leave(request)
                continue
            self.found.bytes += len(request.bytes)
            self.found.requests += 1
            self._on_bytes(len(request.bytes))

    def _leave(self, request: PlannedFetch) -> None:
        self.found.leave(request.turn)
        self.full.add(store_of(request).cache)
        for other, its in self._pending.items():  # what has begun may find room, nothing else is worth trying
            if store_of(its).cache in self.full:
                other.cancel()

    def cut_rest(self) -> None:
        """Make smaller requests of those that have not begun, so that the last ones end at about the same time.

        (Otherwise connections idle while the last ones are fetched, half of the time of a request as a mean. The
        guided self-scheduling of Polychronopoulos and Kuck, 1987, in one step.)
        """
        wanted = [future for future, its in self._pending.items() if store_of(its).cache not in self.full]
        rest = [self._pending.pop(future) for future in wanted if future.cancel()]
        share = sum(len(request.bytes) for request in rest) // (2 * self._in_flight)
        size = max(_LEAST_BYTES, share)
        for request in rest:
            start, length = request.bytes.start, len(request.bytes)
            count = max(1, round(length / size))
            bounds = [start + length * n // count for n in range(count + 1)]
            for bytes_ in map(ByteRange, bounds, bounds[1:]):
                self.begin(replace(request, bytes=bytes_))

    def cancel(self) -> None:
        """Begin no more of them."""
        for future in list(self._pending):
            future.cancel()


def _fetch(request: PlannedFetch, memory: _Memory) -> bool:
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


def look(windows: Iterable[list[PlannedFetch]]) -> Filled:
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


def read_back(pieces: Iterable[PlannedFetch], on_bytes: Callable[[int], object]) -> Verified:
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
