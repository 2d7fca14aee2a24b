"""Counts of what a cache answered."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, fields

__all__ = ["CacheCounters", "CacheSnapshot"]


@dataclass(frozen=True, slots=True)
class CacheSnapshot:
    """Counts of one process at one moment; subtract an earlier one, add those of other processes.

    Attributes:
        hits: Reads that were answered from the cache alone.
        hit_bytes: Bytes that came from the cache.
        misses: Reads of which some bytes had to be fetched.
        missed_bytes: Bytes that were fetched.
        stored_bytes: Those of them that were kept.
        waits: Reads that waited for the download of another.
        timeouts: Those that gave up waiting, and fetched.
        damaged: Blocks that were removed because their bytes were not those that were written.
    """

    hits: int = 0
    hit_bytes: int = 0
    misses: int = 0
    missed_bytes: int = 0
    stored_bytes: int = 0
    waits: int = 0
    timeouts: int = 0
    damaged: int = 0

    def __add__(self, other: CacheSnapshot) -> CacheSnapshot:
        return CacheSnapshot(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __sub__(self, earlier: CacheSnapshot) -> CacheSnapshot:
        return CacheSnapshot(*(getattr(self, f.name) - getattr(earlier, f.name) for f in fields(self)))


class CacheCounters:
    """Thread-safe counts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = Counter[str]()

    def add(self, **counts: int) -> None:
        """Count some more, by the names of the snapshot."""
        with self._lock:
            for name, count in counts.items():
                self._counts[name] += count

    def snapshot(self) -> CacheSnapshot:
        """The counts so far."""
        with self._lock:
            return CacheSnapshot(**self._counts)
