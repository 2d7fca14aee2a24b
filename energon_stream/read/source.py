"""What the reader asks of a source dataset, and datasets of tars: where samples lie, how to cut them out."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeAlias

import numpy as np

from energon_stream.errors import CorruptTarError, IndexMismatchError, ObjectChangedError
from energon_stream.index.dataset import WebDatasetIndex
from energon_stream.index.tar_block import AlikeSamples, split_samples
from energon_stream.index.tar_format import SampleParts, sample_parts, walk_sample
from energon_stream.index.tar_index import OffsetWindow, block_bounds, read_offsets
from energon_stream.read.range_stream import RangeStream
from energon_stream.rng import Int64Array
from energon_stream.storage.base import Store

__all__ = [
    "OffsetCache",
    "Piece",
    "Pieces",
    "RawSample",
    "Source",
    "TarSource",
    "VersionGuard",
    "split_ranges",
]

Piece: TypeAlias = tuple[int, memoryview, int, SampleParts | None]
"""Object number, the bytes of a range of it, and where they begin; or a whole block, and where the parts lie in it."""


class Pieces(Protocol):
    """Those of one block."""

    def __getitem__(self, number: int, /) -> Piece:
        """The piece of a range, by its number within the block."""


@dataclass(slots=True)
class RawSample:
    """A sample's parts as they lie in the dataset.

    Attributes:
        leaf: Number of the source dataset.
        index: Sample within the source's split part.
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


class Source(Protocol):
    """One source dataset of a plan, opened in this process.

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
    ) -> Pieces:
        """Split a block into what :meth:`cut` takes: what can be done for many samples at once is done here.

        Args:
            number: Object that the block is of.
            data: Its bytes.
            start: Where it begins in the object.
            starts: ``int64``, first byte of each range, in the object.
            stops: ``int64``, one past the last byte of each.
        """

    def cut(self, sample: int, pieces: Sequence[Piece]) -> RawSample | None:
        """Cut a sample's bytes into its parts.

        Args:
            sample: Sample number.
            pieces: Those of its ranges, in the order of :meth:`locate`.

        Returns:
            The sample; None when it is excluded.

        Raises:
            IndexMismatchError: A range does not hold one sample.
        """

    def cut_streams(self, sample: int, streams: Sequence[tuple[int, RangeStream]]) -> RawSample | None:
        """As :meth:`cut`, of ranges too large to be held beside their parts; runs in the fetcher's threads.

        Args:
            sample: Sample number.
            streams: Object number and bytes of each of its ranges, in the order of :meth:`locate`.

        Returns:
            The sample, each part all of a ``bytes`` object; None when it is excluded.
        """


def split_ranges(number: int, data: memoryview, start: int, starts: Int64Array, stops: Int64Array) -> Pieces:
    """The bytes of each range; see :meth:`Source.split`."""
    bounds = zip((starts - start).tolist(), (stops - start).tolist(), starts.tolist(), strict=True)
    return [(number, data[first:last], offset, None) for first, last, offset in bounds]


@dataclass(frozen=True, slots=True, eq=False)
class _TarPieces:
    """Pieces of a block of a tar, each made when it is asked for: a block has many, which wait for long."""

    shard: int
    data: memoryview
    start: int
    starts: Int64Array
    stops: Int64Array
    found: AlikeSamples | list[SampleParts | None]

    def __getitem__(self, number: int) -> Piece:
        parts = self.found[number]
        if parts is not None:
            return self.shard, self.data, self.start, parts
        one = slice(number, number + 1)
        return split_ranges(self.shard, self.data, self.start, self.starts[one], self.stops[one])[0]


class OffsetCache:
    """Parts of index files by source and number (of the shard, or the block), bounded in bytes."""

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
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._etags: dict[str, str] = {}

    def etag(self, path: str) -> str | None:
        """Version of the first answer, if there was one that told it."""
        return self._etags.get(path)

    def observe(self, path: str, etag: str | None) -> None:
        """Note the version of an answer.

        Raises:
            ObjectChangedError: It is not that of the first one.
        """
        known = etag if etag is None else self._etags.setdefault(path, etag)
        if known != etag:
            raise ObjectChangedError(
                f"the object was replaced while it was being read (version {known}, now {etag})",
                where=f"{self._url}/{path}".rstrip("/"),
                hint="prepare the dataset again and restart from a saved state",
            )


@dataclass(slots=True)
class TarSource:
    """Reads one prepared WebDataset in this process.

    Args:
        leaf: Number of this source in sample references.
        index: The opened dataset.
        offsets: Index entries at hand; may be shared by the sources of a pipeline.
    """

    leaf: int
    index: WebDatasetIndex
    offsets: OffsetCache = field(default_factory=OffsetCache)
    store: Store = field(init=False)
    _versions: VersionGuard = field(init=False)

    def __post_init__(self) -> None:
        self.store = self.index.spec.open()
        self._versions = VersionGuard(self.index.spec.url)

    @property
    def width(self) -> int:
        """One range for each sample."""
        return 1

    @property
    def index_is_local(self) -> bool:
        """Whether index files are read at memory speed."""
        return self.store.is_local

    def shard_of(self, samples: Int64Array) -> Int64Array:
        """Shard number of each sample, ``int64``."""
        return np.searchsorted(self.index.shard_starts, samples, side="right") - 1

    def missing_offsets(self, samples: Int64Array) -> list[Callable[[], object]]:
        """What has to be run before :meth:`locate`: one load for each shard whose entries are not at hand."""
        return [
            partial(self._load, *span)
            for span in self._spans(samples)
            if self.offsets.claim(self.leaf, *span)
        ]

    def _load(self, shard: int, first: int, last: int) -> OffsetWindow:
        path, count = self.index.shard_paths[shard], int(self.index.shard_counts[shard])
        return self.offsets.load(
            self.leaf, shard, first, last, lambda: read_offsets(self.store, path, count, first, last)
        )

    def _spans(self, samples: Int64Array) -> list[tuple[int, int, int]]:
        """Shard, first and last entry of whole blocks of its index, for each shard that the samples touch."""
        shards = self.shard_of(samples)
        order = np.argsort(shards, kind="stable")
        ordered = shards[order]
        starts = np.flatnonzero(np.diff(ordered, prepend=-1))
        local = (samples - self.index.shard_starts[shards])[order]
        counts = self.index.shard_counts[ordered[starts]]
        firsts, lasts = block_bounds(
            np.minimum.reduceat(local, starts), np.maximum.reduceat(local, starts) + 1, counts
        )
        return list(zip(ordered[starts].tolist(), firsts.tolist(), lasts.tolist(), strict=True))

    def locate(self, samples: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Shard number, first byte, and one past the last byte: ``int64 [len(samples), 1]`` arrays."""
        shards = self.shard_of(samples)
        local = samples - self.index.shard_starts[shards]
        starts = np.empty(len(samples), dtype=np.int64)
        stops = np.empty(len(samples), dtype=np.int64)
        for shard, first, last in self._spans(samples):
            window = self.offsets.get(self.leaf, shard, first, last)
            if window is None:  # pushed out by other sources meanwhile
                window = self._load(shard, first, last)
            mine = shards == shard
            starts[mine] = window.offsets[local[mine] - window.first]
            stops[mine] = window.offsets[local[mine] + 1 - window.first]
        return shards[:, None], starts[:, None], stops[:, None]

    def place(self, shard: int) -> tuple[Store, str]:
        """Store and path of a shard."""
        return self.store, self.index.shard_paths[shard]

    def etag(self, shard: int) -> str | None:
        """Content version that the shard had when it was first read, if it is known."""
        return self._versions.etag(self.index.shard_paths[shard])

    def observe(self, shard: int, etag: str | None) -> None:
        """Note the version of a shard; see :meth:`Source.observe`."""
        self._versions.observe(self.index.shard_paths[shard], etag)

    def split(
        self, shard: int, data: memoryview, start: int, starts: Int64Array, stops: Int64Array
    ) -> Pieces:
        """Read the headers of all samples of a block; see :meth:`Source.split`."""
        if len(starts) == 1:
            return split_ranges(shard, data, start, starts, stops)
        return _TarPieces(
            shard, data, start, starts, stops, split_samples(data, starts - start, stops - start)
        )

    def cut(self, sample: int, pieces: Sequence[Piece]) -> RawSample | None:
        """Cut a sample's bytes into its parts; see :meth:`Source.cut`."""
        shard, view, offset, found = pieces[0]
        path = self.index.shard_paths[shard]
        try:
            key, names, starts, stops = found or sample_parts(view, 0, len(view))
        except CorruptTarError as error:
            raise IndexMismatchError(
                f"the index and the tar disagree: {error.what}",
                where=f"{self.index.spec.url}/{path} from byte {offset}",
                hint="the shard was changed or damaged after it was indexed; run `energon-stream prepare` again",
            ) from error
        if self.index.excluded and self.index.is_excluded(shard, key):
            return None
        parts = {name: view[start:stop] for name, start, stop in zip(names, starts, stops, strict=True)}
        return RawSample(self.leaf, sample, key, path, parts)

    def cut_streams(self, sample: int, streams: Sequence[tuple[int, RangeStream]]) -> RawSample | None:
        """Cut a sample's bytes into its parts as they come; see :meth:`Source.cut_streams`."""
        shard, stream = streams[0]
        path = self.index.shard_paths[shard]

        def read(offset: int, length: int) -> memoryview:
            stream.seek(offset)
            return memoryview(stream.read(length))

        try:
            key, parts = walk_sample(
                read, stream.start, stream.stop, lambda member: read(member.data_offset, member.size)
            )
        except CorruptTarError as error:
            raise IndexMismatchError(
                f"the index and the tar disagree: {error.what}",
                where=f"{self.index.spec.url}/{path} from byte {stream.start}",
                hint="the shard was changed or damaged after it was indexed; run `energon-stream prepare` again",
            ) from error
        if self.index.excluded and self.index.is_excluded(shard, key):
            return None
        return RawSample(self.leaf, sample, key, path, dict(parts))
