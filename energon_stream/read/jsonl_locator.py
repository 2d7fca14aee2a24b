"""The locator of JSONL files."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from energon_stream.errors import IndexMismatchError
from energon_stream.index.entries import EntryPages, Load, OffsetCache
from energon_stream.index.objects import ShardObject, VersionGuard
from energon_stream.read.locator import Cut, Locator, RawSample

if TYPE_CHECKING:
    from energon_stream.arrays import Int64Array
    from energon_stream.index.jsonl_index import JsonlIndex
    from energon_stream.read.range_stream import RangeStream
    from energon_stream.read.read_plan import Request
    from energon_stream.storage import Store


@dataclass(slots=True)
class JsonlLocator(Locator):
    """Locator of one JSONL file. A sample's key is its number; its only part is ``json``."""

    leaf: int
    index: JsonlIndex
    offsets: OffsetCache = field(default_factory=OffsetCache)
    store: Store = field(init=False)
    _rows: EntryPages = field(init=False)
    _versions: VersionGuard = field(init=False)

    def __post_init__(self) -> None:
        self.store = self.index.spec.open()
        self._rows = EntryPages.of_file(self.index.offsets, self.offsets)
        self._versions = VersionGuard(self.index.spec.url)

    @property
    def index_is_local(self) -> bool:
        return self._rows.store.is_local

    def claim_loads(self, samples: Int64Array) -> list[Load]:
        return self._rows.claim_loads(np.concatenate([samples, samples + 1]))

    def locate(self, samples: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Return object 0, first byte, and one past the last byte: ``int64 [len(samples), 1]`` arrays."""
        starts, stops = self._rows.rows(samples, 1), self._rows.rows(samples + 1, 1)
        wrong = np.flatnonzero((starts < 0) | (stops <= starts))
        if len(wrong):
            raise IndexMismatchError(
                f"the index has no bytes for record {samples[wrong[0]]}",
                where=self.index.spec.url,
                hint="Run `energon-stream prepare` again.",
            )
        return np.zeros_like(starts), starts, stops

    def object(self, number: int) -> ShardObject:
        return ShardObject(self.store, "", self._versions)

    def split(self, request: Request, data: memoryview) -> Cut:
        starts, stops = (request.starts - request.start).tolist(), (request.stops - request.start).tolist()

        def cut(sample: int, number: int) -> RawSample:
            return self._cut(sample, data[starts[number] : stops[number]])

        return cut

    def _cut(self, sample: int, record: bytes | memoryview) -> RawSample:
        """Return one record, with the whitespace around it."""
        if record[0] != ord("{") or bytes(record[-2:]) != b"}\n":
            text = bytes(record).strip()  # blank lines, or the last line
            if not sample and text.startswith(codecs.BOM_UTF8):
                record = text = text.removeprefix(codecs.BOM_UTF8).strip()
            if not (text.startswith(b"{") and text.endswith(b"}")):
                raise IndexMismatchError(
                    f"record {sample} does not begin and end with braces: {text[:40]!r}",
                    where=self.index.spec.url,
                    hint="the index is damaged, or the file was changed; run `energon-stream prepare` again",
                )
        return RawSample(self.leaf, sample, str(sample), None, {"json": record})

    def cut_streams(self, sample: int, streams: Sequence[tuple[int, RangeStream]]) -> RawSample:
        stream = streams[0][1]
        return self._cut(sample, stream.read(stream.stop - stream.start))
