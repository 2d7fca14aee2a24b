"""Plans of fetches: wanted bytes that are not in the cache, in large ranges, the most urgent first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from energon_stream.arrays import Int64Array
from energon_stream.cache import BlockCache, CachedStore
from energon_stream.prewarming.results import PrewarmPlan
from energon_stream.prewarming.spans import Coverage, cut, earliest, total_bytes
from energon_stream.prewarming.wanted import WantedBytes
from energon_stream.storage import ByteRange, Store

REQUEST_BYTES = 5 << 20  # the most of a request, so that a range a little above the usual is not cut
USUAL_BYTES = 4 << 20  # of a request; all in flight together take no more memory than training may
_OVERHEAD = 64  # cached bytes usually take no more than a 64th more disk space than their number


@dataclass(frozen=True, slots=True)
class PlannedFetch:
    """A range to fetch into a cache."""

    store: Store
    path: str
    bytes: ByteRange
    position: int  # number of samples before the first one that needs the bytes


class FetchPlanner:
    """Plans fetches, and counts bytes."""

    def __init__(self, wanted: WantedBytes, max_gap: int) -> None:
        self._wanted = wanted
        self._coverage = Coverage(max_gap)
        self._found = Counter[BlockCache]()  # bytes that a cache had
        self._needed = Counter[BlockCache]()  # bytes that a cache has to have in the end
        self.samples: int = 0  # of the steps looked at so far
        self.bytes: int = 0  # of these samples, and of those that are only looked ahead to
        self.cached_bytes: int = 0  # among these, that a cache had
        self._ahead = self._count = 0  # samples only looked ahead to, fetches for bytes that no cache had

    def windows(self) -> Iterator[list[PlannedFetch]]:
        """Yield fetches window by window; within a window, the most urgent first."""
        for wanted in self._wanted.windows():
            new = self._coverage.add(wanted.rows[:, :3])
            missing = self._missing(new)
            self.samples += wanted.samples
            self._ahead += wanted.ahead
            self.bytes += total_bytes(new)
            self.cached_bytes += total_bytes(new) - total_bytes(missing)
            pieces = cut(missing, REQUEST_BYTES)
            positions = earliest(pieces, wanted.rows)
            order = np.argsort(positions, kind="stable")
            self._count += len(pieces)
            yield self._fetches(pieces[order], positions[order])

    def all_wanted(self) -> Iterator[PlannedFetch]:
        """Yield all bytes wanted so far, cached ones included, by object and position in it."""
        pieces = cut(self._coverage.spans, REQUEST_BYTES)
        yield from self._fetches(pieces, np.zeros(len(pieces), dtype=np.int64))

    def room(self, cache: BlockCache) -> int | None:
        """Return the bytes that a cache takes before it evicts bytes of this plan; None if it never does."""
        found, quota = self._found[cache], cache.config.quota
        return None if quota is None or cache.config.policy != "lru" else quota - found - found // _OVERHEAD

    def excess_bytes(self, factor: float = 1.0) -> int:
        """Return the bytes for which the caches have no room if ``factor`` times as many are wanted."""
        excess = 0.0
        for cache, needed in self._needed.items():
            room = cache.max_bytes()
            excess += max(0.0, factor * needed - (room - room // _OVERHEAD))
        return round(excess)

    def plan(self, index_requests: int, index_bytes: int) -> PrewarmPlan:
        """Return all counts, with the requests for metadata and indices and their bytes."""
        objects = len(np.unique(self._coverage.spans[:, 0]))
        counts = self.samples, self._ahead, objects, self.bytes, self.cached_bytes, self._count
        return PrewarmPlan(*counts, index_requests, index_bytes, self.excess_bytes())

    def _missing(self, spans: Int64Array) -> Int64Array:
        """Return the parts of some ranges that no cache has."""
        found: list[tuple[int, int, int]] = []
        for number, start, stop in spans.tolist():
            (store, path), gaps = self._wanted.place(number), [ByteRange(start, stop)]
            if isinstance(store, CachedStore) and (identity := store.identify(path)) is not None:
                gaps = store.cache.missing(identity, start, stop)
                self._needed[store.cache] += stop - start
                self._found[store.cache] += stop - start - sum(map(len, gaps))
            found += [(number, gap.start, gap.stop) for gap in gaps]
        return np.array(found, dtype=np.int64).reshape(-1, 3)

    def _fetches(self, pieces: Int64Array, positions: Int64Array) -> list[PlannedFetch]:
        return [
            PlannedFetch(*self._wanted.place(number), ByteRange(start, stop), position)
            for number, start, stop, position in np.column_stack([pieces, positions]).tolist()
        ]


def store_of(fetch: PlannedFetch) -> CachedStore:
    """Return the store of a fetch, which has a cache unless this is a dry run."""
    if not isinstance(fetch.store, CachedStore):
        raise TypeError(f"{fetch.store.url} is read without a cache; please report this")
    return fetch.store
