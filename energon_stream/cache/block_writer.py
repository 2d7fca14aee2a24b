"""Writes of a process to a cache. Any failure ends or pauses caching, and never fails a read."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

from energon_stream.cache.block_file import BlockFile
from energon_stream.cache.eviction import make_room
from energon_stream.cache.ledger import Limits, root_bytes
from energon_stream.cache.locks import Busy, LockedFile, patience
from energon_stream.cache.records import PAGE_BYTES, page_ceil
from energon_stream.logs import log_once

if TYPE_CHECKING:
    from energon_stream.cache.block_reader import OpenBlocks, Span
    from energon_stream.cache.config import CacheConfig
    from energon_stream.cache.directory import CacheDirectory
    from energon_stream.cache.identity import BlockPlace, BlockRange, ObjectPlace

_log = logging.getLogger(__name__)

_PAUSE_SECONDS = 60.0
"""How long nothing is written after another process kept a lock for too long."""
_FULL_SECONDS = 60.0
"""How long to wait after nothing could be evicted before looking again."""
_OVERHEAD_BYTES = 8 * PAGE_BYTES  # disk space of a range beside its bytes, rather more than less
_FIRST_WAIT, _LONGEST_WAIT = 0.0005, 0.02  # seconds between two looks
_SPARE = 64
"""Evicting frees a 64th of the quota more than needed, so that it happens rarely."""


class Claim(NamedTuple):
    """Bytes of a block that are to be fetched.

    Attributes:
        block: The open block.
        wanted: The bytes.
        is_mine: True if the holder of this claim has to fetch them; False if another thread or process does.
        gaps: Bytes that the block does not have, counted in the object.
    """

    block: BlockFile
    wanted: BlockRange
    is_mine: bool
    gaps: list[Span]


class BlockWriter:
    """Writes blocks of a cache.

    Args:
        directory: The cache.
        config: Its limits and policy.
        shares: Bytes planned for some datasets, by the names of their folders.
        blocks: Files that this process keeps open for reading; closed before room is made.
    """

    def __init__(
        self, directory: CacheDirectory, config: CacheConfig, shares: Mapping[str, int], blocks: OpenBlocks
    ) -> None:
        self._directory = directory
        self._blocks = blocks
        self._limits = Limits(config.quota, config.floor, shares)
        self._policy = config.policy
        self._lock = threading.Lock()
        self._marks: dict[str, LockedFile] = {}
        self._stopped = False
        self._paused_until = 0.0
        self._full = (0.0, 0)  # until when nothing can be evicted for so many bytes
        with self._careful():
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
        need, now = sum(page_ceil(stop - start) + _OVERHEAD_BYTES for start, stop in spans), time.monotonic()
        if self._stopped or now < self._paused_until:
            return False
        with self._careful():
            share = self._limits.shares.get(os.path.basename(owner.root_folder))
            if share is not None and root_bytes(owner.root_folder) + need > share:
                return False
            excess = self._excess(need)
            if excess > 0 and (now >= self._full[0] or excess < self._full[1]):
                self._make_room(owner, excess, need)
                excess = self._excess(need)
            return excess <= 0
        return False

    def claim(self, owner: ObjectPlace, wanted: BlockRange) -> Claim | None:
        """Become the one that fetches some bytes, if nobody else does; None if nothing can be written."""
        block = self.open_block(owner, wanted)
        if block is None:
            return None
        with self._careful():
            # Before looking: who held the claim until now may have written the bytes.
            is_mine = block.try_claim(*wanted.span)
            gaps = block.table(*wanted.span).gaps(*wanted.span)
            return Claim(block, wanted, is_mine, [(wanted.base + a, wanted.base + b) for a, b in gaps])
        block.close()
        return None

    def release(self, claim: Claim) -> None:
        """Let others fetch the bytes, or find them."""
        with self._careful():
            if claim.is_mine:
                claim.block.unclaim(*claim.wanted.span)
            claim.block.close()

    def wait(self, owner: ObjectPlace, wanted: BlockRange, deadline: float) -> None:
        """Wait until nobody fetches some bytes any more, or their block has grown, or the deadline."""
        block = self.open_block(owner, wanted)
        pause = _FIRST_WAIT
        if block is not None:
            with block, self._careful():
                size = block.file_bytes
                while time.monotonic() < deadline and size == block.file_bytes:
                    time.sleep(pause)
                    pause = min(2 * pause, _LONGEST_WAIT)
                    if block.try_claim(*wanted.span):
                        return

    def open_block(self, owner: ObjectPlace, wanted: BlockRange) -> BlockFile | None:
        """Open a block to write to; return None if nothing can be written."""
        with self._careful():
            block = self._directory.open_block(owner, wanted.block, self._limits)
            self.mark(owner.identity.root)
            return block
        return None

    def store(self, block: BlockFile, wanted: BlockRange, data: memoryview) -> int:
        """Write bytes.

        Args:
            block: Their block.
            wanted: Their place.
            data: The bytes.

        Returns:
            Number of bytes that the block did not have before and has now.
        """
        with self._careful():
            return block.store(wanted.span[0], data, self._directory.ledger, self._limits)
        return 0

    @contextmanager
    def filling(self) -> Iterator[None]:
        """Keep one transaction open around many writes, so that the ledger reserves bytes for all of them."""
        held = ExitStack()
        with self._careful():
            held.enter_context(self._directory.ledger.writing())
        try:
            yield
        finally:
            with self._careful():
                held.close()

    def discard(self, place: BlockPlace, file_id: int) -> None:
        """Remove a damaged block, unless another file has already taken its place."""
        with self._careful():
            block = BlockFile.open(place, writable=True)
            if block is not None:
                with block:
                    if block.file_id == file_id:
                        self._directory.remove_block(block)

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
        ledger = self._directory.ledger
        usage = ledger.usage()
        if usage is None and self._directory.recount(seconds=patience()):
            usage = ledger.usage()
        if usage is None:
            raise Busy
        disk = os.statvfs(self._directory.directory)
        below_floor = self._limits.floor + need - disk.f_bavail * disk.f_frsize
        beyond_quota = 0 if self._limits.quota is None else usage.bytes + need - self._limits.quota
        if below_floor > max(0, beyond_quota):
            self._log_once("only %d bytes of its disk are free", disk.f_bavail * disk.f_frsize)
        return max(below_floor, beyond_quota)

    def _make_room(self, owner: ObjectPlace, excess: int, need: int) -> None:
        ledger, shares = self._directory.ledger, self._limits.shares
        usage = ledger.usage()
        # Pending bytes may be those of a killed process.
        if usage is not None and usage.pending and self._directory.recount():
            excess = self._excess(need)
        if excess > 0:
            self._blocks.release()
            with ledger.evicting() as alone:
                spare = (self._limits.quota or 0) // _SPARE
                if alone and not make_room(self._directory, self._policy, excess, spare, owner, shares):
                    self._full = (time.monotonic() + _FULL_SECONDS, excess)

    def _careful(self) -> _Careful:
        """Return a context that takes failures of the cache away, because none may fail a read."""
        return _Careful(self._failed)

    def _failed(self, error: Busy | OSError) -> None:
        if isinstance(error, Busy):
            self._paused_until = time.monotonic() + _PAUSE_SECONDS
            self._log_once("another process kept a lock for too long; trying again from time to time")
        else:  # full, over quota, read-only, broken
            self._stopped = True
            self._log_once("%s", error.strerror or error)

    def _log_once(self, reason: str, *values: object) -> None:
        folder = self._directory.directory
        log_once(_log, "the cache %s is not filled: " + reason, folder, *values, key=folder)


class _Careful:
    """Suppresses and reports failures of a cache."""

    def __init__(self, report: Callable[[Busy | OSError], None]) -> None:
        self._report = report

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, (Busy, OSError)):
            return False
        self._report(error)
        return True
