"""What the reader asks of a leaf: where samples lie, how to cut them out."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from energon_stream.arrays import Int64Array
from energon_stream.errors import ObjectChangedError
from energon_stream.index.tar_index import OffsetWindow
from energon_stream.read.range_stream import RangeStream
from energon_stream.storage.base import Store

__all__ = ["Cutter", "OffsetCache", "RawSample", "Locator", "VersionGuard"]


@dataclass(slots=True)
class RawSample:
    """A sample's parts as they lie in the dataset.

    Attributes:
        leaf: Number of the leaf.
        index: Sample within the leaf's split part.
        key: Sample key without the shard.
        shard: Path of the tar, relative to the dataset; None where there are no shards.
        parts: Part name to bytes. The views keep the fetched block alive: copy what is kept.
        members: The samples that are joined, None for a missing one; empty where nothing is joined.
            The sample itself is then the first of them.
    """

    leaf: int
    index: int
    key: str
    shard: str | None
    parts: dict[str, memoryview]
    members: tuple[RawSample | None, ...] = ()

    @property
    def name(self) -> str:
        """Shard and key: unique within a dataset."""
        return self.key if self.shard is None else f"{self.shard}/{self.key}"


class Cutter(Protocol):
    """Cuts the ranges of one fetch."""

    def cut(self, sample: int, number: int, /) -> RawSample | None:
        """Cut a range into the parts that it holds.

        Args:
            sample: Sample number.
            number: Number of the range within the fetch.

        Returns:
            The sample; None when it is excluded.

        Raises:
            IndexMismatchError: The range does not hold one sample.
        """


class Locator(Protocol):
    """One leaf of a plan, opened in this process.

    Its bytes lie in objects (shards, as a rule), which it numbers from 0.
    """

    @property
    def width(self) -> int:
        """Largest number of byte ranges of a sample."""

    @property
    def index_is_local(self) -> bool:
        """Whether :meth:`missing_offsets` gives functions that run at memory speed."""

    def missing_offsets(self, samples: Int64Array) -> list[Callable[[], object]]:
        """What has to be run before :meth:`locate`; the functions may run at the same time."""

    def locate(self, samples: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Byte ranges of samples whose index entries have been requested.

        Returns:
            ``int64 [len(samples), width]`` arrays: object, first byte, one past the last byte. An object of
            -1 is no range; each sample has one at least.
        """

    def place(self, number: int, /) -> tuple[Store, str]:
        """Store and path of an object."""

    def etag(self, number: int, /) -> str | None:
        """Content version that an object had when it was first read, if it is known."""

    def observe(self, number: int, etag: str | None, /) -> None:
        """Note the version an answer carried.

        Raises:
            ObjectChangedError: It is not the version of the first answer.
        """

    def split(
        self, number: int, data: memoryview, start: int, starts: Int64Array, stops: Int64Array
    ) -> Cutter:
        """Prepare a fetch to be cut: what can be done for many samples at once is done here.

        Args:
            number: Object that the fetch is of.
            data: Its bytes.
            start: Where it begins in the object.
            starts: ``int64``, first byte of each range, in the object.
            stops: ``int64``, one past the last byte of each.
        """

    def merge(self, sample: int, found: Sequence[tuple[int, RawSample | None]], /) -> RawSample | None:
        """Put together what was cut from the ranges of a sample; asked only where :attr:`width` is not 1.

        Args:
            sample: Sample number.
            found: Object number, and what was cut, of each range, in the order of :meth:`locate`.

        Returns:
            The sample; None when it is excluded.

        Raises:
            IndexMismatchError: They do not belong together.
        """

    def cut_streams(self, sample: int, streams: Sequence[tuple[int, RangeStream]]) -> RawSample | None:
        """Cut and merge ranges too large to be held beside their parts; runs in the fetcher's threads.

        Args:
            sample: Sample number.
            streams: Object number and bytes of each of its ranges, in the order of :meth:`locate`.

        Returns:
            The sample, each part all of a ``bytes`` object; None when it is excluded.
        """


class OffsetCache:
    """Parts of index files by source and number (of the shard, or the fetch), bounded in bytes."""

    def __init__(self, max_bytes: int = 64 << 20) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._entries: OrderedDict[tuple[int, int], OffsetWindow] = OrderedDict()
        self._loading: set[tuple[int, int, int, int]] = set()
        self._lock = threading.Lock()

    def get(self, leaf: int, number: int, first: int, last: int) -> OffsetWindow | None:
        """What is known, if it covers entries ``first`` to ``last``."""
        with self._lock:
            window = self._entries.get((leaf, number))
            if window is None or not window.covers(first, last):
                return None
            self._entries.move_to_end((leaf, number))
            return window

    def claim(self, leaf: int, number: int, first: int, last: int) -> bool:
        """Whether the caller has to see to it that entries are loaded: they are not here, and nobody else does."""
        claim = (leaf, number, first, last)
        if claim in self._loading or self.get(leaf, number, first, last) is not None:
            return False
        self._loading.add(claim)
        return True

    def load(
        self, leaf: int, number: int, first: int, last: int, read: Callable[[], OffsetWindow]
    ) -> OffsetWindow:
        """Read entries and keep them; ends a claim."""
        try:
            window = read()
            self._put(leaf, number, window)
        finally:
            self._loading.discard((leaf, number, first, last))
        return window

    def _put(self, leaf: int, number: int, window: OffsetWindow) -> None:
        """Keep entries; the longest unused ones make room."""
        with self._lock:
            old = self._entries.pop((leaf, number), None)
            self._bytes += window.offsets.nbytes - (0 if old is None else old.offsets.nbytes)
            self._entries[leaf, number] = window
            while self._bytes > self._max_bytes and len(self._entries) > 1:
                self._bytes -= self._entries.popitem(last=False)[1].offsets.nbytes


class VersionGuard:
    """Sees to it that all answers about an object are of one version.

    Args:
        url: Where the objects lie, for messages.
        expected: Versions that objects had when they were looked at before, by path. They are not asked for,
            as not every store can do that, but compared with the first answer.
    """

    def __init__(self, url: str, expected: Mapping[str, str] | None = None) -> None:
        self._url = url
        self._expected = expected or {}
        self._etags: dict[str, str] = {}

    def etag(self, path: str) -> str | None:
        """Version of the first answer, if there was one that told it."""
        return self._etags.get(path)

    def observe(self, path: str, etag: str | None) -> None:
        """Note the version of an answer.

        Raises:
            ObjectChangedError: It is not that of the first one, or not the one that is expected.
        """
        known = etag if etag is None else self._etags.setdefault(path, self._expected.get(path, etag))
        if known != etag:
            raise ObjectChangedError(
                f"the object was replaced while it was being read (version {known}, now {etag})",
                where=f"{self._url}/{path}".rstrip("/"),
                hint="prepare the dataset again and restart from a saved state",
            )
