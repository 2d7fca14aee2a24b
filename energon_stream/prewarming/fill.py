"""Fetches into a cache, many at a time. The bytes are dropped as soon as the cache has them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from queue import SimpleQueue

from energon_stream.cache import BlockCache
from energon_stream.cache.cached_store import CachedStore
from energon_stream.prewarming.fetch_planner import REQUEST_BYTES, PlannedFetch, store_of
from energon_stream.storage import ByteRange, Fetcher

LEAST_BYTES = 1 << 20  # of the last fetches; smaller ones would mostly wait for their first byte
_OVERHEAD_BYTES = 64 << 10  # disk space of a range beside its bytes, rather more than less
_QUEUED = 8  # fetches to queue for each one in flight: work while the next window is planned


@dataclass(slots=True)
class Filled:
    """Bytes fetched and kept, and the requests for them."""

    bytes: int = 0
    requests: int = 0
    first_left: int | None = None  # smallest position of a fetch that was not made; None if all were

    def leave(self, position: int) -> None:
        """Note that a fetch was not made."""
        self.first_left = position if self.first_left is None else min(position, self.first_left)


def fill(
    windows: Iterable[list[PlannedFetch]],
    caches: Collection[BlockCache],
    fetcher: Fetcher,
    in_flight: int,
    held_bytes: int,
    room: Callable[[BlockCache], int | None],
    on_bytes: Callable[[int], object],
) -> Filled:
    """Fetch until the caches have everything, or none takes more. The next window is planned meanwhile.

    ``held_bytes`` may be in memory at a time: more than those in flight, because some are being written.
    ``room`` returns the disk space that may be taken in a cache, None for any. ``on_bytes`` gets the size of
    each finished fetch. Raises StorageError if one failed; the caches keep what was fetched.
    """
    # No fetch is larger, so this many fit in memory.
    memory = threading.Semaphore(max(1, held_bytes // REQUEST_BYTES))
    filling = _Filling(fetcher, in_flight, memory, on_bytes)
    full, taken = filling.full, Counter[BlockCache]()
    with ExitStack() as stack:
        for cache in caches:
            stack.enter_context(cache.filling())
        stack.callback(filling.cancel)
        for fetch in (fetch for window in windows for fetch in window):
            filling.settle(_QUEUED * in_flight - 1)
            cache, size = store_of(fetch).cache, len(fetch.bytes) + _OVERHEAD_BYTES
            left = room(cache)
            if cache in full or (left is not None and taken[cache] + size > left):
                full.add(cache)
                filling.found.leave(fetch.position)
                if full.issuperset(caches):
                    break
                continue
            filling.begin(fetch)
            taken[cache] += size
        filling.settle(in_flight + in_flight // 2)
        filling.cut_rest()
        filling.settle(0)
    return filling.found


@dataclass(slots=True, eq=False)
class _Filling:
    """Fetches in flight, the outcome of the finished ones, and the caches that took no more."""

    fetcher: Fetcher
    in_flight: int
    memory: threading.Semaphore
    on_bytes: Callable[[int], object]
    found: Filled = field(default_factory=Filled)
    full: set[BlockCache] = field(default_factory=set)
    _begun: int = 0
    _pending: dict[Future[bool], PlannedFetch] = field(default_factory=dict)
    _done: SimpleQueue[Future[bool]] = field(default_factory=SimpleQueue)

    def begin(self, fetch: PlannedFetch) -> None:
        """Queue a fetch after all others."""

        def request(store: CachedStore) -> bool:  # whether the cache takes the bytes
            with self.memory:
                return store.keep(fetch.path, fetch.bytes)

        future = self.fetcher.ask(store_of(fetch), request, deadline=self._begun)
        self._begun += 1
        self._pending[future] = fetch
        future.add_done_callback(self._done.put)

    def settle(self, pending: int) -> None:
        """Wait until at most ``pending`` fetches are not finished. Raises the error of one that failed."""
        while len(self._pending) > pending:
            future = self._done.get()
            if (fetch := self._pending.pop(future, None)) is None:  # it was cut
                continue
            if future.cancelled() or not future.result():
                self._leave(fetch)
                continue
            self.found.bytes += len(fetch.bytes)
            self.found.requests += 1
            self.on_bytes(len(fetch.bytes))

    def _leave(self, fetch: PlannedFetch) -> None:
        self.found.leave(fetch.position)
        self.full.add(store_of(fetch).cache)
        for future, other in self._pending.items():  # fetches in flight may still find room
            if store_of(other).cache in self.full:
                future.cancel()

    def cut_rest(self) -> None:
        """Cut the fetches that have not begun into smaller ones, so that all end at about the same time.

        Otherwise connections idle while the last ones finish, on average for half of a fetch. This is one
        step of guided self-scheduling (Polychronopoulos and Kuck, 1987).
        """
        wanted = [future for future, fetch in self._pending.items() if store_of(fetch).cache not in self.full]
        rest = [self._pending.pop(future) for future in wanted if future.cancel()]
        size = max(LEAST_BYTES, sum(len(fetch.bytes) for fetch in rest) // (2 * self.in_flight))
        for fetch in rest:
            start, length = fetch.bytes.start, len(fetch.bytes)
            count = max(1, round(length / size))
            bounds = [start + length * n // count for n in range(count + 1)]
            for bytes_ in map(ByteRange, bounds, bounds[1:]):
                self.begin(replace(fetch, bytes=bytes_))

    def cancel(self) -> None:
        """Cancel the fetches that have not begun."""
        for future in list(self._pending):
            future.cancel()


def read_back(wanted: Iterable[PlannedFetch], on_bytes: Callable[[int], object]) -> tuple[int, int]:
    """Read cached bytes; return how many had the right hash, and how many a wrong one and were removed."""
    verified = damaged = 0
    for each in wanted:
        store, start, stop = store_of(each), each.bytes.start, each.bytes.stop
        identity = store.identify(each.path)
        if identity is None or store.cache.missing(identity, start, stop):
            continue
        if store.cache.read(identity, start, stop) is None:
            damaged += stop - start
        else:
            verified += stop - start
        on_bytes(stop - start)
    return verified, damaged
