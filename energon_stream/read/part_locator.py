"""The locator that reads only some parts of samples, if that saves bytes.

``index.sqlite`` has the place of each part. It is queried for pages of samples, but only if that may save
bytes. A dataset's first samples settle this, once for all readers: if the user selected parts, or if the
headers of the first sample show that a field map leaves large parts out, the first page of the index tells
how much can be skipped. If it is at most ``max_gap`` bytes a sample, which the planner would read over
anyway, or if the index is unusable, whole samples are read. A sample is read whole, too, if it has bytes
that the index says nothing of, where a part may be that the index has lost. So are a reader's first samples
while this is being settled, unless the user selected parts. Samples, order and states do not depend on it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from energon_stream.errors import ChecksumError, EnergonStreamError, IndexMismatchError
from energon_stream.index.database import IndexDatabase, index_database
from energon_stream.index.entries import EntryPages, Load
from energon_stream.index.part_places import read_part_places
from energon_stream.read.locator import Cut, Locator, RawSample
from energon_stream.read.part_ranges import (
    PartRanges,
    PartSelection,
    doubtful_samples,
    find_part_ranges,
)
from energon_stream.storage import ByteRange, Store
from energon_stream.tar.format import TAR_RECORD, split_name, walk_members

if TYPE_CHECKING:
    from energon_stream.arrays import Int64Array
    from energon_stream.index.objects import ShardObject
    from energon_stream.read.range_stream import RangeStream
    from energon_stream.read.read_plan import Request
    from energon_stream.read.tar_locator import TarLocator

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

PAGE_SAMPLES = 1024  # of one query


@dataclass(slots=True)
class PartLocator(Locator):
    """Locator of some parts of a prepared WebDataset."""

    whole: TarLocator
    selection: PartSelection
    max_gap: int
    _shard_ids: Int64Array = field(init=False)
    _pages: EntryPages = field(init=False)
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
        self._shard_ids = index.shard_ids
        self._pages = EntryPages(
            self.whole.store, self.whole.offsets, index.shard_starts, PAGE_SAMPLES, self._read_page
        )

    @property
    def width(self) -> int:
        return self.selection.max_ranges

    @property
    def index_is_local(self) -> bool:
        return self.whole.index_is_local

    @property
    def is_sparse(self) -> bool:
        return self.whole.is_sparse

    @property
    def skips_bytes(self) -> bool:
        return bool(self._skips)

    @property
    def opening(self) -> Locator:
        return self if self.selection.declared or self._skips is not None else self.whole

    def claim_loads(self, samples: Int64Array) -> list[Load]:
        """Return loads of pages of the index, or of ``.tar.idx`` if whole samples are read."""
        if self._skips is False:
            return self.whole.claim_loads(samples)
        loads = [
            Load(load.store, partial(self._load, load, samples[mine]))
            for load, mine in self._pages.claim(samples)
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
        rows = self._usable(lambda: self._pages.rows(samples, 2 * self.width + 1)) if self.settle() else None
        if rows is None:
            return self.whole.locate(samples)
        starts, stops = rows[:, : self.width], rows[:, self.width : -1]
        return np.where(starts < 0, -1, self.whole.index.shard_of(samples)[:, None]), starts, stops

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
                part = ByteRange(offset, min(offset + max(length, 4 << 10), stop))
                window, first = shard_object.get_range(part).data, offset
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
        shard = int(self.whole.index.shard_of(np.array(0)))
        count = min(PAGE_SAMPLES, int(self.whole.index.shard_counts[shard]))
        found = self._usable(lambda: self._ranges_of(shard, 0, count))
        if found is None:
            return False
        self.whole.offsets.load(self._pages, 0, found.rows)
        return found.skipped > self.max_gap * count

    def _load(self, load: Load, samples: Int64Array, store: Store) -> None:
        """Load a page, or, if whole samples are to be read, their index entries.

        SQLite reads with a store of its own.
        """
        if self.settle() and self._usable(lambda: load.read(store)) is not None:
            return
        for whole in self.whole.claim_loads(samples):
            whole.read(store if whole.store is self.whole.store else whole.store)

    def _usable(self, read: Callable[[], _T]) -> _T | None:
        """Return what reads the index returns. If it cannot be used, whole samples are read from now on."""
        try:
            return read()
        except EnergonStreamError as error:
            self._skips = False
            _log.warning(
                "%s: whole samples are read, because the index cannot be used: %s",
                self.whole.store.url,
                error,
            )
            return None

    def _read_page(self, _: Store, shard: int, before: int, stop: int) -> Int64Array:
        return self._ranges_of(shard, before, stop).rows()

    def _ranges_of(self, shard: int, before: int, stop: int) -> PartRanges:
        """Return the ranges of the wanted parts of samples ``before`` to ``stop`` of a shard.

        Raises MetadataError if the index cannot be right.
        """
        if self._database is None:
            self._database = index_database(self.whole.index.spec)
        samples = np.arange(before, stop) + self.whole.index.shard_starts[shard]
        try:
            places, after = read_part_places(
                self._database,
                int(self._shard_ids[shard]),
                (before, stop),
                is_last=stop == int(self.whole.index.shard_counts[shard]),
                wants=self._wants,
            )
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
        """Return ranges in which some samples are read whole."""
        _, first, last = self.whole.locate(samples[which])
        before = (found.stops - found.starts)[which].sum()
        for ranges, ends in ((found.starts, first), (found.stops, last)):
            ranges[which] = -1
            ranges[which, :1] = ends
        more = int((last - first).sum() - before)
        return replace(found, skipped=max(0, found.skipped - more))

    def _wants(self, part: str) -> bool:
        """Return whether a part is wanted. The user's function is called once for each name."""
        if part not in self._asked:
            try:
                self._asked[part] = part in self.selection
            except Exception:  # the call fails again for the sample, where the error can name it
                self._asked[part] = True
        return self._asked[part]

    def with_neighbours(self, request: Request) -> Request:
        return self.whole.with_neighbours(request) if self._skips is False else request

    def object(self, number: int) -> ShardObject:
        return self.whole.object(number)

    def split(self, request: Request, data: memoryview) -> Cut:
        cut = self.whole.split(request, data, are_whole=self._skips is False)
        if not self._skips or self.width != 1:
            return cut

        def checked(sample: int, number: int) -> RawSample | None:
            raw = cut(sample, number)
            return None if raw is None else self._checked(raw)

        return checked

    def wrong_ranges(self, request: Request, data: memoryview) -> dict[int, ChecksumError]:
        return self.whole.wrong_ranges(request, data) if self._skips is False else {}

    def merge(self, sample: int, found: Sequence[tuple[int, RawSample | None]]) -> RawSample | None:
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
        return self._checked(raw)

    def _checked(self, raw: RawSample) -> RawSample:
        """Return a sample; raise IndexMismatchError if it has fewer wanted parts than the index says."""
        found = sum(map(self._wants, raw.parts))
        if not self._skips or found >= self._most_known:
            return raw
        rows = self._usable(lambda: self._pages.rows(np.array([raw.index]), 2 * self.width + 1))
        known = 0 if rows is None else int(rows[0, -1])
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
        cut = [(stream[0], self.whole.cut_streams(sample, [stream])) for stream in streams]
        return self.merge(sample, cut)
