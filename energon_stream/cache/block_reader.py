"""Reads of cached bytes, verified."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from energon_stream.cache.block_file import BlockFile, DamagedError
from energon_stream.cache.object_identity import BlockPlace, BlockRange, ObjectPlace
from energon_stream.cache.records import Span, merge_spans, outside
from energon_stream.logs import log_once

_log = logging.getLogger(__name__)


class CachedBytes(NamedTuple):
    """Bytes of an object, and the position of the first one."""

    start: int
    data: memoryview


class OpenBlocks:
    """The ``most`` blocks read last. Their files stay open, so that a hit need not open and map one.

    Open blocks are not evicted, so this is for caches that evict nothing in use. Thread-safe; not to be used
    across a fork. A damaged file that another process removed stays open until somebody asks for its block
    again, or other blocks take its place.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._blocks: dict[str, BlockFile] = {}

    def open(self, place: BlockPlace) -> BlockFile | None:
        """Return an open block; None if it does not exist. It closes with the last reference to it."""
        if not self._most:
            return BlockFile.open(place)
        with self._lock:
            known = self._blocks.pop(place.path, None)
            if known is not None and known.refresh():
                self._blocks[place.path] = known
                return known
        block = BlockFile.open(place)
        if block is not None:
            with self._lock:
                self._blocks[place.path] = block
                for oldest in list(self._blocks)[: -self._most]:
                    del self._blocks[oldest]
        return block

    def release(self) -> None:
        """Close the files without readers, so that they can be evicted."""
        with self._lock:
            self._blocks.clear()


class BlockReader:
    """Reads cached bytes. Damaged and unreadable ones count as missing; ``on_damage`` gets damaged blocks."""

    def __init__(self, blocks: OpenBlocks, on_damage: Callable[[BlockFile], None]) -> None:
        self._blocks = blocks
        self._on_damage = on_damage

    def find(
        self, place: ObjectPlace, start: int, stop: int, *, at_hand: bool = False
    ) -> tuple[list[CachedBytes], list[Span]]:
        """Return, in order, the cached bytes among an object's ``[start, stop)``, and the gaps between them.

        ``at_hand`` reads no disk: a block's bytes count as missing unless the block has all of them and the
        system has the first and the last one in memory.
        """
        chunks: list[CachedBytes] = []
        gaps: list[Span] = []
        for wanted in place.ranges(start, stop):
            found = self._read(place, wanted, at_hand)
            chunks += found
            spans = [(chunk.start, chunk.start + len(chunk.data)) for chunk in found]
            gaps += outside(spans, wanted.start, wanted.stop)
        return chunks, merge_spans(gaps)

    def _read(self, place: ObjectPlace, wanted: BlockRange, at_hand: bool) -> list[CachedBytes]:
        block = None
        try:
            block = self._blocks.open(wanted.block)
            return [] if block is None else _read_range(block, wanted, at_hand)
        except DamagedError:
            if block is not None:
                self._on_damage(block)
            problem = "are not those that were written"
        except OSError as error:
            problem = f"cannot be read ({error.strerror or error})"
        message, identity = "cached bytes of %s/%s %s, they are fetched again [%s]", place.identity
        log_once(_log, message, identity.root, identity.path, problem, wanted.block.path, key=place.folder)
        return []


def _read_range(block: BlockFile, wanted: BlockRange, at_hand: bool) -> list[CachedBytes]:
    block.touch()
    chunks = []
    first, last = wanted.span
    runs = block.cached_table().runs(first, last)
    if at_hand:
        # All or nothing: the caller would read, and hash, the bytes again together with the missing ones.
        is_whole = len(runs) == 1 and runs[0][0][0] <= first and last <= runs[0][-1][1]
        if not is_whole or not block.is_in_memory(first, last):
            return []
    for run in runs:
        start, stop = max(first, run[0][0]), min(last, run[-1][1])
        chunks.append(CachedBytes(start + wanted.base, block.read(run, start, stop)))
    return chunks


def recorded_gaps(wanted: BlockRange) -> list[Span]:
    """Return the bytes that a block does not have, by its records alone: nothing is verified."""
    with suppress(OSError):
        block = BlockFile.open(wanted.block)
        if block is not None:
            with block:
                gaps = block.table(*wanted.span).gaps(*wanted.span)
                return [(wanted.base + start, wanted.base + stop) for start, stop in gaps]
    return [(wanted.start, wanted.stop)]


def join_chunks(chunks: list[CachedBytes]) -> memoryview:
    """Join bytes that follow each other; one chunk is not copied."""
    if len(chunks) == 1:
        return chunks[0].data.toreadonly()
    return memoryview(b"".join(chunk.data for chunk in sorted(chunks, key=lambda chunk: chunk.start)))
