"""The locator of files of any format, which says where samples are, and cuts them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from energon_stream.errors import IndexMismatchError
from energon_stream.index.entries import EntryPages, Load, OffsetCache
from energon_stream.index.objects import ShardObject, VersionGuard
from energon_stream.logs import log_once
from energon_stream.read.locator import Cut, Locator, RawSample

if TYPE_CHECKING:
    from energon_stream.arrays import Int64Array
    from energon_stream.index.files_index import FilesIndex
    from energon_stream.read.range_stream import RangeStream
    from energon_stream.read.read_plan import Request
    from energon_stream.storage import Store

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class FileLocator(Locator):
    """Locator of one dataset of files. A sample's key is its number. The objects are the files."""

    leaf: int
    index: FilesIndex
    offsets: OffsetCache = field(default_factory=OffsetCache)
    store: Store = field(init=False)
    _pages: EntryPages = field(init=False)
    _sizes: Int64Array = field(init=False)
    _versions: VersionGuard = field(init=False)

    def __post_init__(self) -> None:
        index = self.index
        first = index.place(0)
        self.store = first.store
        rows = index.format.page_rows
        self._pages = EntryPages(first.index_store, self.offsets, index.file_starts, rows, self._read)
        most = np.iinfo(np.int64).max
        sizes = [most if file.size is None else file.size for file in index.opened]
        self._sizes = np.array(sizes, dtype=np.int64)
        self._versions = VersionGuard(index.spec.url)

    def _read(self, store: Store, file: int, first: int, last: int) -> Int64Array:
        index = self.index
        place = index.place(file)
        known = index.opened[file].size
        if known is not None and self.store.is_local and self.store.head(index.paths[file]).size > known:
            what = "%s has grown: its first %d bytes are read, as it was prepared; prepare it again for all"
            log_once(_log, what, place.url, known)
        places = index.format.places(store, place.index_path, index.opened[file], first, last)
        starts, stops = places.T
        wrong = np.flatnonzero((starts < 0) | (stops < starts) | (stops > self._sizes[file]))
        if len(wrong):
            start, stop = places[wrong[0]].tolist()
            raise IndexMismatchError(
                f"the index says that sample {first + wrong[0]} has the bytes {start} to {stop} of a file of "
                f"{self._sizes[file]}",
                where=place.index_url,
                hint="the index is damaged, or of another file; write both again",
            )
        return places

    @property
    def index_is_local(self) -> bool:
        return self.store.is_local

    @property
    def is_sparse(self) -> bool:
        return self.index.selection is not None

    def claim_loads(self, samples: Int64Array) -> list[Load]:
        return self._pages.claim_loads(samples)

    def locate(self, samples: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Return file, first byte, and one past the last byte: ``int64 [len(samples), 1]`` arrays."""
        files = self.index.file_of(samples)
        starts, stops = self._pages.rows(samples, 2).T
        empty = stops == starts  # a request needs bytes: it takes in the one after the sample, or before it
        stops = np.where(empty, np.minimum(stops + 1, self._sizes[files]), stops)
        starts = np.where(empty, stops - 1, starts)
        return files[:, None], starts[:, None], stops[:, None]

    def object(self, number: int) -> ShardObject:
        return ShardObject(self.store, self.index.paths[number], self._versions)

    def split(self, request: Request, data: memoryview) -> Cut:
        places = (self._pages.rows(request.samples, 2) - request.start).tolist()

        def cut(sample: int, number: int) -> RawSample:
            start, stop = places[number]
            return self._cut(sample, request.object, data[start:stop] if start < stop else data[:0])

        return cut

    def _cut(self, sample: int, file: int, data: memoryview) -> RawSample:
        index = self.index
        try:
            parts = index.format.cut(sample - int(index.file_starts[file]), data, index.opened[file])
        except IndexMismatchError as error:
            raise IndexMismatchError(error.what, where=index.place(file).url, hint=error.hint) from None
        return RawSample(self.leaf, sample, str(sample), index.paths[file] or None, parts)

    def cut_streams(self, sample: int, streams: Sequence[tuple[int, RangeStream]]) -> RawSample:
        file, stream = streams[0]
        return self._cut(sample, file, memoryview(stream.read(stream.stop - stream.start)))
