"""Looks up rows of an index file in pages, which are read once and kept within bounds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from energon_stream.arrays import Int64Array
from energon_stream.index.index_files import OffsetWindow, RowFile
from energon_stream.read.locator import OffsetCache

__all__ = ["RowPages"]


class RowPages:
    """Rows of one index file.

    Args:
        leaf: Number of the leaf that the file indexes.
        file: The file.
        cache: Keeps pages.
    """

    def __init__(self, leaf: int, file: RowFile, cache: OffsetCache) -> None:
        self._leaf, self._file, self._cache = leaf, file, cache
        self.store = file.spec.open()

    def missing(self, rows: Int64Array) -> list[Callable[[], object]]:
        """Return functions to run before :meth:`take`: one for each page to load."""
        pages = np.unique(rows // self._file.page_rows).tolist()
        return [partial(self._load, page) for page in pages if self._cache.claim(*self._place(page))]

    def take(self, rows: Int64Array) -> Int64Array:
        """Return rows as ``int64 [len(rows), width]``."""
        pages = rows // self._file.page_rows
        found = np.empty((len(rows), self._file.width), dtype=np.int64)
        for page in np.unique(pages).tolist():
            window = self._cached(page) or self._load(page)  # another leaf may have pushed it out
            mine = pages == page
            found[mine] = window.offsets[rows[mine] - window.first]
        return found

    def _place(self, page: int) -> tuple[int, int, int, int]:
        first = page * self._file.page_rows
        return self._leaf, page, first, first

    def _cached(self, page: int) -> OffsetWindow | None:
        return self._cache.get(*self._place(page))

    def _load(self, page: int) -> OffsetWindow:
        return self._cache.load(*self._place(page), lambda: self._read(page))

    def _read(self, page: int) -> OffsetWindow:
        return OffsetWindow(page * self._file.page_rows, self._file.read_page(self.store, page))
