"""The locator of JSONL files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from energon_stream.errors import IndexMismatchError
from energon_stream.read.index_entries import OffsetCache, RowPages
from energon_stream.read.locator import Cutter, Load, RawSample
from energon_stream.read.objects import ShardObject, VersionGuard

if TYPE_CHECKING:
    from energon_stream.arrays import Int64Array
    from energon_stream.errors import ChecksumError
    from energon_stream.index.jsonl import JsonlIndex
    from energon_stream.read.range_stream import RangeStream
    from energon_stream.storage import Store

_OPEN = ord("{")


@dataclass(frozen=True, slots=True, eq=False)
class _Records:
    """Records of a fetch, with the whitespace around them."""

    leaf: int
    records: list[memoryview]
    url: str  # of the file

    def cut(self, sample: int, number: int) -> RawSample | None:
        """Return one record; see :meth:`Cutter.cut`."""
        record = self.records[number]
        if record[0] != _OPEN or bytes(record[-2:]) != b"}\n":
            text = bytes(record).strip()  # blank lines, or the last line
            if not (text.startswith(b"{") and text.endswith(b"}")):
                raise IndexMismatchError(
                    f"record {sample} does not begin and end with braces: {text[:40]!r}",
                    where=self.url,
                    hint="the index is damaged, or the file was changed; run `energon-stream prepare` again",
                )
        return RawSample(self.leaf, sample, str(sample), None, {"json": record})


@dataclass(slots=True)
class JsonlLocator:
    """Locator of one JSONL file; see :class:`Locator`.

    A sample's key is its number; its only part is ``json``.
    """

    leaf: int
    index: JsonlIndex
    offsets: OffsetCache = field(default_factory=OffsetCache)
    store: Store = field(init=False)
    _rows: RowPages = field(init=False)
    _versions: VersionGuard = field(init=False)

    def __post_init__(self) -> None:
        self.store = self.index.spec.open()
        self._rows = RowPages(self.leaf, self.index.offsets, self.offsets)
        self._versions = VersionGuard(self.index.spec.url)

    @property
    def width(self) -> int:
        """One range for each sample."""
        return 1

    @property
    def index_is_local(self) -> bool:
        """True if the index is read at memory speed."""
        return self._rows.store.is_local

    @property
    def skips_bytes(self) -> bool:
        """False: all bytes of a sample are read."""
        return False

    @property
    def opening(self) -> JsonlLocator:
        """The locator itself."""
        return self

    def claim_loads(self, samples: Int64Array) -> list[Load]:
        """Return loads of pages of the index."""
        return self._rows.claim_loads(np.concatenate([samples, samples + 1]))

    def locate(self, samples: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Return object 0, first byte, and one past the last byte: ``int64 [len(samples), 1]`` arrays."""
        starts, stops = self._rows.take(samples), self._rows.take(samples + 1)
        wrong = np.flatnonzero((starts < 0) | (stops <= starts))
        if len(wrong):
            raise IndexMismatchError(
                f"the index has no bytes for record {samples[wrong[0]]}",
                where=self.index.spec.url,
                hint="Run `energon-stream prepare` again.",
            )
        return np.zeros_like(starts), starts, stops

    def object(self, number: int) -> ShardObject:
        """Return the file."""
        return ShardObject(self.store, "", self._versions)

    def split(
        self, number: int, data: memoryview, start: int, starts: Int64Array, stops: Int64Array
    ) -> Cutter:
        """Slice the records."""
        bounds = zip((starts - start).tolist(), (stops - start).tolist(), strict=True)
        return _Records(self.leaf, [data[first:last] for first, last in bounds], self.index.spec.url)

    def wrong_ranges(
        self, samples: Int64Array, data: memoryview, start: int, starts: Int64Array, stops: Int64Array
    ) -> dict[int, ChecksumError]:
        """Return nothing: these samples have no checksums."""
        return {}

    def merge(self, sample: int, found: Sequence[tuple[int, RawSample | None]]) -> RawSample | None:
        """Return the only piece."""
        return found[0][1]

    def cut_streams(self, sample: int, streams: Sequence[tuple[int, RangeStream]]) -> RawSample | None:
        """Read one record; see :meth:`Locator.cut_streams`."""
        stream = streams[0][1]
        whole = memoryview(stream.read(stream.stop - stream.start))
        return _Records(self.leaf, [whole], self.index.spec.url).cut(sample, 0)
