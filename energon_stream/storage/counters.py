"""Counters of requests and bytes."""

from __future__ import annotations

import operator
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from energon_stream.fork import PerProcess


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
        reads: Successful reads.
        read_seconds: Seconds from begin to end of each of these, added up.
        squared_bytes: Squares of their sizes, added up.
        byte_seconds: Products of their sizes and seconds, added up.
        reasons: Range requests for samples, by the reason why each ends where it does.

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
    reads: int = 0
    read_seconds: float = 0.0
    squared_bytes: float = 0.0
    byte_seconds: float = 0.0
    reasons: Mapping[str, int] = field(default_factory=dict)

    @property
    def latency(self) -> float:
        """Seconds of a read that do not depend on its size: a line fitted through sizes and durations."""
        spread = self.reads * self.squared_bytes - self.bytes_received**2
        if self.reads < 2 or spread <= 0:
            return self.read_seconds / self.reads if self.reads else 0.0
        slope = (self.reads * self.byte_seconds - self.bytes_received * self.read_seconds) / spread
        latency = (self.read_seconds - slope * self.bytes_received) / self.reads
        return min(max(latency, 0.0), self.read_seconds / self.reads)

    @property
    def total_requests(self) -> int:
        """Attempts of all kinds."""
        return sum(self.requests.values())

    def __add__(self, other: Self) -> Self:
        return self._combined(operator.add, other, max(self.max_in_flight, other.max_in_flight))

    def __sub__(self, earlier: Self) -> Self:
        return self._combined(operator.sub, earlier, self.max_in_flight)

    def _combined(self, combine: Callable[[Any, Any], Any], right: Self, max_in_flight: int) -> Self:
        values: dict[str, Any] = {}
        for each in fields(self):
            one, other = getattr(self, each.name), getattr(right, each.name)
            if isinstance(one, Mapping):  # the operators of Counter leave zeros out
                values[each.name] = dict(combine(Counter(one), Counter(other)))
            else:
                values[each.name] = combine(one, other)
        return replace(self, **values | {"max_in_flight": max_in_flight})


class StorageCounters:
    """Thread-safe counters of storage requests."""

    def __init__(self) -> None:
        self.changes: int = 0  # to notice one without a snapshot
        # Reentrant: the collector may close a loader, which counts, in a thread that holds the lock.
        self._lock = threading.RLock()
        # By name of the snapshot's attribute: sums, and counts by kind, error and reason.
        self._sums: defaultdict[str, Any] = defaultdict(int)
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._in_flight = self._max_in_flight = 0

    def begin(self, kind: str, *, is_retry: bool, hedged_bytes: int = 0) -> None:
        """Count the start of an attempt, which requests ``hedged_bytes`` again if it is a second request."""
        with self._lock:
            self.changes += 1
            self._counts["requests"][kind] += 1
            self._sums["retries"] += is_retry
            self._sums["hedges"] += hedged_bytes > 0
            self._sums["hedged_bytes"] += hedged_bytes
            self._in_flight += 1
            self._max_in_flight = max(self._max_in_flight, self._in_flight)

    def end(self, *, received: int = 0, seconds: float = 0.0, error: BaseException | None = None) -> None:
        """Count the end of an attempt, which received ``received`` bytes in ``seconds``."""
        sums = self._sums
        with self._lock:
            self.changes += 1
            self._in_flight -= 1
            if received:
                sums["bytes_received"] += received
                sums["reads"] += 1
                sums["read_seconds"] += seconds
                sums["squared_bytes"] += float(received) ** 2
                sums["byte_seconds"] += received * seconds
            if error is not None:
                self._counts["errors"][type(error).__name__] += 1

    def plan(self, reason: str) -> None:
        """Count a range request that was made for samples."""
        with self._lock:
            self._counts["reasons"][reason] += 1

    def snapshot(self) -> CounterSnapshot:
        with self._lock:
            counts: dict[str, Any] = {name: dict(found) for name, found in self._counts.items()}
            return CounterSnapshot(**counts, **self._sums, max_in_flight=self._max_in_flight)


_counters = PerProcess(StorageCounters)


def default_counters() -> StorageCounters:
    """Return the counters of this process; a forked child starts at zero."""
    return _counters.get()
