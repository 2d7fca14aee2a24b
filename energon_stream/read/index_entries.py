"""Index entries in memory: loaded in pages, each once, and kept within bounds."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from energon_stream.arrays import distinct
from energon_stream.index.index_files import OffsetWindow, RowFile
from energon_stream.read.locator import Load

if TYPE_CHECKING:
    from energon_stream.arrays import Int64Array
    from energon_stream.storage import Store


class OffsetCache:
    """Keeps windows of index files by leaf and number (of a shard or page), bounded in bytes."""

    def __init__(self, max_bytes: int = 64 << 20) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._entries: OrderedDict[tuple[int, int], OffsetWindow] = OrderedDict()
        self._loading: set[tuple[int, int, int, int]] = set()
        self._lock = threading.Lock()

    def get(self, leaf: int, number: int, first: int, last: int) -> OffsetWindow | None:
        """Return the kept window if it covers entries ``first`` to ``last``, else None."""
        with self._lock:
            window = self._entries.get((leaf, number))
            if window is None or not window.covers(first, last):
                return None
            self._entries.move_to_end((leaf, number))
            return window

    def claim(self, leaf: int, number: int, first: int, last: int) -> bool:
        """Return True if the caller must load these entries: they are missing, and nobody loads them yet."""
        claim = (leaf, number, first, last)
        if claim in self._loading or self.get(leaf, number, first, last) is not None:
            return False
        self._loading.add(claim)
        return True

    def load(
        self, leaf: int, number: int, first: int, last: int, read: Callable[[], OffsetWindow]
    ) -> OffsetWindow:
        """Read entries and keep them. This ends a claim."""
        try:
            window = read()
            self._put(leaf, number, window)
        finally:
            self._loading.discard((leaf, number, first, last))
        return window

    def _put(self, leaf: int, number: int, window: OffsetWindow) -> None:
        """Keep a window; the least recently used ones make room."""
        with self._lock:
            old = self._entries.pop((leaf, number), None)
            self._bytes += window.offsets.nbytes - (0 if old is None else old.offsets.nbytes)
            self._entries[leaf, number] = window
            while self._bytes > self._max_bytes and len(self._entries) > 1:
                self._bytes -= self._entries.popitem(last=False)[1].offsets.nbytes


class RowPages:
    """Rows of one index file."""

    def __init__(self, leaf: int, file: RowFile, cache: OffsetCache) -> None:
        self._leaf, self._file, self._cache = leaf, file, cache
        self.store = file.spec.open()

    def claim_loads(self, rows: Int64Array) -> list[Load]:
        """Return loads of missing pages, which the caller runs before :meth:`take`."""
        pages = distinct(rows // self._file.page_rows).tolist()
        return [
            Load(self.store, partial(self._load, page))
            for page in pages
            if self._cache.claim(*self._place(page))
        ]

    def take(self, rows: Int64Array) -> Int64Array:
        """Return rows as ``int64 [len(rows), width]``."""
        pages = rows // self._file.page_rows
        found = np.empty((len(rows), self._file.width), dtype=np.int64)
        for page in distinct(pages).tolist():
            window = self._cached(page) or self._load(page, self.store)  # another leaf may have pushed it out
            mine = pages == page
            found[mine] = window.offsets[rows[mine] - window.first]
        return found

    def _place(self, page: int) -> tuple[int, int, int, int]:
        first = page * self._file.page_rows
        return self._leaf, page, first, first

    def _cached(self, page: int) -> OffsetWindow | None:
        return self._cache.get(*self._place(page))

    def _load(self, page: int, store: Store) -> OffsetWindow:
        return self._cache.load(*self._place(page), lambda: self._read(page, store))

    def _read(self, page: int, store: Store) -> OffsetWindow:
        return OffsetWindow(page * self._file.page_rows, self._file.read_page(store, page))
