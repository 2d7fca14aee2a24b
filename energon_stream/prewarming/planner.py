"""Wanted bytes to requests: what is not in the cache, in large pieces, the most urgent first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from energon_stream.cache import BlockCache, CachedStore
from energon_stream.prewarming.spans import Coverage, Spans, earliest
from energon_stream.prewarming.wanted import Wanted, WantedBytes
from energon_stream.storage import ByteRange, Store

__all__ = ["REQUEST_BYTES", "USUAL_BYTES", "PlannedFetch", "FetchPlanner", "store_of"]

REQUEST_BYTES = 5 << 20
"""Largest request: what is a little larger than :data:`USUAL_BYTES` is not cut."""

USUAL_BYTES = 4 << 20
"""About what a request takes. As many as may be in flight take no more memory than training may."""

_SPARE = 64
"""What is in a cache takes no more than a 64th more than its bytes, as a rule."""


@dataclass(frozen=True, slots=True)
class PlannedFetch:
    """Bytes to fetch.

    Attributes:
        store: Where they lie.
        path: Path of the object.
        bytes: Which of its bytes.
        turn: How many samples come before the first that needs them.
    """

    store: Store
    path: str
    bytes: ByteRange
    turn: int


class FetchPlanner:
    """Plans requests, and counts.

    Args:
        wanted: What is wanted.
        max_gap: Bytes that readers read rather than split a request.

    Attributes:
        samples: Samples looked at so far that are to be consumed.
        ahead: Others.
        bytes: Bytes that they need.
        cached_bytes: Bytes of these that were in a cache.
        count: FetchPlanner for the others.
    """

    def __init__(self, wanted: WantedBytes, max_gap: int) -> None:
        self._wanted = wanted
        self._coverage = Coverage(max_gap)
        self._cached = Counter[BlockCache]()
        self.samples = self.ahead = self.bytes = self.cached_bytes = self.count = 0

    def windows(self) -> Iterator[list[PlannedFetch]]:
        """FetchPlanner, window by window; those of one are in the order in which they are wanted."""
        for wanted in self._wanted.windows():
            new = self._coverage.add(wanted.spans)
            missing = self._missing(new)
            self.samples += wanted.samples
            self.ahead += wanted.ahead
            self.bytes += new.bytes
            self.cached_bytes += new.bytes - missing.bytes
            requests = self._requests(missing.cut(REQUEST_BYTES), wanted)
            self.count += len(requests)
            yield requests

    def pieces(self) -> Iterator[PlannedFetch]:
        """All that was wanted so far, by object and place."""
        return iter(self._as_requests(self._coverage.spans.cut(REQUEST_BYTES)))

    def room(self, cache: BlockCache) -> int | None:
        """Bytes that may be added to a cache before more of them push out what was found there, or added; None where
        that never happens."""
        found, quota = self._cached[cache], cache.config.quota
        return None if quota is None or cache.config.policy != "lru" else quota - found - found // _SPARE

    @property
    def objects(self) -> int:
        """Objects that have wanted bytes."""
        return len(np.unique(self._coverage.spans.objects))

    def _missing(self, spans: Spans) -> Spans:
        """What of some ranges is in no cache."""
        found: list[tuple[int, int, int]] = []
        columns = spans.objects.tolist(), spans.starts.tolist(), spans.stops.tolist()
        for number, start, stop in zip(*columns, strict=True):
            store, path = self._wanted.place(number)
            gaps = [ByteRange(start, stop)]
            if isinstance(store, CachedStore) and (identity := store.identify(path)) is not None:
                gaps = store.cache.missing(identity, start, stop)
                self._cached[store.cache] += stop - start - sum(map(len, gaps))
            found += [(number, gap.start, gap.stop) for gap in gaps]
        return Spans(*np.array(found, dtype=np.int64).reshape(-1, 3).T)

    def _requests(self, pieces: Spans, wanted: Wanted) -> list[PlannedFetch]:
        turns = earliest(pieces, wanted.spans, wanted.turns)
        order = np.argsort(turns, kind="stable")
        return self._as_requests(pieces[order], turns[order].tolist())

    def _as_requests(self, pieces: Spans, turns: list[int] | None = None) -> list[PlannedFetch]:
        columns = pieces.objects.tolist(), pieces.starts.tolist(), pieces.stops.tolist()
        rows = zip(*columns, [0] * len(pieces) if turns is None else turns, strict=True)
        return [
            PlannedFetch(*self._wanted.place(number), ByteRange(start, stop), turn)
            for number, start, stop, turn in rows
        ]


def store_of(request: PlannedFetch) -> CachedStore:
    """The store of a request, which has a cache.

    Raises:
        TypeError: It has none.
    """
    if not isinstance(request.store, CachedStore):
        raise TypeError(f"{request.store.url} is read without a cache; please report this")
    return request.store
