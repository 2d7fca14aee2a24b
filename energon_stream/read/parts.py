"""The locator that reads only some parts of samples, if that saves bytes.

``index.sqlite`` has the place of each part. It is queried for pages of samples, but only if that may save
bytes. A dataset's first samples settle this, once for all readers: if the user selected parts, or if the
headers of the first sample show that a field map leaves large parts out, the first page of the index tells
how much can be skipped. If it is at most ``max_gap`` bytes a sample, which the planner would read over
anyway, or if the index is unusable, whole samples are read. A sample is read whole, too, if it has bytes
that the index says nothing of, where a part may be that the index has lost.

Selected parts are settled before the first samples are located. If only a field map leaves parts out, the
first samples of a reader are read whole meanwhile, because settling takes several round trips.

The decision affects traffic only. Samples, order and states are the same either way.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import apsw
import numpy as np

from energon_stream.arrays import distinct
from energon_stream.errors import EnergonStreamError, IndexMismatchError
from energon_stream.index.index_files import OffsetWindow
from energon_stream.index.tar_format import TAR_RECORD, split_name, walk_members
from energon_stream.read.index_database import IndexDatabase, index_database
from energon_stream.read.locator import Load
from energon_stream.read.part_ranges import (
    PartPlaces,
    PartRanges,
    PartSelection,
    doubtful_samples,
    find_part_ranges,
)
from energon_stream.storage import ByteRange

if TYPE_CHECKING:
    from energon_stream.arrays import Int64Array
    from energon_stream.errors import ChecksumError
    from energon_stream.read.locator import Cutter, Locator, RawSample
    from energon_stream.read.objects import ShardObject
    from energon_stream.read.range_stream import RangeStream
    from energon_stream.read.tar import TarLocator
    from energon_stream.storage import Store

_log = logging.getLogger(__name__)

_PAGE_SAMPLES = 1024
"""Samples of one page: one query."""

_HEADER_BYTES = 4 << 10
"""Bytes of one request for headers."""

_PLACES = """
SELECT sample_index, content_byte_offset, content_byte_size, part_name FROM sample_parts
WHERE tar_file_id = ?
"""
# The first and the last page of a shard have an open end. So they return the rows of the shard whose
# sample_index is no integer: SQLite sorts these before or after all integers.
_FROM, _BELOW, _AT_MOST = " AND sample_index >= ?", " AND sample_index < ?", f" LIMIT {1 << 20}"


@dataclass(slots=True)
class PartLocator:
    """Locator of some parts of a prepared WebDataset; see :class:`Locator`."""

    whole: TarLocator
    selection: PartSelection
    max_gap: int
    _ids: Int64Array = field(init=False)
    _first_page: Int64Array = field(init=False)
    _skips: bool | None = field(init=False, default=None)  # whether parts are read; None until it is settled
    _least_header: int = field(init=False, default=1 << 30)  # bytes of the headers of a part
    _most_known: int = field(init=False, default=0)  # largest number of wanted parts that a sample has
    _asked: dict[str, bool] = field(init=False, default_factory=dict)
    _database: IndexDatabase | None = field(init=False, default=None)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)

    def __post_init__(self) -> None:
        index = self.whole.index
        if index.shard_ids is None:
            raise TypeError("the index has no shard ids")
        self._ids = index.shard_ids
        pages = -(-index.shard_counts // _PAGE_SAMPLES)
        self._first_page = np.concatenate([[0], np.cumsum(pages)]).astype(np.int64)

    @property
    def width(self) -> int:
        """Largest number of ranges of a sample. A whole sample has one."""
        return self.selection.max_ranges

    @property
    def index_is_local(self) -> bool:
        """True if index files are read at memory speed."""
        return self.whole.index_is_local

    @property
    def skips_bytes(self) -> bool:
        """True if it is settled that parts are read."""
        return bool(self._skips)

    @property
    def opening(self) -> Locator:
        """Locator of a reader's first samples."""
        return self if self.selection.declared or self._skips is not None else self.whole

    def claim_loads(self, samples: Int64Array) -> list[Load]:
        """Return loads of pages of the index, or of ``.tar.idx`` if whole samples are read."""
        if self._skips is False:
            return self.whole.claim_loads(samples)
        pages = self._page_of(samples)
        loads = [
            Load(self.whole.store, partial(self._load, page, samples[pages == page]))
            for page in distinct(pages).tolist()
            if self.whole.offsets.claim(*self._place(page))
        ]
        if self._skips or self.selection.declared:
            return loads
        # Most datasets turn out to be read whole, so nothing waits for the headers.
        return [*self.whole.claim_loads(samples), *loads]

    def settle(self) -> bool:
        """Find out, once, whether reading parts saves bytes. This may take several requests."""
        with self._lock:
            if self._skips is None:
                self._skips = (self.selection.declared or self._first_saves()) and self._page_saves()
        return self._skips

    def locate(self, samples: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Return shard, first byte, and one past the last byte of each range; -1 if a sample has fewer."""
        found = np.full((2, len(samples), self.width), -1, dtype=np.int64)
        if not self.settle() or not self._locate_parts(samples, found):
            found[:] = -1
            _, found[0, :, :1], found[1, :, :1] = self.whole.locate(samples)
        objects = np.where(found[0] < 0, -1, self.whole.shard_of(samples)[:, None])
        return objects, found[0], found[1]

    def _locate_parts(self, samples: Int64Array, found: Int64Array) -> bool:
        """Fill in the ranges of parts. Return False if whole samples are to be read instead."""
        pages = self._page_of(samples)
        for page in distinct(pages).tolist():
            mine = pages == page
            # Other leaves may have pushed the page out.
            window = self._cached(page) or self._load(page, samples[mine], self.whole.store)
            if window is None:
                return False
            rows = window.offsets[samples[mine] - window.first]
            found[:, mine] = rows[:, :-1].reshape(len(rows), 2, self.width).transpose(1, 0, 2)
        return True

    def _page_of(self, samples: Int64Array) -> Int64Array:
        """Return the page of each sample; pages are counted through the shards."""
        shards = self.whole.shard_of(samples)
        local = samples - self.whole.index.shard_starts[shards]
        return self._first_page[shards] + local // _PAGE_SAMPLES

    def _place(self, page: int) -> tuple[int, int, int, int]:
        """Return the cache key of a page. Its number follows those of the shards' ``.tar.idx`` entries."""
        first = self._samples_of(page)[1]
        return self.whole.leaf, len(self._ids) + page, first, first

    def _cached(self, page: int) -> OffsetWindow | None:
        return self.whole.offsets.get(*self._place(page))

    def _samples_of(self, page: int) -> tuple[int, int, int]:
        """Return the shard of a page, the page's first sample, and the samples before it in the shard."""
        shard = int(np.searchsorted(self._first_page, page, side="right")) - 1
        before = (page - int(self._first_page[shard])) * _PAGE_SAMPLES
        return shard, int(self.whole.index.shard_starts[shard]) + before, before

    def _first_saves(self) -> bool:
        """Return whether the headers of the first sample show bytes that can be skipped."""
        first = np.zeros(1, dtype=np.int64)
        try:
            for load in self.whole.claim_loads(first):
                load.run()
            return self._saves_bytes(first)
        except EnergonStreamError:  # reading the sample raises it again
            return False

    def _saves_bytes(self, sample: Int64Array) -> bool:
        """Return whether a sample has more than half of ``max_gap`` unneeded bytes; others may have more."""
        shards, starts, stops = self.whole.locate(sample)
        shard, start, stop = shards.item(), starts.item(), stops.item()
        shard_object = self.object(shard)
        window, first = memoryview(b""), start

        def read(offset: int, length: int) -> memoryview:
            nonlocal window, first
            if not first <= offset <= offset + length <= first + len(window):
                part = ByteRange(offset, min(offset + max(length, _HEADER_BYTES), stop))
                body = shard_object.store.get_range(shard_object.path, part, etag=shard_object.etag)
                window, first = body.data, offset
            return window[offset - first : offset - first + length]

        unneeded, limit = 0, self.max_gap // 2
        if stop - start > limit:
            for member in walk_members(read, start, stop):
                name = split_name(member.name) if member.is_file else None
                unneeded += 0 if name is not None and name[1] in self.selection else member.size
                if unneeded > limit or unneeded + stop - member.end <= limit:
                    break
        return unneeded > limit

    def _page_saves(self) -> bool:
        """Return whether the first page of the index is usable, and tells of bytes that can be skipped."""
        try:
            found = self._ranges_of(0)
            self.whole.offsets.load(*self._place(0), partial(self._window, 0, found))
        except (EnergonStreamError, apsw.Error) as error:
            self._warn(error)
            return False
        return found.skipped > self.max_gap * len(found.starts)

    def _load(self, page: int, samples: Int64Array, store: Store) -> OffsetWindow | None:
        """Load a page. Return None if whole samples are to be read; their index entries are loaded then.

        SQLite reads with a store of its own.
        """
        window = (self._cached(page) or self._fetch(page)) if self.settle() else None
        if window is None:
            for load in self.whole.claim_loads(samples):
                load.read(store if load.store is self.whole.store else load.store)
        return window

    def _fetch(self, page: int) -> OffsetWindow | None:
        """Read a page of the index and keep it. If that is impossible, whole samples are read from now on."""
        try:
            return self.whole.offsets.load(
                *self._place(page), lambda: self._window(page, self._ranges_of(page))
            )
        except (EnergonStreamError, apsw.Error) as error:
            self._skips = False
            self._warn(error)
            return None

    def _warn(self, error: Exception) -> None:
        _log.warning(
            "%s: whole samples are read, because the index cannot be used: %s",
            self.whole.index.spec.url,
            error,
        )

    def _window(self, page: int, found: PartRanges) -> OffsetWindow:
        columns = [found.starts, found.stops, found.known[:, None]]
        return OffsetWindow(self._samples_of(page)[1], np.concatenate(columns, axis=1))

    def _ranges_of(self, page: int) -> PartRanges:
        """Return the ranges of the wanted parts of a page of samples.

        Raises MetadataError if the index cannot be right: rows are missing or have wrong types, or parts lie
        outside their samples.
        """
        if self._database is None:
            self._database = index_database(self.whole.index.spec)
        shard, first, before = self._samples_of(page)
        samples = np.arange(first, first + min(_PAGE_SAMPLES, self.whole.shard_samples(shard) - before))
        try:
            places, after = self._places(self._database, shard, before, len(samples))
            found = find_part_ranges(places, max_gap=self.max_gap, width=self.width)
            bounds = self.whole.known_bounds(samples)
            if bounds is not None and not places.lie_within(*bounds):
                raise ValueError("parts lie outside their samples")
        except ValueError as error:
            where = f"{self.whole.index.shard_paths[shard]} from sample {before} on"
            raise self._database.damaged(f"{error}, in {where}") from error
        known = found.known
        self._most_known = max(self._most_known, int(known.max()))
        self._least_header = min(self._least_header, int(places.gaps.min()))
        if after is None:  # the end of the shard
            left = 0 if known[-1] == known.max() else TAR_RECORD
            if bounds is not None:
                left = int(bounds[1][-1] - places.ends[-1])
            after = self._least_header + left
        wanted = self.selection.wanted
        most = len(wanted) if isinstance(wanted, frozenset) else int(known.max())
        doubtful = doubtful_samples(places, after=after, least=self._least_header, most=most)
        return self._with_whole(found, doubtful, samples) if len(doubtful) else found

    def _with_whole(self, found: PartRanges, which: Int64Array, samples: Int64Array) -> PartRanges:
        """Return ranges with those of some samples replaced by the whole samples."""
        _, first, last = self.whole.locate(samples[which])
        before = (found.stops - found.starts)[which].sum()
        for ranges, ends in ((found.starts, first), (found.stops, last)):
            ranges[which] = -1
            ranges[which, :1] = ends
        more = int((last - first).sum() - before)
        return replace(found, skipped=max(0, found.skipped - more))

    def _places(
        self, database: IndexDatabase, shard: int, before: int, count: int
    ) -> tuple[PartPlaces, int | None]:
        """Return the places of the parts of ``count`` samples of a shard, after ``before`` others.

        Also return the bytes between these parts and the next one; None at the end of the shard.

        Raises ValueError if the index does not have them.
        """
        stop, is_last = before + count, before + count == self.whole.shard_samples(shard)
        query, values = _PLACES, [int(self._ids[shard])]
        if before:
            # The end of the sample before them is the first header's place.
            query, values = query + _FROM, [*values, before - 1]
        if not is_last:
            query, values = query + _BELOW, [*values, stop + 1]
        rows = database.rows(query + _AT_MOST, tuple(values))
        numbers = np.array([row[:3] for row in rows])
        if not rows:
            raise ValueError("there are no samples")
        if numbers.dtype.kind != "i":
            raise ValueError("a number has another type")
        wanted = np.array([self._wants(row[3]) for row in rows], dtype=bool)
        order = np.argsort(numbers[:, 1], kind="stable")
        samples, starts, sizes = numbers[order].T
        mine, later = (samples >= before) & (samples < stop), samples >= stop
        if not mine.any() or samples[mine][-1] != stop - 1 or later.any() == is_last:
            raise ValueError(f"there are not {count} samples")
        earlier = np.flatnonzero(samples < before)
        begin = -(-int((starts + sizes)[earlier].max()) // TAR_RECORD) * TAR_RECORD if len(earlier) else 0
        places = PartPlaces(samples[mine] - before, starts[mine], sizes[mine], wanted[order][mine], begin)
        return places, None if is_last else int(starts[later].min() - places.ends[-1])

    def _wants(self, part: str) -> bool:
        """Return whether a part is wanted. The user's function is called once for each name."""
        if part not in self._asked:
            if not isinstance(part, str):
                raise ValueError(f"{part!r:.40} is no name of a part")
            try:
                self._asked[part] = part in self.selection
            except Exception:  # the call fails again for the sample, where the error can name it
                self._asked[part] = True
        return self._asked[part]

    def object(self, number: int) -> ShardObject:
        """Return a shard."""
        return self.whole.object(number)

    def split(
        self, number: int, data: memoryview, start: int, starts: Int64Array, stops: Int64Array
    ) -> Cutter:
        """Read the headers of a fetch."""
        cutter = self.whole.split(number, data, start, starts, stops)
        return _CheckedCutter(self, cutter) if self._skips and self.width == 1 else cutter

    def wrong_ranges(
        self, samples: Int64Array, data: memoryview, start: int, starts: Int64Array, stops: Int64Array
    ) -> dict[int, ChecksumError]:
        """Compare samples of a fetch with their checksums, if whole samples are read."""
        return self.whole.wrong_ranges(samples, data, start, starts, stops) if self._skips is False else {}

    def merge(self, sample: int, found: Sequence[tuple[int, RawSample | None]]) -> RawSample | None:
        """Merge the parts of all ranges."""
        raw = found[0][1]
        if raw is None:
            return None
        for _, more in found[1:]:
            if more is None or more.key != raw.key:
                raise IndexMismatchError(
                    f"sample {raw.index} has parts with different keys",
                    where=f"{self.whole.index.spec.url}/{raw.shard}",
                    hint="the shard was changed after it was indexed; run `energon-stream prepare` again",
                )
            raw.parts.update(more.parts)
        return self.checked(raw)

    def checked(self, raw: RawSample) -> RawSample:
        """Return a sample that was cut out of its parts.

        Raises IndexMismatchError if it has fewer wanted parts than the index says.
        """
        found = sum(map(self._wants, raw.parts))
        if not self._skips or found >= self._most_known:
            return raw
        page = int(self._page_of(np.array([raw.index]))[0])
        window = self._cached(page) or self._fetch(page)
        known = 0 if window is None else int(window.offsets[raw.index - window.first, -1])
        if found < known:
            names = ", ".join(raw.parts)
            raise IndexMismatchError(
                f"the index and the tar disagree: sample {raw.key!r} has {known} wanted parts in index.sqlite, "
                f"and {found} in the tar ({names} were read)",
                where=f"{self.whole.index.spec.url}/{raw.shard}",
                hint="the index is damaged, or the shard was changed; run `energon-stream prepare` again",
            )
        return raw

    def cut_streams(self, sample: int, streams: Sequence[tuple[int, RangeStream]]) -> RawSample | None:
        """Cut the ranges of a sample into parts as their bytes arrive."""
        cut = [(stream[0], self.whole.cut_streams(sample, [stream])) for stream in streams]
        return self.merge(sample, cut)


@dataclass(frozen=True, slots=True, eq=False)
class _CheckedCutter:
    """Cuts samples of one range each, and compares their parts with the index."""

    locator: PartLocator
    whole: Cutter

    def cut(self, sample: int, number: int) -> RawSample | None:
        """Cut one sample; see :meth:`Cutter.cut`."""
        raw = self.whole.cut(sample, number)
        return None if raw is None else self.locator.checked(raw)
