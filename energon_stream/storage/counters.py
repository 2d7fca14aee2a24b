"""Counts of what went over the wire."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from energon_stream.storage.fork import PerProcess

__all__ = ["CounterSnapshot", "StorageCounters", "default_counters"]


@dataclass(frozen=True, slots=True)
class CounterSnapshot:
    """Counts at one moment; subtract an earlier snapshot to get what happened in between, add those of
    other processes.

    Attributes:
        requests: Attempts by kind: ``get``, ``head``, ``list``, ``put``, ``delete``.
        bytes_received: Payload bytes of successful reads.
        retries: Attempts that followed a transient fault.
        errors: Failed attempts by error class name.
        max_in_flight: Largest number of attempts at one time since the process started (a
            difference keeps the later value).
        hedges: Attempts beside one that was late; they are in ``requests``, and not in ``retries``.
        hedged_bytes: Bytes that these asked for a second time.
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
        return CounterSnapshot(
            requests=dict(Counter(self.requests) + Counter(other.requests)),
            bytes_received=self.bytes_received + other.bytes_received,
            retries=self.retries + other.retries,
            errors=dict(Counter(self.errors) + Counter(other.errors)),
            max_in_flight=max(self.max_in_flight, other.max_in_flight),
            hedges=self.hedges + other.hedges,
            hedged_bytes=self.hedged_bytes + other.hedged_bytes,
        )

    def __sub__(self, earlier: CounterSnapshot) -> CounterSnapshot:
        return CounterSnapshot(
            requests=_difference(self.requests, earlier.requests),
            bytes_received=self.bytes_received - earlier.bytes_received,
            retries=self.retries - earlier.retries,
            errors=_difference(self.errors, earlier.errors),
            max_in_flight=self.max_in_flight,
            hedges=self.hedges - earlier.hedges,
            hedged_bytes=self.hedged_bytes - earlier.hedged_bytes,
        )


def _difference(later: Mapping[str, int], earlier: Mapping[str, int]) -> dict[str, int]:
    changes = {key: count - earlier.get(key, 0) for key, count in later.items()}
    return {key: count for key, count in changes.items() if count}


class StorageCounters:
    """Thread-safe counters of storage requests."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        self._bytes = self._retries = self._in_flight = self._max_in_flight = 0
        self._hedges = self._hedged_bytes = 0

    def begin(self, kind: str, *, is_retry: bool, hedged_bytes: int = 0) -> None:
        """An attempt starts; one beside a late one asks for ``hedged_bytes`` again."""
        with self._lock:
            self._requests[kind] += 1
            self._retries += is_retry
            if hedged_bytes:
                self._hedges += 1
                self._hedged_bytes += hedged_bytes
            self._in_flight += 1
            if self._in_flight > self._max_in_flight:
                self._max_in_flight = self._in_flight

    def end(self, *, received: int = 0, error: BaseException | None = None) -> None:
        """The attempt is over."""
        with self._lock:
            self._in_flight -= 1
            self._bytes += received
            if error is not None:
                self._errors[type(error).__name__] += 1

    def snapshot(self) -> CounterSnapshot:
        """The counts so far."""
        with self._lock:
            return CounterSnapshot(
                requests=dict(self._requests),
                bytes_received=self._bytes,
                retries=self._retries,
                errors=dict(self._errors),
                max_in_flight=self._max_in_flight,
                hedges=self._hedges,
                hedged_bytes=self._hedged_bytes,
            )


_DEFAULT = PerProcess(StorageCounters)


def default_counters() -> StorageCounters:
    """The counters of this process; a forked child starts at zero."""
    return _DEFAULT.get()
