"""Downloads of missing bytes, once for all threads and processes that want them."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeAlias

from energon_stream.cache.block_reader import BlockReader, Chunk
from energon_stream.cache.records import Span, merge_spans, outside

if TYPE_CHECKING:
    from energon_stream.cache.block_writer import BlockWriter, Claim
    from energon_stream.cache.identity import ObjectPlace

Get: TypeAlias = Callable[[int, int], memoryview]
"""Fetches bytes ``start`` to ``stop`` of an object: all of them, or it raises."""

READ_OVER = 32 << 10
"""Cached bytes between two gaps that are fetched again, because two requests cost more than one."""


def keep_unclaimed(writer: BlockWriter, place: ObjectPlace, start: int, data: memoryview) -> int:
    """Keep bytes that others may be fetching as well; return the number of those that the cache did not
    have.
    """
    if not writer.has_room(place, [(start, start + len(data))]):
        return 0
    kept = 0
    for wanted in place.ranges(start, start + len(data)):
        block = writer.open_block(place, wanted)
        if block is not None:
            with block:
                kept += writer.store(block, wanted, data[wanted.start - start : wanted.stop - start])
    return kept


class Download:
    """Fetches the bytes that one read misses.

    Bytes that are being fetched are locked in their block's file; no other bytes are. Nobody waits while
    holding such a lock, so there is no deadlock. The locks of a process that dies are gone.

    Args:
        reader: Reads bytes that others fetched.
        writer: Keeps bytes that this download fetches.
        place: The object.
        get: Fetches bytes.
        only_keep: Do not return the bytes: cached bytes are not read, and bytes that the cache does not take
            are not fetched.

    Attributes:
        chunks: Bytes that were fetched or found.
        fetched_bytes: Number of bytes fetched.
        kept_bytes: Number of these that the cache kept.
        waited: True if this download waited for others.
        gave_up: True if waiting took too long.
        refused: True if something was not fetched because there is no room for it.
    """

    def __init__(
        self,
        reader: BlockReader,
        writer: BlockWriter,
        place: ObjectPlace,
        get: Get,
        *,
        only_keep: bool = False,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._place = place
        self._get = get
        self._only_keep = only_keep
        self.chunks: list[Chunk] = []
        self.fetched_bytes = self.kept_bytes = 0
        self.waited = self.gave_up = self.refused = False

    def run(self, gaps: list[Span], seconds: float) -> None:
        """Get all bytes of some spans; wait for others who are fetching the same bytes for some seconds."""
        deadline = None
        while gaps and self._writer.has_room(self._place, gaps):
            gaps = merge_spans(span for gap in gaps for span in self._attempt(gap))
            if not gaps:
                return
            if deadline is None:
                deadline = time.monotonic() + seconds
            if time.monotonic() >= deadline:
                self.gave_up = seconds > 0
                break
            self.waited = True
            self._writer.wait(self._place, next(self._place.ranges(*gaps[0])), deadline)
        else:
            self.refused = bool(gaps)
        if not (self._only_keep and self.refused):
            self._fetch_anyway(gaps)

    def _fetch_anyway(self, spans: list[Span]) -> None:
        """Fetch bytes that others may be fetching as well."""
        for start, stop in spans:
            self.kept_bytes += keep_unclaimed(self._writer, self._place, start, self._fetch(start, stop))

    def _attempt(self, gap: Span) -> list[Span]:
        """Fetch the bytes of a gap that nobody else fetches; return the spans that others fetch."""
        missing: list[Span] = []
        busy: list[Span] = []
        with ExitStack() as stack:
            mine: list[Claim] = []
            for wanted in self._place.ranges(*gap):
                claim = self._writer.claim(self._place, wanted)
                if claim is None:
                    missing.append((wanted.start, wanted.stop))
                    continue
                stack.callback(self._writer.release, claim)
                if claim.is_mine:
                    missing += claim.gaps
                    mine.append(claim)
                else:
                    busy += claim.gaps
            missing = merge_spans(missing, READ_OVER)
            for start, stop in missing:
                data = self._fetch(start, stop)
                for claim in mine:
                    fetched = claim.wanted.between(start, stop)
                    if fetched is not None:
                        part = data[fetched.start - start : fetched.stop - start]
                        self.kept_bytes += self._writer.store(claim.block, fetched, part)
        if self._only_keep:
            return busy
        for start, stop in outside(merge_spans([*missing, *busy]), *gap):
            chunks, gaps = self._reader.find(self._place, start, stop)
            self.chunks += chunks
            self._fetch_anyway(gaps)  # recorded, but damaged
        return busy

    def _fetch(self, start: int, stop: int) -> memoryview:
        data = self._get(start, stop)
        if len(data) != stop - start:
            raise ValueError(f"{stop - start} bytes were to be fetched, and {len(data)} came")
        self.fetched_bytes += len(data)
        if not self._only_keep:
            self.chunks.append(Chunk(start, data))
        return data
