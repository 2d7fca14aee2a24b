"""What one process writes to a cache, for as long as that goes well: where it does not, reads go on without."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import NamedTuple

from energon_stream.cache.block_file import BlockFile
from energon_stream.cache.config import CacheConfig
from energon_stream.cache.directory import CacheDirectory
from energon_stream.cache.eviction import make_room
from energon_stream.cache.identity import BlockPart, BlockPlace, ObjectPlace
from energon_stream.cache.ledger import PATIENCE, Busy, Limits, root_bytes
from energon_stream.cache.locks import LockedFile
from energon_stream.cache.open_blocks import OpenBlocks
from energon_stream.cache.policy import make_policy
from energon_stream.logs import log_once

__all__ = ["Claim", "Keeper"]

_log = logging.getLogger(__name__)

_PAUSE_SECONDS = 60.0
"""How long nothing is written after somebody kept a lock for too long."""
_FULL_SECONDS = 60.0
"""How long not to look again for what may be evicted after there was nothing."""
_FIRST_WAIT, _LONGEST_WAIT = 0.0005, 0.02  # seconds between two looks
_SPARE = 64
"""Evicting gains a 64th of the quota more than is needed, so that it is seldom done."""


class Claim(NamedTuple):
    """Bytes of a block that are to be fetched.

    Attributes:
        block: The block, open.
        part: The bytes.
        is_mine: Whether it is on this claim's holder to fetch them.
        gaps: What of them is not there, counted in the object.
    """

    block: BlockFile
    part: BlockPart
    is_mine: bool
    gaps: list[tuple[int, int]]


class Keeper:
    """Writes blocks of a cache.

    Args:
        directory: The cache.
        config: Its limits and policy.
        shares: Bytes that some datasets are planned to have, by the names of their folders.
        blocks: What this process has open to read; closed where room has to be made.
    """

    def __init__(
        self, directory: CacheDirectory, config: CacheConfig, shares: Mapping[str, int], blocks: OpenBlocks
    ) -> None:
        self._directory = directory
        self._blocks = blocks
        self._config = config
        self._limits = Limits(config.quota, config.floor, shares)
        self._policy = make_policy(config.policy)
        self._lock = threading.Lock()
        self._marks: dict[str, LockedFile] = {}
        self._stopped = False
        self._paused_until = 0.0
        self._in_vain = (0.0, 0)  # until when there is nothing to evict for so many bytes
        with self._careful():
            directory.prepare()

    def mark(self, url: str) -> None:
        """Note that this process uses a dataset, if it is in the cache."""
        if url not in self._marks:
            file = self._directory.use_root(url)
            if file is not None:
                with self._lock:
                    self._marks.setdefault(url, file)

    def has_room(self, owner: ObjectPlace, need: int) -> bool:
        """Whether some bytes of an object may be kept; makes room for them if the policy allows it."""
        now = time.monotonic()
        if self._stopped or now < self._paused_until:
            return False
        with self._careful():
            share = self._limits.shares.get(os.path.basename(owner.root_folder))
            if share is not None and root_bytes(owner.root_folder) + need > share:
                return False
            missing = self._missing(need)
            if missing > 0 and (now >= self._in_vain[0] or missing < self._in_vain[1]):
                self._make_room(owner, missing, need)
                missing = self._missing(need)
            return missing <= 0
        return False

    def claim(self, owner: ObjectPlace, part: BlockPart) -> Claim | None:
        """Become the one who fetches some bytes, unless another one is; None where nothing can be kept."""
        block = self.open_block(owner, part)
        if block is None:
            return None
        with self._careful():
            is_mine = block.try_claim(*part.span)  # before looking: who had them may have kept them meanwhile
            gaps = [
                (part.base + start, part.base + stop)
                for start, stop in block.table(*part.span).gaps(*part.span)
            ]
            return Claim(block, part, is_mine, gaps)
        block.close()
        return None

    def release(self, claim: Claim) -> None:
        """Let others fetch the bytes, or find them."""
        with self._careful():
            if claim.is_mine:
                claim.block.unclaim(*claim.part.span)
            claim.block.close()

    def wait(self, owner: ObjectPlace, part: BlockPart, deadline: float) -> None:
        """Wait until nobody is fetching some bytes any more, or more of their block is there, or the deadline."""
        block = self.open_block(owner, part)
        pause = _FIRST_WAIT
        if block is not None:
            with block, self._careful():
                size = block.file_bytes
                while time.monotonic() < deadline and size == block.file_bytes:
                    time.sleep(pause)
                    pause = min(2 * pause, _LONGEST_WAIT)
                    if block.try_claim(*part.span):
                        return

    def open_block(self, owner: ObjectPlace, part: BlockPart) -> BlockFile | None:
        """A block to write to; None where nothing can be written."""
        with self._careful():
            block = self._directory.open_block(owner, part.block, self._limits)
            self.mark(owner.identity.root)
            return block
        return None

    def store(self, block: BlockFile, part: BlockPart, data: memoryview) -> int:
        """Keep bytes.

        Args:
            block: Block that they belong to.
            part: Which bytes they are.
            data: The bytes.

        Returns:
            How many were not there and are kept now.
        """
        with self._careful():
            return block.store(part.span[0], data, self._directory.ledger, self._limits)
        return 0

    @contextmanager
    def filling(self) -> Iterator[None]:
        """Around much that is kept: the ledger hears of the last of it at the end, and nobody counts anew before."""
        held = ExitStack()
        with self._careful():
            held.enter_context(self._directory.ledger.writing())
        try:
            yield
        finally:
            with self._careful():
                held.close()

    def discard(self, place: BlockPlace, file_id: int) -> None:
        """Remove a block whose bytes are not what they should be, unless another file took its place already."""
        with self._careful():
            block = BlockFile.open(place, writable=True)
            if block is not None:
                with block:
                    if block.file_id == file_id:
                        self._directory.remove_block(block)

    def close(self) -> None:
        """Let others evict what this process used."""
        self._blocks.let_go()
        with self._lock:
            for file in self._marks.values():
                file.close()
            self._marks.clear()
        self._directory.ledger.close()

    def _missing(self, need: int) -> int:
        """Bytes that have to go before ``need`` more may come."""
        ledger = self._directory.ledger
        usage = ledger.usage()
        if usage is None and self._directory.recount(seconds=PATIENCE):
            usage = ledger.usage()
        if usage is None:
            raise Busy
        disk = os.statvfs(self._directory.directory)
        below_floor = self._limits.floor + need - disk.f_bavail * disk.f_frsize
        beyond_quota = 0 if self._limits.quota is None else usage.bytes + need - self._limits.quota
        if below_floor > max(0, beyond_quota):
            self._tell_once("only %d bytes of its disk are free", disk.f_bavail * disk.f_frsize)
        return max(below_floor, beyond_quota)

    def _make_room(self, owner: ObjectPlace, missing: int, need: int) -> None:
        ledger, shares = self._directory.ledger, self._limits.shares
        usage = ledger.usage()
        if usage is not None and usage.pending and self._directory.recount():  # somebody was killed, maybe
            missing = self._missing(need)
        if missing > 0:
            self._blocks.let_go()
            with ledger.evicting() as alone:
                spare = (self._limits.quota or 0) // _SPARE
                if alone and not make_room(self._directory, self._policy, missing, spare, owner, shares):
                    self._in_vain = (time.monotonic() + _FULL_SECONDS, missing)

    def _careful(self) -> _Careful:
        """Around whatever writes: no failure of the cache may fail a read."""
        return _Careful(self._failed)

    def _failed(self, error: Busy | OSError) -> None:
        if isinstance(error, Busy):
            self._paused_until = time.monotonic() + _PAUSE_SECONDS
            self._tell_once("another process kept a lock for too long; trying again from time to time")
        else:  # full, over quota, read-only, broken
            self._stopped = True
            self._tell_once("%s", error.strerror or error)

    def _tell_once(self, reason: str, *values: object) -> None:
        folder = self._directory.directory
        log_once(_log, "the cache %s is not filled: " + reason, folder, *values, key=folder)


class _Careful:
    """Takes failures of a cache away, and reports them."""

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
