"""Bytes that are in a cache, verified."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple, TypeAlias

from energon_stream.cache.block_file import BlockFile, DamagedError
from energon_stream.cache.counters import CacheCounters
from energon_stream.cache.identity import BlockPart, ObjectPlace
from energon_stream.cache.keeper import Keeper
from energon_stream.cache.open_blocks import OpenBlocks
from energon_stream.logs import log_once

__all__ = ["Chunk", "Finder", "Span", "join_chunks", "merge_spans", "outside", "recorded_gaps"]

_log = logging.getLogger(__name__)

Span: TypeAlias = tuple[int, int]
"""First byte, and one past the last."""


class Chunk(NamedTuple):
    """Bytes of an object, and where they begin."""

    start: int
    data: memoryview


class Finder:
    """Reads what is there. What is damaged, or cannot be read, is not there.

    Args:
        keeper: Removes damaged blocks.
        counters: Counts them.
        blocks: Opens blocks.
    """

    def __init__(self, keeper: Keeper, counters: CacheCounters, blocks: OpenBlocks) -> None:
        self._keeper = keeper
        self._blocks = blocks
        self._counters = counters

    def find(
        self, place: ObjectPlace, start: int, stop: int, *, at_hand: bool = False
    ) -> tuple[list[Chunk], list[Span]]:
        """What is there of an object's bytes ``[start, stop)``, and what is not; both in order.

        Args:
            place: The object.
            start: First byte.
            stop: One past the last byte.
            at_hand: Parts of which something is missing are not there, nor those that the system has not in memory, as
                far as first and last bytes tell.
        """
        self._keeper.mark(place.identity.root)
        chunks: list[Chunk] = []
        gaps: list[Span] = []
        for part in place.parts(start, stop):
            problem: str | None = None
            try:
                found = _read_part(self._blocks.open(part.block), part, at_hand)
            except DamagedError as error:
                problem = "are not those that were written"
                self._keeper.discard(part.block, error.file_id)
                self._counters.add(damaged=1)
            except OSError as error:
                problem = f"cannot be read ({error.strerror})"
            if problem is not None:
                identity = place.identity
                log_once(
                    _log,
                    "cached bytes of %s/%s %s, they are fetched again [%s]",
                    identity.root,
                    identity.path,
                    problem,
                    part.block.path,
                    key=place.folder,
                )
                found = []
            chunks += found
            gaps += outside(
                [(chunk.start, chunk.start + len(chunk.data)) for chunk in found], part.start, part.stop
            )
        return chunks, merge_spans(gaps)


def _read_part(block: BlockFile | None, part: BlockPart, at_hand: bool) -> list[Chunk]:
    if block is None:
        return []
    block.touch()
    chunks = []
    first, last = part.span
    runs = block.table_as_seen().runs(first, last)
    if at_hand:  # all or nothing, or what is there would be hashed now and once more with what is not
        is_whole = len(runs) == 1 and runs[0][0][0] <= first and last <= runs[0][-1][1]
        if not is_whole or not block.is_in_memory(first, last):
            return []
    for run in runs:
        start, stop = max(first, run[0][0]), min(last, run[-1][1])
        chunks.append(Chunk(start + part.base, block.read(run, start, stop)))
    return chunks


def recorded_gaps(part: BlockPart) -> list[Span]:
    """What of some bytes is not there, unverified."""
    with suppress(OSError):
        block = BlockFile.open(part.block)
        if block is not None:
            with block:
                gaps = block.table(*part.span).gaps(*part.span)
                return [(part.base + start, part.base + stop) for start, stop in gaps]
    return [(part.start, part.stop)]


def outside(spans: Iterable[Span], start: int, stop: int) -> list[Span]:
    """What of ``[start, stop)`` is in none of some spans, which are in order and do not overlap."""
    gaps = []
    for first, last in spans:
        if first > start:
            gaps.append((start, first))
        start = last
    if start < stop:
        gaps.append((start, stop))
    return gaps


def merge_spans(spans: Iterable[Span], distance: int = 0) -> list[Span]:
    """Spans in order, those with no more than ``distance`` bytes between them as one."""
    merged: list[Span] = []
    for start, stop in sorted(spans):
        if merged and start - merged[-1][1] <= distance:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged


def join_chunks(chunks: list[Chunk]) -> memoryview:
    """Bytes that follow each other; without a copy where they are one chunk."""
    if len(chunks) == 1:
        return chunks[0].data.toreadonly()
    return memoryview(b"".join(chunk.data for chunk in sorted(chunks, key=lambda chunk: chunk.start)))
