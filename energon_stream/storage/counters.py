"""Counters of requests and bytes."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from energon_stream.storage.fork import PerProcess

_SUMS = ("bytes_received", "retries", "hedges", "hedged_bytes")


@dataclass(frozen=True, slots=True)
class CounterSnapshot:
    """Counts of storage requests at one moment.

    Subtract an earlier snapshot to get the counts in between; add snapshots of several processes.

    Attributes:
        requests: Attempts by kind: ``get``, ``head``, ``list``, ``put``, ``delete``.
        bytes_received: Payload bytes of successful reads.
        retries: Attempts that followed a transient fault.
        errors: Failed attempts by name of the error class.
        max_in_flight: Largest number of attempts at one time since the process started. A difference keeps
            the later value, a sum the larger one.
        hedges: Second requests beside late ones. They count as ``requests``, and not as ``retries``.
        hedged_bytes: Bytes that these requested again.

    Example:
        >>> before = CounterSnapshot({"get": 2}, bytes_received=100)
        >>> after = CounterSnapshot({"get": 5, "head": 1}, bytes_received=700)
        >>> (after - before).requests, (after - before).bytes_received
        ({'get': 3, 'head': 1}, 600)
        >>> after.total_requests
        6
    """

    requests: Mapping[str, int] = field(default_factory=dict)
    bytes_received: int = 0
    retries: int = 0
    errors: Mapping[str, int] = field(default_factory=dict)
    max_in_flight: int = 0
    hedges: int = 0
    hedged_bytes: int = 0

    @property
    def total_requests(self) -> int:
        """Attempts of all kinds."""
        return sum(self.requests.values())

    def __add__(self, other: CounterSnapshot) -> CounterSnapshot:
        return self._plus(other, 1, max(self.max_in_flight, other.max_in_flight))

    def __sub__(self, earlier: CounterSnapshot) -> CounterSnapshot:
        return self._plus(earlier, -1, self.max_in_flight)

    def _plus(self, other: CounterSnapshot, sign: int, max_in_flight: int) -> CounterSnapshot:
        sums = {name: getattr(self, name) + sign * getattr(other, name) for name in _SUMS}
        requests = _sum(self.requests, other.requests, sign)
        errors = _sum(self.errors, other.errors, sign)
        return CounterSnapshot(requests=requests, errors=errors, max_in_flight=max_in_flight, **sums)


def _sum(counts: Mapping[str, int], others: Mapping[str, int], sign: int) -> dict[str, int]:
    sums = {name: counts.get(name, 0) + sign * others.get(name, 0) for name in {**counts, **others}}
    return {name: count for name, count in sums.items() if count}


class StorageCounters:
    """Thread-safe counters of storage requests."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        self._sums = dict.fromkeys(_SUMS, 0)
        self._in_flight = self._max_in_flight = 0

    def begin(self, kind: str, *, is_retry: bool, hedged_bytes: int = 0) -> None:
        """Count the start of an attempt, which requests ``hedged_bytes`` again if it is a second request."""
        with self._lock:
            self._requests[kind] += 1
            self._sums["retries"] += is_retry
            if hedged_bytes:
                self._sums["hedges"] += 1
                self._sums["hedged_bytes"] += hedged_bytes
            self._in_flight += 1
            if self._in_flight > self._max_in_flight:
                self._max_in_flight = self._in_flight

    def end(self, *, received: int = 0, error: BaseException | None = None) -> None:
        """Count the end of an attempt."""
        with self._lock:
            self._in_flight -= 1
            self._sums["bytes_received"] += received
            if error is not None:
                self._errors[type(error).__name__] += 1

    def snapshot(self) -> CounterSnapshot:
        with self._lock:
            return CounterSnapshot(
                requests=dict(self._requests),
                errors=dict(self._errors),
                max_in_flight=self._max_in_flight,
                **self._sums,
            )


_counters = PerProcess(StorageCounters)


def default_counters() -> StorageCounters:
    """Return the counters of this process; a forked child starts at zero."""
    return _counters.get()
