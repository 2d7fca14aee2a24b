"""Latency and rate of a store, by the number of requests at one time."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass

from energon_stream.storage import Body, ByteRange, Fetcher, ListEntry, Store

IN_FLIGHT = (1, 4, 16, 64)
REQUEST_BYTES = 1 << 20
_LATENCY_REQUESTS = 10
_ENOUGH = 0.9
"""Share of the best rate that is good enough to need no more requests at one time."""


@dataclass(frozen=True, slots=True)
class SpeedOf:
    """Speed of a store at one number of concurrent requests."""

    in_flight: int  # requests at one time
    requests: int  # requests that were answered
    bytes_per_second: float  # bytes a second of all of them together
    seconds_a_request: float  # median time of one


def latency_of(store: Store, entry: ListEntry) -> float:
    """Return the median time of requests for one byte, one after another, in seconds."""
    times = []
    for number in range(_LATENCY_REQUESTS):
        start = number * entry.meta.size // _LATENCY_REQUESTS
        begin = time.perf_counter()
        store.get_range(entry.path, ByteRange(start, start + 1))
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def sweep(store: Store, entries: list[ListEntry], seconds: float) -> Iterator[SpeedOf]:
    """Measure the rate for each number of requests at one time, for `seconds` each."""
    for in_flight in IN_FLIGHT:
        ranges = _ranges(entries)
        fetcher = Fetcher(in_flight, hedged_share=0.0)
        try:
            yield _measure(store, fetcher, ranges, in_flight, seconds)
        finally:
            fetcher.close()


def _measure(
    store: Store, fetcher: Fetcher, ranges: Iterator[tuple[str, ByteRange]], in_flight: int, seconds: float
) -> SpeedOf:
    pending: deque[tuple[float, Future[Body]]] = deque()
    times, received = [], 0
    begin = time.perf_counter()

    def take() -> int:
        asked, answer = pending.popleft()
        size = len(bytes(answer.result().data))  # a local store maps files: the copy is what reads them
        times.append(time.perf_counter() - asked)
        return size

    while time.perf_counter() - begin < seconds:
        while len(pending) < in_flight:
            path, wanted = next(ranges)
            pending.append((time.perf_counter(), fetcher.submit(store, path, wanted)))
        received += take()
    while pending:
        received += take()
    took = time.perf_counter() - begin
    return SpeedOf(in_flight, len(times), received / took, statistics.median(times))


def _ranges(entries: list[ListEntry]) -> Iterator[tuple[str, ByteRange]]:
    """Yield ranges of the objects, again and again."""
    while True:
        for entry in entries:
            for start in range(0, entry.meta.size, REQUEST_BYTES):
                yield entry.path, ByteRange(start, min(entry.meta.size, start + REQUEST_BYTES))


def best_of(speeds: list[SpeedOf]) -> SpeedOf:
    """Return the speed with the fewest requests at one time that is nearly the best."""
    most = max(speed.bytes_per_second for speed in speeds)
    return next(speed for speed in speeds if speed.bytes_per_second >= _ENOUGH * most)
