"""Files of blocks that stay open for reading, so that a hit does not open and map one each time."""

from __future__ import annotations

import threading

from energon_stream.cache.block_file import BlockFile
from energon_stream.cache.identity import BlockPlace

__all__ = ["OpenBlocks"]


class OpenBlocks:
    """The blocks that were read last. What is open is not evicted, so this is for caches that evict nothing in use.

    Safe to call from several threads, and not to be used across a fork. A damaged file that another process removed
    stays open until its block is asked for again, or others take its place.

    Args:
        most: How many stay open.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._blocks: dict[str, BlockFile] = {}

    def open(self, place: BlockPlace) -> BlockFile | None:
        """A block as it is now; None if it is not there. It is closed when nobody has it any more."""
        if not self._most:
            return BlockFile.open(place)
        with self._lock:
            known = self._blocks.pop(place.path, None)
            if known is not None and known.look_again():
                self._blocks[place.path] = known
                return known
        block = BlockFile.open(place)
        if block is not None:
            with self._lock:
                self._blocks[place.path] = block
                for oldest in list(self._blocks)[: -self._most]:
                    del self._blocks[oldest]
        return block

    def let_go(self) -> None:
        """Close what nobody is reading, so that it can be evicted."""
        with self._lock:
            self._blocks.clear()
