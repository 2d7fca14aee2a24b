"""One source dataset as the reader sees it: where its samples lie, and how to cut them out."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from energon_stream.errors import CorruptTarError, IndexMismatchError, ObjectChangedError
from energon_stream.index.dataset import WebDatasetIndex
from energon_stream.index.tar_format import sample_parts
from energon_stream.index.tar_index import OffsetWindow, read_offsets
from energon_stream.rng import Int64Array
from energon_stream.storage.base import Store

__all__ = ["OffsetCache", "RawSample", "TarSource"]


@dataclass(slots=True)
class RawSample:
    """A sample's parts as they lie in the tar.

    Attributes:
        leaf: Number of the source dataset.
        index: Sample within the source's split part.
        key: Sample key without the shard.
        shard: Path of the tar, relative to the dataset.
        parts: Part name to bytes. The views keep the fetched block alive: copy what is kept.
    """

    leaf: int
    index: int
    key: str
    shard: str
    parts: dict[str, memoryview]


class OffsetCache:
    """Parts of ``.tar.idx`` files by source and shard number, bounded in bytes."""

    def __init__(self, max_bytes: int = 64 << 20) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._entries: OrderedDict[tuple[int, int], OffsetWindow] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, leaf: int, shard: int, first: int, last: int) -> OffsetWindow | None:
        """What is known, if it covers entries ``first`` to ``last``."""
        with self._lock:
            window = self._entries.get((leaf, shard))
            if window is None or not window.covers(first, last):
                return None
            self._entries.move_to_end((leaf, shard))
            return window

    def put(self, leaf: int, shard: int, window: OffsetWindow) -> None:
        """Keep entries; the longest unused ones make room."""
        with self._lock:
            old = self._entries.pop((leaf, shard), None)
            self._bytes += window.offsets.nbytes - (0 if old is None else old.offsets.nbytes)
            self._entries[leaf, shard] = window
            while self._bytes > self._max_bytes and len(self._entries) > 1:
                self._bytes -= self._entries.popitem(last=False)[1].offsets.nbytes


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
    _etags: dict[str, str] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.store = self.index.spec.open()

    def shard_of(self, samples: Int64Array) -> Int64Array:
        """Shard number of each sample, ``int64``."""
        return np.searchsorted(self.index.shard_starts, samples, side="right") - 1

    def missing_offsets(self, samples: Int64Array) -> list[Callable[[], object]]:
        """What has to be run before :meth:`locate`: one load for each shard whose entries are not at hand."""
        missing: list[Callable[[], object]] = []
        for shard, first, last in self._spans(samples):
            if self.offsets.get(self.leaf, shard, first, last) is None:
                missing.append(partial(self._load, shard, first, last))
        return missing

    def _load(self, shard: int, first: int, last: int) -> OffsetWindow:
        path, count = self.index.shard_paths[shard], int(self.index.shard_counts[shard])
        window = read_offsets(self.store, path, count, first, last)
        self.offsets.put(self.leaf, shard, window)
        return window

    def _spans(self, samples: Int64Array) -> list[tuple[int, int, int]]:
        """Shard, first and last index entry for each shard that the samples touch."""
        shards = self.shard_of(samples)
        order = np.argsort(shards, kind="stable")
        ordered = shards[order]
        starts = np.flatnonzero(np.diff(ordered, prepend=-1))
        local = (samples - self.index.shard_starts[shards])[order]
        firsts, lasts = np.minimum.reduceat(local, starts), np.maximum.reduceat(local, starts) + 1
        return list(zip(ordered[starts].tolist(), firsts.tolist(), lasts.tolist(), strict=True))

    def locate(self, samples: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Byte ranges of samples whose index entries have been requested.

        Returns:
            ``int64`` arrays: shard number, first byte, one past the last byte.
        """
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
        return shards, starts, stops

    def etag(self, shard: int) -> str | None:
        """Content version that the shard had when it was first read, if it is known."""
        return self._etags.get(self.index.shard_paths[shard])

    def observe(self, shard: int, etag: str | None) -> None:
        """Note the version an answer carried.

        Raises:
            ObjectChangedError: It is not the version of the first answer.
        """
        if etag is None:
            return
        path = self.index.shard_paths[shard]
        known = self._etags.setdefault(path, etag)
        if known != etag:
            raise ObjectChangedError(
                f"the shard was replaced while it was being read (version {known}, now {etag})",
                where=f"{self.index.spec.url}/{path}",
                hint="prepare the dataset again and restart from a saved state",
            )

    def cut(self, sample: int, shard: int, view: memoryview, offset: int) -> RawSample | None:
        """Cut a sample's bytes into its parts.

        Args:
            sample: Sample number.
            shard: Its shard.
            view: The bytes of the sample's range.
            offset: Where the range begins in the tar; for messages.

        Returns:
            The sample; None when it is excluded.

        Raises:
            IndexMismatchError: The range does not hold one sample.
        """
        path = self.index.shard_paths[shard]
        try:
            key, parts = sample_parts(view, 0, len(view))
        except CorruptTarError as error:
            raise IndexMismatchError(
                f"the index and the tar disagree: {error.what}",
                where=f"{self.index.spec.url}/{path} from byte {offset}",
                hint="the shard was changed or damaged after it was indexed; run `energon-stream prepare` again",
            ) from error
        if self.index.is_excluded(shard, key):
            return None
        return RawSample(
            self.leaf, sample, key, path, {name: view[start:stop] for name, start, stop in parts}
        )
