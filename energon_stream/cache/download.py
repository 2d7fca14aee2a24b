"""Downloads of missing bytes, once for all threads and processes that want them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TypeAlias

from energon_stream.cache.block_reader import BlockReader, CachedBytes
from energon_stream.cache.block_writer import BlockClaim, BlockWriter
from energon_stream.cache.object_identity import ObjectPlace
from energon_stream.cache.records import Span, merge_spans, outside

Get: TypeAlias = Callable[[int, int], memoryview]
"""Fetches bytes ``start`` to ``stop`` of an object: all of them, or it raises."""

_READ_OVER = 32 << 10  # cached bytes between gaps that are fetched again: two requests cost more than one
_READ_OVER_SHARE = 16  # part of the missing bytes that are fetched again, if that is more


def to_fetch(gaps: Iterable[Span]) -> list[Span]:
    """Merge the gaps of one read that are worth one request. Else each would be a round trip of its own.

    Example:
        >>> to_fetch([(0, 1_000_000), (1_090_000, 2_000_000)])
        [(0, 2000000)]
    """
    missing = merge_spans(gaps)
    size = sum(stop - start for start, stop in missing)
    return merge_spans(missing, max(_READ_OVER, size // _READ_OVER_SHARE))


@dataclass(slots=True)
class Download:
    """Fetches the bytes that one read misses.

    Bytes that are being fetched are locked in their block's file; no other bytes are. A thread
    that holds such a lock never waits, so there is no deadlock. The locks of a process that dies are gone.
    """

    reader: BlockReader
    writer: BlockWriter
    place: ObjectPlace
    get: Get
    only_keep: bool = (
        False  # return no bytes: read no cached ones, and fetch none that the cache does not take
    )
    chunks: list[CachedBytes] = field(default_factory=list)  # bytes that were fetched or found
    fetched_bytes: int = 0  # number of bytes fetched
    kept_bytes: int = 0  # number of these that the cache kept
    waited: bool = False  # True if this download waited for others
    gave_up: bool = False  # True if waiting took too long
    refused: bool = False  # True if something was not fetched because there is no room for it

    def run(self, gaps: list[Span], seconds: float) -> None:
        """Get all bytes of some spans; wait for others who are fetching the same bytes for some seconds."""
        deadline = None
        while gaps and self.writer.has_room(self.place, gaps):
            gaps = merge_spans(span for gap in gaps for span in self._attempt(gap))
            if not gaps:
                return
            if deadline is None:
                deadline = time.monotonic() + seconds
            if time.monotonic() >= deadline:
                self.gave_up = seconds > 0
                break
            self.waited = True
            self.writer.wait(self.place, next(self.place.ranges(*gaps[0])), deadline)
        else:
            self.refused = bool(gaps)
        if not (self.only_keep and self.refused):
            self._fetch_anyway(gaps)

    def _fetch_anyway(self, spans: list[Span]) -> None:
        """Fetch bytes that others may be fetching as well."""
        for start, stop in spans:
            self.kept_bytes += self.writer.keep(self.place, start, self._fetch(start, stop))

    def _attempt(self, gap: Span) -> list[Span]:
        """Fetch the unclaimed bytes of a gap; return the spans that others fetch."""
        missing: list[Span] = []
        busy: list[Span] = []
        with ExitStack() as stack:
            mine: list[BlockClaim] = []
            for wanted in self.place.ranges(*gap):
                claim = self.writer.claim(self.place, wanted)
                if claim is None:
                    missing.append((wanted.start, wanted.stop))
                    continue
                stack.callback(self.writer.release, claim)
                if claim.is_mine:
                    missing += claim.gaps
                    mine.append(claim)
                else:
                    busy += claim.gaps
            missing = to_fetch(missing)
            for start, stop in missing:
                data = self._fetch(start, stop)
                for claim in mine:
                    fetched = claim.wanted.between(start, stop)
                    if fetched is not None:
                        part = data[fetched.start - start : fetched.stop - start]
                        self.kept_bytes += self.writer.store(claim.block, fetched, part)
        if self.only_keep:
            return busy
        for start, stop in outside(merge_spans([*missing, *busy]), *gap):
            chunks, gaps = self.reader.find(self.place, start, stop)
            self.chunks += chunks
            self._fetch_anyway(gaps)  # recorded, but damaged
        return busy

    def _fetch(self, start: int, stop: int) -> memoryview:
        data = self.get(start, stop)
        if len(data) != stop - start:
            raise ValueError(f"{stop - start} bytes were to be fetched, and {len(data)} came")
        self.fetched_bytes += len(data)
        if not self.only_keep:
            self.chunks.append(CachedBytes(start, data))
        return data
