"""Bytes that are not in a cache: fetched once by one of all who want them, and kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TypeAlias

from energon_stream.cache.finding import Chunk, Finder, Span, merge_spans, outside
from energon_stream.cache.identity import ObjectPlace
from energon_stream.cache.keeper import Claim, Keeper
from energon_stream.cache.records import PAGE_BYTES, page_ceil

__all__ = ["READ_OVER", "Download", "Get", "has_room", "keep_unclaimed"]

Get: TypeAlias = Callable[[int, int], memoryview]
"""Fetches bytes ``start`` to ``stop`` of an object: all of them, or raises."""

_BESIDE_BYTES = 8 * PAGE_BYTES  # what a range takes beside its bytes, rather more than less
READ_OVER = 32 << 10
"""Cached bytes between two gaps are fetched again if they are no more than these: a request costs more."""


def has_room(keeper: Keeper, place: ObjectPlace, spans: Sequence[Span]) -> bool:
    """Whether some bytes of an object may be kept; makes room for them if the policy allows it."""
    need = sum(page_ceil(stop - start) + _BESIDE_BYTES for start, stop in spans)
    return keeper.has_room(place, need)


def keep_unclaimed(keeper: Keeper, place: ObjectPlace, start: int, data: memoryview) -> int:
    """Keep bytes that others may be fetching, too.

    Returns:
        How many were not there and are kept now.
    """
    if not has_room(keeper, place, [(start, start + len(data))]):
        return 0
    kept = 0
    for part in place.parts(start, start + len(data)):
        block = keeper.open_block(place, part)
        if block is not None:
            with block:
                kept += keeper.store(block, part, data[part.start - start : part.stop - start])
    return kept


class Download:
    """Fetches what is missing for one read.

    Bytes that are being fetched are locked in their block's file, these and no others. Nobody waits while holding a
    lock, so there is no deadlock; whoever dies leaves none.

    Args:
        finder: Finds what others fetched.
        keeper: Keeps what is fetched here.
        place: The object.
        get: Fetches.
        only_keep: Whether bytes are wanted in the cache only: what is there is not read, and what the cache does not take
            is not fetched.

    Attributes:
        chunks: Bytes that came, or were found.
        fetched_bytes: How many came.
        kept_bytes: How many of these are kept.
        waited: Whether others were waited for.
        gave_up: Whether that took too long.
        refused: Whether something was not fetched because there is no room for it.
    """

    def __init__(
        self, finder: Finder, keeper: Keeper, place: ObjectPlace, get: Get, *, only_keep: bool = False
    ) -> None:
        self._finder = finder
        self._keeper = keeper
        self._place = place
        self._get = get
        self._only_keep = only_keep
        self.chunks: list[Chunk] = []
        self.fetched_bytes = self.kept_bytes = 0
        self.waited = self.gave_up = self.refused = False

    def run(self, gaps: list[Span], seconds: float) -> None:
        """Get all of some spans.

        Args:
            gaps: The spans.
            seconds: How long to wait for others who are fetching the same bytes.
        """
        deadline = None
        while gaps and has_room(self._keeper, self._place, gaps):
            gaps = merge_spans(span for gap in gaps for span in self._attempt(gap))
            if not gaps:
                return
            if deadline is None:
                deadline = time.monotonic() + seconds
            if time.monotonic() >= deadline:
                self.gave_up = seconds > 0
                break
            self.waited = True
            self._keeper.wait(self._place, next(self._place.parts(*gaps[0])), deadline)
        else:
            self.refused = bool(gaps)
        if not (self._only_keep and self.refused):
            self._fetch_anyway(gaps)

    def _fetch_anyway(self, spans: list[Span]) -> None:
        """Fetch what others may be fetching, too."""
        for start, stop in spans:
            self.kept_bytes += keep_unclaimed(self._keeper, self._place, start, self._fetch(start, stop))

    def _attempt(self, gap: Span) -> list[Span]:
        """Fetch what nobody else is fetching; returns the rest."""
        missing: list[Span] = []
        busy: list[Span] = []
        with ExitStack() as stack:
            mine: list[Claim] = []
            for part in self._place.parts(*gap):
                claim = self._keeper.claim(self._place, part)
                if claim is None:
                    missing.append((part.start, part.stop))
                    continue
                stack.callback(self._keeper.release, claim)
                if claim.is_mine:
                    missing += claim.gaps
                    mine.append(claim)
                else:
                    busy += claim.gaps
            missing = merge_spans(missing, READ_OVER)
            for start, stop in missing:
                data = self._fetch(start, stop)
                for claim in mine:
                    here = claim.part.between(start, stop)
                    if here is not None:
                        piece = data[here.start - start : here.stop - start]
                        self.kept_bytes += self._keeper.store(claim.block, here, piece)
        if self._only_keep:
            return busy
        for start, stop in outside(merge_spans([*missing, *busy]), *gap):
            chunks, gaps = self._finder.find(self._place, start, stop)
            self.chunks += chunks
            self._fetch_anyway(gaps)  # it was there, and is damaged
        return busy

    def _fetch(self, start: int, stop: int) -> memoryview:
        data = self._get(start, stop)
        if len(data) != stop - start:
            raise ValueError(f"{stop - start} bytes were to be fetched, and {len(data)} came")
        self.fetched_bytes += len(data)
        if not self._only_keep:
            self.chunks.append(Chunk(start, data))
        return data
