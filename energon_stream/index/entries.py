"""Index entries in memory: loaded in pages, each once, and kept within bounds."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from energon_stream.arrays import Int64Array, distinct

if TYPE_CHECKING:
    from energon_stream.index.index_files import RowFile
    from energon_stream.storage import Store

ReadPage: TypeAlias = "Callable[[Store, int, int, int], Int64Array]"
"""Reads a page, given a store, a shard, and the first and the last sample (exclusive) in the shard."""


@dataclass(frozen=True, slots=True)
class Load:
    """Index entries to be loaded from a store."""

    store: Store
    read: Callable[[Store], object]  # requests them from it, or one that reports to a fetcher; keeps them

    def run(self) -> None:
        """Load the entries on this thread."""
        self.read(self.store)


class OffsetCache:
    """Keeps pages of indices in memory, bounded in bytes; the least recently used ones make room."""

    def __init__(self, max_bytes: int = 64 << 20) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._pages: OrderedDict[tuple[EntryPages, int], Int64Array] = OrderedDict()
        self._loading: set[tuple[EntryPages, int]] = set()
        self._lock = threading.Lock()

    def get(self, index: EntryPages, page: int) -> Int64Array | None:
        """Return a page of an index, if it is kept."""
        with self._lock:
            found = self._pages.get((index, page))
            if found is not None:
                self._pages.move_to_end((index, page))
            return found

    def claim(self, index: EntryPages, page: int) -> bool:
        """Return True if the caller must load a page: it is missing, and not being loaded yet."""
        if (index, page) in self._loading or self.get(index, page) is not None:
            return False
        self._loading.add((index, page))
        return True

    def load(self, index: EntryPages, page: int, read: Callable[[], Int64Array]) -> Int64Array:
        """Read a page and keep it. This ends a claim."""
        try:
            found = read()
            with self._lock:
                old = self._pages.pop((index, page), None)
                self._bytes += found.nbytes - (0 if old is None else old.nbytes)
                self._pages[index, page] = found
                while self._bytes > self._max_bytes and len(self._pages) > 1:
                    self._bytes -= self._pages.popitem(last=False)[1].nbytes
        finally:
            self._loading.discard((index, page))
        return found


class EntryPages:
    """The entries of a dataset's samples, in pages of ``size`` samples of one shard, which ``read`` reads.

    Several indices may share the cache. ``starts`` has the number of the first sample of each shard, and of
    all.
    """

    def __init__(
        self, store: Store, cache: OffsetCache, starts: Int64Array, size: int, read: ReadPage
    ) -> None:
        self.store = store
        self._cache, self._starts, self._size, self._read = cache, starts, size, read
        self._first_page = np.concatenate([[0], np.cumsum(-(-np.diff(starts) // size))])

    @classmethod
    def of_file(cls, file: RowFile, cache: OffsetCache) -> EntryPages:
        """Return the rows of a file as the entries of one shard."""
        starts = np.array([0, file.rows], dtype=np.int64)
        return cls(
            file.spec.open(), cache, starts, file.page_rows, lambda store, _, *rows: file.read(store, *rows)
        )

    def shard_of(self, samples: Int64Array) -> Int64Array:
        """Return the shard number of each sample, ``int64``."""
        return np.searchsorted(self._starts, samples, side="right") - 1

    def _places(self, samples: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the page of each sample, and the sample's number in it."""
        shards = self.shard_of(samples)
        pages, rows = np.divmod(samples - self._starts[shards], self._size)
        return pages + self._first_page[shards], rows

    def claim(self, samples: Int64Array) -> Iterator[tuple[Load, npt.NDArray[np.bool_]]]:
        """Yield a load for each page that is missing, and which of the samples need it."""
        pages, _ = self._places(samples)
        for page in distinct(pages).tolist():
            if self._cache.claim(self, page):
                yield Load(self.store, partial(self.load, page)), pages == page

    def claim_loads(self, samples: Int64Array) -> list[Load]:
        """Return loads of missing pages, which the caller runs before it asks for the entries."""
        return [load for load, _ in self.claim(samples)]

    def load(self, page: int, store: Store) -> Int64Array:
        """Read a page from a store and keep it."""
        shard = int(np.searchsorted(self._first_page, page, side="right")) - 1
        first = (page - int(self._first_page[shard])) * self._size
        last = min(first + self._size, int(self._starts[shard + 1] - self._starts[shard]))
        return self._cache.load(self, page, lambda: self._read(store, shard, first, last))

    def page(self, page: int) -> Int64Array:
        """Return the entries of a page. They are read if other indices have pushed them out."""
        found = self._cache.get(self, page)
        return self.load(page, self.store) if found is None else found

    def find(self, samples: Int64Array) -> Iterator[tuple[npt.NDArray[np.bool_], Int64Array, Int64Array]]:
        """Yield, for each page, which samples it has, their numbers in it, and its entries."""
        pages, rows = self._places(samples)
        for page in distinct(pages).tolist():
            mine = pages == page
            yield mine, rows[mine], self.page(page)

    def rows(self, samples: Int64Array, width: int) -> Int64Array:
        """Return the rows of samples, ``int64 [len(samples), width]``."""
        found = np.empty((len(samples), width), dtype=np.int64)
        for mine, rows, entries in self.find(samples):
            found[mine] = entries[rows]
        return found
