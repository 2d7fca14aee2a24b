"""Reading some parts of the samples only, where that saves bytes.

``index.sqlite`` says where each part lies. It is asked for pages of samples, through the VFS that fetches the
file in lines, and only where bytes can be expected to be saved: where the user says which parts are wanted; else,
as with the parts of a field map, where the headers of one sample show that large parts are read in vain. They are
looked at while the first samples, whole ones, are under way. The first page of the index settles it: if no more
than ``max_gap`` bytes a sample can be skipped, which the planner would read over anyway, or if there is no usable
index, whole samples are read.

Nothing but traffic depends on it: samples, their order and states are the same either way.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

import apsw
import numpy as np

from energon_stream.arrays import Int64Array
from energon_stream.errors import EnergonStreamError, IndexMismatchError, MetadataError
from energon_stream.index.tar_format import TAR_RECORD, split_name, walk_members
from energon_stream.index.tar_index import OffsetWindow
from energon_stream.read.index_database import IndexDatabase, index_database
from energon_stream.read.locator import Cutter, RawSample
from energon_stream.read.part_ranges import PartRanges, find_part_ranges
from energon_stream.read.part_selection import PartSelection
from energon_stream.read.range_stream import RangeStream
from energon_stream.read.tar import TarLocator
from energon_stream.storage import ByteRange, Store

__all__ = ["PartLocator"]

_log = logging.getLogger(__name__)

_PAGE_SAMPLES = 1024
"""Samples whose places are asked for together."""

_LOOK_BYTES = 4 << 10
"""Bytes of a request for headers."""

_PLACES = """
SELECT sample_index, content_byte_offset, content_byte_size, part_name FROM sample_parts
WHERE tar_file_id = ? AND sample_index >= ? AND sample_index < ?
"""


class _NothingSavedError(Exception):
    """So few bytes can be skipped that whole samples are read."""


class _Way(Enum):
    BEGIN = "read whole samples, and look into one of the next ones"
    LOOK = "read whole samples, until one was looked into"
    TRY = "ask the index"
    PARTS = "read parts"
    WHOLE = "read whole samples"


@dataclass(slots=True)
class PartLocator:
    """Reads some parts of a prepared WebDataset in this process; see :class:`Locator` for the methods.

    Args:
        whole: Reads whole samples.
        selection: Which parts.
        max_gap: Bytes of a sample that are read rather than looked up to be skipped.
    """

    whole: TarLocator
    selection: PartSelection
    max_gap: int
    _ids: Int64Array = field(init=False)
    _first_page: Int64Array = field(init=False)
    _way: _Way = field(init=False)
    _asked: dict[str, bool] = field(init=False, default_factory=dict)
    _database: IndexDatabase | None = field(init=False, default=None)
    _looking: bool = field(init=False, default=False)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)

    def __post_init__(self) -> None:
        index = self.whole.index
        if index.shard_ids is None:
            raise TypeError("the numbers of the shards in index.sqlite are not known")
        self._ids = index.shard_ids
        pages = -(-index.shard_counts // _PAGE_SAMPLES)
        self._first_page = np.concatenate([[0], np.cumsum(pages)]).astype(np.int64)
        self._way = _Way.TRY if self.selection.declared else _Way.BEGIN

    @property
    def width(self) -> int:
        """Largest number of ranges of a sample; a whole one has one of them."""
        return self.selection.most_ranges

    @property
    def index_is_local(self) -> bool:
        """Whether index files are read at memory speed."""
        return self.whole.index_is_local

    @property
    def reads_parts(self) -> bool:
        """Whether it is settled that not all of a sample is read."""
        return self._way is _Way.PARTS

    def missing_offsets(self, samples: Int64Array) -> list[Callable[[], object]]:
        """Loads of the index's pages; of ``.tar.idx`` where whole samples are read."""
        if self._way is _Way.BEGIN:  # the first samples wait for nothing
            self._way = _Way.LOOK
            return self.whole.missing_offsets(samples)
        if self._way is _Way.LOOK and not self._looking:
            self._looking = True
            return [*self.whole.missing_offsets(samples), partial(self._look, samples)]
        if self._way not in (_Way.TRY, _Way.PARTS):
            return self.whole.missing_offsets(samples)
        pages = self._page_of(samples)
        return [
            partial(self._load, page, samples[pages == page])
            for page in np.unique(pages).tolist()
            if self.whole.offsets.claim(*self._place(page))
        ]

    def index_reads(self, samples: Int64Array) -> list[Callable[[], object]]:
        """Reads of the index's pages that have some samples, even where whole samples are read: to find that out,
        every process asks for one of them."""
        return [partial(self._fetch, page) for page in np.unique(self._page_of(samples)).tolist()]

    def locate(self, samples: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Shard, first byte, and one past the last byte of each range; -1 where a sample has fewer."""
        found = np.full((2, len(samples), self.width), -1, dtype=np.int64)
        if self._way not in (_Way.TRY, _Way.PARTS) or not self._locate_parts(samples, found):
            found[:] = -1
            _, found[0, :, :1], found[1, :, :1] = self.whole.locate(samples)
        objects = np.where(found[0] < 0, -1, self.whole.shard_of(samples)[:, None])
        return objects, found[0], found[1]

    def _locate_parts(self, samples: Int64Array, found: Int64Array) -> bool:
        """Fill in the ranges of parts; False where whole samples are to be read instead."""
        pages = self._page_of(samples)
        for page in np.unique(pages).tolist():
            mine = pages == page
            # Other locators may have pushed it out; or another reader has settled meanwhile what is read.
            window = self._cached(page) or self._load(page, samples[mine])
            if window is None:
                return False
            rows = window.offsets[samples[mine] - window.first]
            found[:, mine] = rows.reshape(len(rows), 2, self.width).transpose(1, 0, 2)
        return True

    def _page_of(self, samples: Int64Array) -> Int64Array:
        """Number of the page that has each sample: pages are counted through the shards."""
        shards = self.whole.shard_of(samples)
        local = samples - self.whole.index.shard_starts[shards]
        return self._first_page[shards] + local // _PAGE_SAMPLES

    def _place(self, page: int) -> tuple[int, int, int, int]:
        """Where the cache has a page: beside the entries of ``.tar.idx``, which have the numbers of the shards."""
        first = self._samples_of(page)[1]
        return self.whole.leaf, len(self._ids) + page, first, first

    def _cached(self, page: int) -> OffsetWindow | None:
        return self.whole.offsets.get(*self._place(page))

    def _samples_of(self, page: int) -> tuple[int, int, int]:
        """Shard of a page, its first sample, and the number of samples before that in the shard."""
        shard = int(np.searchsorted(self._first_page, page, side="right")) - 1
        before = (page - int(self._first_page[shard])) * _PAGE_SAMPLES
        return shard, int(self.whole.index.shard_starts[shard]) + before, before

    def _look(self, samples: Int64Array) -> None:
        """Look at the headers of a sample; if much of it is not needed, the index is asked whether that is so."""
        try:
            self._way = _Way.TRY if self._reads_in_vain(samples[:1]) else _Way.WHOLE
        except EnergonStreamError:  # whoever reads the sample will be told
            self._way = _Way.WHOLE
        if self._way is _Way.TRY:
            pages = self._page_of(samples)
            for page in np.unique(pages).tolist():
                self._load(page, samples[pages == page])

    def _reads_in_vain(self, sample: Int64Array) -> bool:
        """Whether more than half of ``max_gap`` bytes of a sample are not needed; there may be larger ones."""
        shards, starts, stops = self.whole.locate(sample)
        shard, start, stop = shards.item(), starts.item(), stops.item()
        store, path = self.place(shard)
        window, first = memoryview(b""), start

        def read(offset: int, length: int) -> memoryview:
            nonlocal window, first
            if not first <= offset <= offset + length <= first + len(window):
                part = ByteRange(offset, min(offset + max(length, _LOOK_BYTES), stop))
                window, first = store.get_range(path, part, etag=self.etag(shard)).data, offset
            return window[offset - first : offset - first + length]

        in_vain, limit = 0, self.max_gap // 2
        if stop - start > limit:
            for member in walk_members(read, start, stop):
                name = split_name(member.name) if member.is_file else None
                in_vain += 0 if name is not None and name[1] in self.selection else member.size
                if in_vain > limit or in_vain + stop - member.end <= limit:
                    break
        return in_vain > limit

    def _load(self, page: int, samples: Int64Array) -> OffsetWindow | None:
        """Get a page; None where whole samples are to be read, and then what they need is at hand."""
        if self._way is _Way.TRY:
            with self._lock:  # the first one settles it for all
                if self._way is _Way.TRY:
                    window = self._fetch(page)
                    self._way = _Way.WHOLE if window is None else _Way.PARTS
        window = self._cached(page)
        if window is None and self._way is _Way.PARTS:
            window = self._fetch(page)
            if window is None:
                self._way = _Way.WHOLE
        if window is None:
            for load in self.whole.missing_offsets(samples):
                load()
        return window

    def _fetch(self, page: int) -> OffsetWindow | None:
        """Read a page of the index and keep it; None where that is impossible, or of no use."""
        try:
            return self.whole.offsets.load(*self._place(page), partial(self._read, page))
        except _NothingSavedError:
            return None
        except (EnergonStreamError, apsw.Error) as error:
            _log.warning("%s is read by whole samples: %s", self.whole.index.spec.url, error)
            return None

    def _read(self, page: int) -> OffsetWindow:
        shard, first, before = self._samples_of(page)
        count = min(_PAGE_SAMPLES, int(self.whole.index.shard_counts[shard]) - before)
        found = self._ranges(int(self._ids[shard]), before, count)
        if self._way is _Way.TRY and found.skipped <= self.max_gap * count:
            raise _NothingSavedError
        return OffsetWindow(first, np.concatenate([found.starts, found.stops], axis=1))

    def _ranges(self, shard_id: int, before: int, count: int) -> PartRanges:
        """Where the wanted parts of ``count`` samples of a shard lie, after ``before`` others."""
        if self._database is None:
            self._database = index_database(self.whole.index.spec)
        # The sample before them tells where the first one's header begins.
        rows = self._database.rows(_PLACES, (shard_id, max(0, before - 1), before + count))
        numbers = np.array([row[:3] for row in rows], dtype=np.int64).reshape(-1, 3)
        wanted = np.array([self._wants(row[3]) for row in rows], dtype=bool)
        order = np.argsort(numbers[:, 1], kind="stable")
        samples, starts, sizes = numbers[order].T
        mine = samples >= before
        try:
            if not mine.any() or samples[-1] != before + count - 1:
                raise ValueError(f"there are not {count} samples")
            earlier = np.flatnonzero(~mine)
            begin = -(-int((starts + sizes)[earlier].max()) // TAR_RECORD) * TAR_RECORD if len(earlier) else 0
            return find_part_ranges(
                samples[mine] - before,
                starts[mine],
                sizes[mine],
                wanted[order][mine],
                begin=begin,
                max_gap=self.max_gap,
                width=self.width,
            )
        except ValueError as error:
            raise MetadataError(
                f"the index is of other shards: {error} in shard {shard_id} from sample {before} on",
                where=self._database.url,
                hint="run `energon-stream prepare` again",
            ) from error

    def _wants(self, part: str) -> bool:
        """Whether a part is wanted; asked once for each name."""
        if part not in self._asked:
            try:
                self._asked[part] = part in self.selection
            except Exception:  # the same call fails for the sample, where it can be named
                self._asked[part] = True
        return self._asked[part]

    def place(self, number: int) -> tuple[Store, str]:
        """Store and path of a shard."""
        return self.whole.place(number)

    def etag(self, number: int) -> str | None:
        """Content version of a shard, if it is known."""
        return self.whole.etag(number)

    def observe(self, number: int, etag: str | None) -> None:
        """Note the version of a shard."""
        self.whole.observe(number, etag)

    def split(
        self, number: int, data: memoryview, start: int, starts: Int64Array, stops: Int64Array
    ) -> Cutter:
        """Read the headers of a fetch; each range has those of its parts."""
        return self.whole.split(number, data, start, starts, stops)

    def merge(self, sample: int, found: Sequence[tuple[int, RawSample | None]]) -> RawSample | None:
        """Put the parts of all ranges together."""
        raw = found[0][1]
        if raw is None:
            return None
        for _, more in found[1:]:
            if more is None or more.key != raw.key:
                raise IndexMismatchError(
                    f"sample {raw.index} has parts of different keys",
                    where=f"{self.whole.index.spec.url}/{raw.shard}",
                    hint="the shard was changed after it was indexed; run `energon-stream prepare` again",
                )
            raw.parts.update(more.parts)
        return raw

    def cut_streams(self, sample: int, streams: Sequence[tuple[int, RangeStream]]) -> RawSample | None:
        """Cut the ranges of a sample into parts as they come."""
        cut = [(stream[0], self.whole.cut_streams(sample, [stream])) for stream in streams]
        return self.merge(sample, cut)
