"""Rows of an index file, by blocks that are read once and kept within bounds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from energon_stream.arrays import Int64Array
from energon_stream.index.row_file import RowFile
from energon_stream.index.tar_index import OffsetWindow
from energon_stream.read.source import OffsetCache

__all__ = ["RowBlocks"]


class RowBlocks:
    """Looks up rows.

    Args:
        leaf: Number of the source that the file is the index of.
        file: The file.
        cache: Where blocks are kept.
    """

    def __init__(self, leaf: int, file: RowFile, cache: OffsetCache) -> None:
        self._leaf, self._file, self._cache = leaf, file, cache
        self.store = file.spec.open()

    def missing(self, rows: Int64Array) -> list[Callable[[], object]]:
        """What has to be run before :meth:`take`: one load for each block that is not at hand."""
        blocks = np.unique(rows // self._file.block_rows).tolist()
        return [partial(self._load, block) for block in blocks if self._cache.claim(*self._place(block))]

    def take(self, rows: Int64Array) -> Int64Array:
        """Some rows: ``int64 [len(rows), width]``."""
        blocks = rows // self._file.block_rows
        found = np.empty((len(rows), self._file.width), dtype=np.int64)
        for block in np.unique(blocks).tolist():
            window = self._cached(block) or self._load(block)  # another source may have pushed it out
            mine = blocks == block
            found[mine] = window.offsets[rows[mine] - window.first]
        return found

    def _place(self, block: int) -> tuple[int, int, int, int]:
        first = block * self._file.block_rows
        return self._leaf, block, first, first

    def _cached(self, block: int) -> OffsetWindow | None:
        return self._cache.get(*self._place(block))

    def _load(self, block: int) -> OffsetWindow:
        return self._cache.load(*self._place(block), lambda: self._read(block))

    def _read(self, block: int) -> OffsetWindow:
        return OffsetWindow(block * self._file.block_rows, self._file.read_block(self.store, block))
