"""Writes of a process to a cache. Any failure ends or pauses caching, and never fails a read."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Literal, NamedTuple

from energon_stream.cache.block_file import BlockFile
from energon_stream.cache.block_reader import OpenBlocks
from energon_stream.cache.directory import CacheDirectory
from energon_stream.cache.eviction import make_room
from energon_stream.cache.ledger import free_bytes
from energon_stream.cache.locks import Busy, LockedFile, patience
from energon_stream.cache.object_identity import BlockRange, ObjectPlace
from energon_stream.cache.records import PAGE_BYTES, Span, page_ceil
from energon_stream.logs import log_once

_log = logging.getLogger(__name__)

_PAUSE_SECONDS = 60.0  # without writing, after another process kept a lock for too long
_FULL_SECONDS = 60.0  # before looking again, after nothing could be evicted
_OVERHEAD_BYTES = 8 * PAGE_BYTES  # disk space of a range beside its bytes, rather more than less
_SPARE = 64  # evicting frees a 64th of the quota more than needed, so that it happens rarely


class BlockClaim(NamedTuple):
    """Bytes of a block that are to be fetched."""

    block: BlockFile
    wanted: BlockRange
    is_mine: bool  # False if another thread or process fetches them
    gaps: list[Span]  # positions in the object that the block does not have


class _Failures:
    """Suppresses and logs failures of a cache, because none may fail a read. Writing stops, or pauses."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._until = 0.0

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, Busy):
            self._until = max(self._until, time.monotonic() + _PAUSE_SECONDS)
            self.log("another process kept a lock for too long; trying again from time to time")
        elif isinstance(error, OSError):  # full, over quota, read-only, broken
            self._until = float("inf")
            self.log("%s", error.strerror or error)
        return isinstance(error, (Busy, OSError))

    def forbid_writing(self) -> bool:
        """Return True after a failure; for a while only if another process kept a lock."""
        return time.monotonic() < self._until

    def log(self, reason: str, *values: object) -> None:
        """Log why the cache is not filled, once."""
        log_once(_log, "the cache %s is not filled: " + reason, self._folder, *values, key=self._folder)


class BlockWriter:
    """Writes blocks of a cache. Before it makes room, it closes the ``blocks`` that stay open for reading."""

    def __init__(self, directory: CacheDirectory, policy: Literal["pin", "lru"], blocks: OpenBlocks) -> None:
        self._directory = directory
        self._policy: Literal["pin", "lru"] = policy
        self._blocks = blocks
        self._lock = threading.Lock()
        self._marks: dict[str, LockedFile] = {}
        self._failures = _Failures(directory.directory)
        self._full = (0.0, 0)  # until when nothing can be evicted for so many bytes
        directory.make()
        with self._failures:
            directory.prepare()

    def mark(self, url: str) -> None:
        """Mark a dataset as used by this process, if the cache has it."""
        if url not in self._marks:
            file = self._directory.use_root(url)
            if file is not None:
                with self._lock:
                    self._marks.setdefault(url, file)

    def has_room(self, owner: ObjectPlace, spans: Sequence[Span]) -> bool:
        """Return True if some bytes of an object may be written; make room if the policy allows it."""
        if self._failures.forbid_writing():
            return False
        need = sum(page_ceil(stop - start) + _OVERHEAD_BYTES for start, stop in spans)
        with self._failures:
            room = self._directory.ledger.limits.room_of(owner.root_folder)
            if room is not None and room < need:
                return False
            excess = self._excess(need)
            if excess > 0 and (time.monotonic() >= self._full[0] or excess < self._full[1]):
                self._make_room(owner, excess, need)
                excess = self._excess(need)
            return excess <= 0
        return False

    def claim(self, owner: ObjectPlace, wanted: BlockRange) -> BlockClaim | None:
        """Claim the fetch of some bytes; return None if nothing can be written."""
        block = self.open_block(owner, wanted)
        if block is None:
            return None
        with self._failures:
            # Before looking: who held the claim until now may have written the bytes.
            is_mine = block.try_claim(*wanted.span)
            gaps = block.table(*wanted.span).gaps(*wanted.span)
            return BlockClaim(block, wanted, is_mine, [(wanted.base + a, wanted.base + b) for a, b in gaps])
        block.close()
        return None

    def release(self, claim: BlockClaim) -> None:
        """Release a claim, and close its block."""
        with self._failures:
            if claim.is_mine:
                claim.block.unclaim(*claim.wanted.span)
            claim.block.close()

    def wait(self, owner: ObjectPlace, wanted: BlockRange, deadline: float) -> None:
        """Wait until the claim on some bytes ends, their block has grown, or the deadline."""
        block = self.open_block(owner, wanted)
        if block is not None:
            with block, self._failures:
                block.wait_for_claim(*wanted.span, deadline - time.monotonic())

    def open_block(self, owner: ObjectPlace, wanted: BlockRange) -> BlockFile | None:
        """Open a block to write to; return None if nothing can be written."""
        with self._failures:
            block = self._directory.open_block(owner, wanted.block)
            self.mark(owner.identity.root)
            return block
        return None

    def store(self, block: BlockFile, wanted: BlockRange, data: memoryview) -> int:
        """Write bytes; return the number of new ones."""
        with self._failures:
            return block.store(wanted.span[0], data, self._directory.ledger)
        return 0

    def keep(self, place: ObjectPlace, start: int, data: memoryview) -> int:
        """Keep bytes of an object without a claim; return the number of new ones."""
        if not self.has_room(place, [(start, start + len(data))]):
            return 0
        kept = 0
        for wanted in place.ranges(start, start + len(data)):
            block = self.open_block(place, wanted)
            if block is not None:
                with block:
                    kept += self.store(block, wanted, data[wanted.start - start : wanted.stop - start])
        return kept

    @contextmanager
    def filling(self) -> Iterator[None]:
        """Keep one transaction open around many writes, so that the ledger reserves bytes for all of them."""
        held = ExitStack()
        with self._failures:
            held.enter_context(self._directory.ledger.writing())
        try:
            yield
        finally:
            with self._failures:
                held.close()

    def discard(self, damaged: BlockFile) -> None:
        """Remove a damaged block, unless another file has already taken its place."""
        with self._failures:
            self._directory.remove_block(damaged.place, file_id=damaged.file_id)

    def close(self) -> None:
        """Let others evict what this process used."""
        self._blocks.release()
        with self._lock:
            for file in self._marks.values():
                file.close()
            self._marks.clear()
        self._directory.ledger.close()

    def _excess(self, need: int) -> int:
        """Return the bytes that have to go before ``need`` more may come."""
        directory, limits = self._directory.directory, self._directory.ledger.limits
        usage = self._directory.ledger.usage()
        if usage is None and self._directory.recount(seconds=patience()):
            usage = self._directory.ledger.usage()
        if usage is None:
            raise Busy
        room = limits.room(directory, usage.bytes)
        if room < need and (free := free_bytes(directory)) < limits.floor + need:
            self._failures.log("only %d bytes of its disk are free", free)
        return need - room

    def _make_room(self, owner: ObjectPlace, excess: int, need: int) -> None:
        ledger = self._directory.ledger
        usage = ledger.usage()
        # Pending bytes may be those of a killed process.
        if usage is not None and usage.pending and self._directory.recount():
            excess = self._excess(need)
        if excess > 0:
            self._blocks.release()
            with ledger.evicting() as alone:
                spare = (ledger.limits.quota or 0) // _SPARE
                if alone and not make_room(self._directory, self._policy, excess, spare, owner):
                    self._full = (time.monotonic() + _FULL_SECONDS, excess)
