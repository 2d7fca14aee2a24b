"""The locator of joins, whose samples have a byte range in each of several datasets."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from energon_stream.errors import IndexMismatchError
from energon_stream.index.entries import EntryPages, Load, OffsetCache
from energon_stream.read.locator import Cut, Locator, RawSample
from energon_stream.read.tar_locator import TarLocator

if TYPE_CHECKING:
    from energon_stream.arrays import Int64Array
    from energon_stream.index.join_index import JoinIndex
    from energon_stream.index.objects import ShardObject
    from energon_stream.read.range_stream import RangeStream
    from energon_stream.read.read_plan import Request

_HINT = "Run `energon-stream prepare` for the metadataset again."


@dataclass(slots=True)
class JoinLocator(Locator):
    """Locator of one join, whose objects are the shards of all members, member after member.

    Ranges come from the join's index alone, so no ``.tar.idx`` is read.
    """

    leaf: int
    index: JoinIndex
    offsets: OffsetCache = field(default_factory=OffsetCache)
    _members: list[TarLocator] = field(init=False)
    _first: Int64Array = field(init=False)
    _first_list: list[int] = field(init=False)
    _rows: EntryPages = field(init=False)

    def __post_init__(self) -> None:
        self._members = [TarLocator(self.leaf, member, self.offsets) for member in self.index.members]
        counts = [len(member.shard_paths) for member in self.index.members]
        self._first = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self._first_list = self._first.tolist()
        self._rows = EntryPages.of_file(self.index.rows, self.offsets)

    @property
    def width(self) -> int:
        return len(self._members)

    @property
    def index_is_local(self) -> bool:
        return self._rows.store.is_local

    def claim_loads(self, samples: Int64Array) -> list[Load]:
        return self._rows.claim_loads(samples)

    def locate(self, samples: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Return shard, first byte, and one past the last byte in each member; -1 for a missing partner."""
        rows = self._rows.rows(samples, 3 * self.width)
        shards, starts, sizes = rows.reshape(-1, self.width, 3).transpose(2, 0, 1)
        there = shards >= 0
        wrong = there & ((shards >= np.diff(self._first)) | (starts < 0) | (sizes <= 0))
        wrong[:, 0] |= ~there[:, 0]
        if wrong.any():
            row = int(samples[int(wrong.any(axis=1).argmax())])
            raise IndexMismatchError(
                f"row {row} of the join points outside its datasets",
                where=self.index.rows.spec.url,
                hint=_HINT,
            )
        return np.where(there, shards + self._first[:-1], -1), starts, starts + sizes

    def _member(self, number: int) -> tuple[int, TarLocator, int]:
        """Return the number of the member that has an object, the member, and the object's number there."""
        at = bisect_right(self._first_list, number) - 1
        return at, self._members[at], number - self._first_list[at]

    def object(self, number: int) -> ShardObject:
        _, member, shard = self._member(number)
        return member.object(shard)

    def split(self, request: Request, data: memoryview) -> Cut:
        _, member, shard = self._member(request.object)
        return member.split(replace(request, object=shard), data, joined=True)

    def merge(self, sample: int, found: Sequence[tuple[int, RawSample | None]]) -> RawSample | None:
        """Join the members' pieces, which must have the same key."""
        samples: list[RawSample | None] = [None] * self.width
        for number, raw in found:
            samples[self._member(number)[0]] = raw
        primary = samples[0]
        if primary is None:
            return None
        keys = [member.key for member in samples if member is not None]
        if len(set(keys)) > 1:
            raise IndexMismatchError(
                f"row {sample} of the join has samples of different keys: {', '.join(map(repr, keys))}",
                where=self.index.rows.spec.url,
                hint=_HINT,
            )
        return replace(primary, members=tuple(samples))

    def cut_streams(self, sample: int, streams: Sequence[tuple[int, RangeStream]]) -> RawSample | None:
        """Read member after member; all must have the same key."""
        found = []
        for number, stream in streams:
            _, member, shard = self._member(number)
            found.append((number, member.cut_streams(sample, [(shard, stream)])))
        return self.merge(sample, found)
