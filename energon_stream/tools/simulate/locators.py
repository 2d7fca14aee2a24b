"""Locators that find the real places of samples, and cut nothing out of answers without bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from energon_stream.read.locator import Cut, Locator, RawSample
from energon_stream.storage import Body, ByteRange, LocalStore

if TYPE_CHECKING:
    from energon_stream.arrays import Int64Array
    from energon_stream.index.entries import Load
    from energon_stream.index.objects import ShardObject
    from energon_stream.read.range_stream import RangeStream
    from energon_stream.read.read_plan import Request
    from energon_stream.tools.simulate.virtual_fetcher import VirtualFetcher


class VirtualStore(LocalStore):
    """Answers with zeros, in virtual time."""

    def __init__(self, fetcher: VirtualFetcher) -> None:
        super().__init__("/")
        self._fetcher = fetcher

    def get_range(self, path: str, byte_range: ByteRange, *, etag: str | None = None) -> Body:
        self._fetcher.read(len(byte_range))
        return Body(self._fetcher.zeros(len(byte_range)), None, None)


@dataclass(frozen=True, slots=True)
class VirtualLocator(Locator):
    """A locator whose objects are in the modelled store; see :class:`Locator`."""

    inner: Locator
    leaf: int
    fetcher: VirtualFetcher
    planning: float  # CPU seconds to plan a sample

    @property
    def width(self) -> int:
        return self.inner.width

    @property
    def index_is_local(self) -> bool:
        return self.inner.index_is_local

    @property
    def is_sparse(self) -> bool:
        return self.inner.is_sparse

    @property
    def skips_bytes(self) -> bool:
        return self.inner.skips_bytes

    @property
    def opening(self) -> Locator:
        inner = self.inner.opening
        return self if inner is self.inner else replace(self, inner=inner)

    def claim_loads(self, samples: Int64Array) -> list[Load]:
        return self.inner.claim_loads(samples)

    def locate(self, samples: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        self.fetcher.line.work(self.planning * len(samples))
        return self.inner.locate(samples)

    def object(self, number: int) -> ShardObject:
        return replace(self.inner.object(number), store=VirtualStore(self.fetcher))

    def split(self, request: Request, data: memoryview) -> Cut:
        return lambda sample, _: RawSample(self.leaf, sample, "", None, {})

    def cut_streams(self, sample: int, streams: Sequence[tuple[int, RangeStream]]) -> RawSample | None:
        for _, stream in streams:
            stream.seek(stream.stop)
        return RawSample(self.leaf, sample, "", None, {})
