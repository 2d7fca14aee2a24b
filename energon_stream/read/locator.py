"""The protocol of locators, which find the byte ranges of samples and cut samples out of them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from energon_stream.arrays import Int64Array
from energon_stream.index.index_files import OffsetWindow
from energon_stream.read.objects import ShardObject
from energon_stream.read.range_stream import RangeStream

__all__ = ["Cutter", "Locator", "OffsetCache", "RawSample"]


@dataclass(slots=True)
class RawSample:
    """A sample's parts as they are in the dataset.

    Attributes:
        leaf: Number of the leaf.
        index: Sample within the leaf's split part.
        key: Sample key without the shard.
        shard: Path of the tar, relative to the dataset; None for datasets without shards.
        parts: Part name to bytes. The views keep the whole fetch in memory: copy parts that are kept.
        members: Samples of a join, None for a missing one; the sample itself comes first. Empty outside of joins.
    """

    leaf: int
    index: int
    key: str
    shard: str | None
    parts: dict[str, memoryview]
    members: tuple[RawSample | None, ...] = ()

    @property
    def name(self) -> str:
        """Shard and key, unique within a dataset."""
        return self.key if self.shard is None else f"{self.shard}/{self.key}"


class Cutter(Protocol):
    """Cuts samples out of one fetch."""

    def cut(self, sample: int, number: int, /) -> RawSample | None:
        """Cut a range into parts.

        Args:
            sample: Sample number.
            number: Number of the range within the fetch.

        Returns:
            The sample; None if it is excluded.

        Raises:
            IndexMismatchError: The range does not hold one sample.
        """


class Locator(Protocol):
    """Finds the byte ranges of one leaf's samples, and cuts samples out of them.

    The leaf's bytes lie in objects, usually shards, which the locator numbers from 0.
    """

    @property
    def width(self) -> int:
        """Largest number of byte ranges of a sample."""

    @property
    def index_is_local(self) -> bool:
        """Whether the functions of :meth:`missing_offsets` run at memory speed."""

    def missing_offsets(self, samples: Int64Array) -> list[Callable[[], object]]:
        """Return functions to run before :meth:`locate`, in any order, also at the same time."""

    def locate(self, samples: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Return the byte ranges of samples whose index entries have been loaded.

        Returns:
            ``int64 [len(samples), width]`` arrays: object, first byte, one past the last byte. Object -1 means no
            range; each sample has at least one.
        """

    def object(self, number: int, /) -> ShardObject:
        """Return the object of a number."""

    def split(
        self, number: int, data: memoryview, start: int, starts: Int64Array, stops: Int64Array
    ) -> Cutter:
        """Prepare a fetch for cutting. Work that is cheaper for many samples at once is done here.

        Args:
            number: Number of the object.
            data: Bytes of the fetch.
            start: First byte of the fetch in the object.
            starts: ``int64``, first byte of each range, in the object.
            stops: ``int64``, one past the last byte of each.
        """

    def merge(self, sample: int, found: Sequence[tuple[int, RawSample | None]], /) -> RawSample | None:
        """Merge the pieces of a sample. Called only if :attr:`width` is not 1.

        Args:
            sample: Sample number.
            found: Object number and piece of each range, in the order of :meth:`locate`.

        Returns:
            The sample; None if it is excluded.

        Raises:
            IndexMismatchError: The pieces do not belong together.
        """

    def cut_streams(self, sample: int, streams: Sequence[tuple[int, RangeStream]]) -> RawSample | None:
        """Cut and merge ranges too large to be in memory beside their parts. May run in the fetcher's threads.

        Args:
            sample: Sample number.
            streams: Object number and bytes of each range, in the order of :meth:`locate`.

        Returns:
            The sample, each part in a ``bytes`` object of its own; None if it is excluded.
        """


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
