"""The disk cache of a node, as one process uses it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from energon_stream.cache.block_file import BlockFile
from energon_stream.cache.block_reader import BlockReader, OpenBlocks, join_chunks, recorded_gaps
from energon_stream.cache.block_writer import BlockWriter
from energon_stream.cache.config import CacheConfig
from energon_stream.cache.directory import CacheDirectory
from energon_stream.cache.download import Download, Get, to_fetch
from energon_stream.cache.ledger import CacheLimits
from energon_stream.cache.locks import has_locks
from energon_stream.cache.object_identity import ObjectIdentity, ObjectPlace, clean_url, root_name
from energon_stream.cache.records import Span, merge_spans
from energon_stream.errors import ConfigError, RangeError
from energon_stream.fork import PerProcess
from energon_stream.storage import ByteRange

_OPEN_BLOCKS = 64  # two file descriptors and 32 MiB of address space each


@dataclass(frozen=True, slots=True)
class CacheSnapshot:
    """Counters of one process at one moment. Subtract an earlier snapshot; add those of other processes.

    Example:
        >>> from energon_stream.cache import CacheSnapshot
        >>> before, after = CacheSnapshot(hits=2), CacheSnapshot(hits=5, misses=1)
        >>> (after - before).hits
        3
    """

    hits: int = 0  # reads that the cache answered alone
    hit_bytes: int = 0  # bytes that came from the cache
    misses: int = 0  # reads that had to fetch some of their bytes
    missed_bytes: int = 0  # bytes fetched
    stored_bytes: int = 0  # fetched bytes that the cache kept
    waits: int = 0  # reads that waited for the download of another thread or process
    timeouts: int = 0  # reads that gave up waiting and fetched the bytes themselves
    damaged: int = 0  # blocks removed because their bytes did not have the right hash

    def __add__(self, other: CacheSnapshot) -> CacheSnapshot:
        return CacheSnapshot(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __sub__(self, earlier: CacheSnapshot) -> CacheSnapshot:
        return CacheSnapshot(*(getattr(self, f.name) - getattr(earlier, f.name) for f in fields(self)))


class CacheCounters:
    """Thread-safe counters of a cache."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = Counter[str]()

    def add(self, **counts: int) -> None:
        """Add to counters, which have the names of the snapshot's attributes."""
        with self._lock:
            for name, count in counts.items():
                self._counts[name] += count

    def snapshot(self) -> CacheSnapshot:
        """Return the counts so far."""
        with self._lock:
            return CacheSnapshot(**self._counts)


class BlockCache:
    """Bytes of objects, kept on disk for all processes of a node.

    Thread-safe. A forked child opens it anew; it can be pickled. If the disk fails, reads are answered all
    the same: the bytes are fetched and not kept. Raises ConfigError if the directory cannot be made, or the
    system lacks the locks that a cache needs.

    Example:
        >>> from energon_stream.cache import BlockCache, CacheConfig, ObjectIdentity
        >>> cache = BlockCache(CacheConfig("cache", "1GB", min_free_bytes=0))
        >>> shard = ObjectIdentity("s3://bucket/data", "shard-0.tar", etag='"1"', size=11)
        >>> def get(start, stop):  # a request to the store
        ...     return memoryview(b"hello world")[start:stop]
        >>> bytes(cache.fetch(shard, 0, 5, get)), bytes(cache.fetch(shard, 0, 5, get))
        (b'hello', b'hello')
        >>> cache.counters().hits, cache.counters().misses
        (1, 1)
    """

    def __init__(self, config: CacheConfig, shares: Mapping[str, int] | None = None) -> None:
        if not has_locks():
            raise ConfigError(
                "the disk cache needs locks of open file descriptions, which only Linux has",
                hint="Run without a cache on this system: pass no cache=, and unset ENERGON_STREAM_CACHE_DIR.",
            )
        self.config = config
        self._shares: dict[str, int] = {}
        self._named_shares: dict[str, int] = {}
        self.set_shares(shares or {})
        limits = CacheLimits(config.quota, config.floor, self._named_shares)
        self._directories = PerProcess(partial(CacheDirectory, config.directory, limits), drop_inherited=True)
        self._counters = PerProcess(CacheCounters, drop_inherited=True)
        self._opened: PerProcess[tuple[BlockWriter, BlockReader]] = PerProcess(drop_inherited=True)
        self._open()

    def __reduce__(self) -> tuple[Any, ...]:
        return BlockCache, (self.config, self._shares)

    @property
    def directory(self) -> CacheDirectory:
        """Folders and ledger of the cache, opened by this process."""
        return self._directories.get()

    def _open(self) -> tuple[BlockWriter, BlockReader]:
        return self._opened.map(None, self._make)

    def _make(self) -> tuple[BlockWriter, BlockReader]:
        blocks = OpenBlocks(_OPEN_BLOCKS if self.config.policy == "pin" else 0)
        writer = BlockWriter(self.directory, self.config.policy, blocks)

        def discard(block: BlockFile) -> None:
            writer.discard(block)
            self._counters.get().add(damaged=1)

        return writer, BlockReader(blocks, discard)

    def set_shares(self, shares: Mapping[str, int]) -> None:
        """Limit the bytes of some datasets, by root URL, in this process; see :func:`plan_shares`.

        What a dataset has beyond its share may be evicted.
        """
        self._shares = dict(shares)
        self._named_shares.clear()
        self._named_shares.update({root_name(clean_url(url)): size for url, size in shares.items()})

    def counters(self) -> CacheSnapshot:
        """Return the counters of this process."""
        return self._counters.get().snapshot()

    def max_bytes(self) -> int:
        """Return the disk space that the cache may take: ``max_bytes``, or less if the disk is too full."""
        ledger = self.directory.ledger
        usage = ledger.usage()
        counted = 0 if usage is None else usage.bytes
        return max(0, counted + ledger.limits.room(self.config.directory, counted))

    def close(self) -> None:
        """Let others evict what this process used. The cache can be used again."""
        opened = self._opened.pop()
        if opened is not None:
            opened[0].close()

    def use(self, url: str) -> None:
        """Keep a dataset from being evicted as unused, until this process ends or closes the cache.

        Reading does so, too. A job calls this for all of its datasets before it reads the first.
        """
        self._open()[0].mark(clean_url(url))

    def missing(self, identity: ObjectIdentity, start: int, stop: int) -> list[ByteRange]:
        """Return the ranges of ``[start, stop)`` that the cache does not have. Nothing is verified."""
        place = self._place(identity, start, stop)
        gaps = [gap for wanted in place.ranges(start, stop) for gap in recorded_gaps(wanted)]
        return [ByteRange(*gap) for gap in merge_spans(gaps)]

    def read(
        self, identity: ObjectIdentity, start: int, stop: int, *, at_hand: bool = False
    ) -> memoryview | None:
        """Return bytes of an object; None unless the cache has all of them, undamaged.

        ``at_hand`` reads no disk: it returns None also if the system does not have the bytes in memory, as
        far as the first and last one of each block tell.
        """
        place = self._place(identity, start, stop)
        writer, reader = self._open()
        writer.mark(identity.root)
        chunks, gaps = reader.find(place, start, stop, at_hand=at_hand)
        if gaps:
            return None
        self._counters.get().add(hits=1, hit_bytes=stop - start)
        return join_chunks(chunks)

    def fetch(
        self, identity: ObjectIdentity, start: int, stop: int, get: Get, *, wait: bool = True
    ) -> memoryview:
        """Return bytes of an object. Missing bytes are fetched with ``get``, and kept if there is room.

        If several threads or processes want the same bytes, one fetches them and the others wait, up to
        ``wait_seconds``, or not at all without ``wait``. If the fetching process dies, one of the others
        takes over. ``get`` is called in this thread, for one missing range after the other.

        The bytes are read-only. They are not copied if they lie in one block, or were all fetched at once.
        Raises RangeError if the object does not have them, and the errors of ``get``.
        """
        place = self._place(identity, start, stop)
        writer, reader = self._open()
        writer.mark(identity.root)
        chunks, gaps = reader.find(place, start, stop)
        gaps = to_fetch(gaps)
        chunks = [chunk for chunk in chunks if not any(first <= chunk.start < last for first, last in gaps)]
        download = self._download(place, gaps, get, wait)
        fetched = download.fetched_bytes
        self._counters.get().add(hits=int(not fetched), hit_bytes=stop - start - fetched)
        return join_chunks(chunks + download.chunks)

    def keep(self, identity: ObjectIdentity, start: int, stop: int, get: Get, *, wait: bool = True) -> bool:
        """Fetch missing bytes of an object into the cache; return True if it has all of them now.

        Cached bytes are not read. Bytes for which there is no room are not fetched. Raises as :meth:`fetch`.
        """
        place = self._place(identity, start, stop)
        download = self._download(place, [(start, stop)], get, wait, only_keep=True)
        if download.kept_bytes < download.fetched_bytes:  # not taken, or others were faster
            return not self.missing(identity, start, stop)
        return not download.refused

    def filling(self) -> AbstractContextManager[None]:
        """Return a context that makes many calls of :meth:`keep` by several threads cheaper."""
        return self._open()[0].filling()

    def publish(self, identity: ObjectIdentity, start: int, data: memoryview) -> None:
        """Keep bytes that were fetched without asking the cache, if there is room."""
        writer, _ = self._open()
        place = self._place(identity, start, start + len(data))
        self._counters.get().add(stored_bytes=writer.keep(place, start, data))

    def forget(self, identity: ObjectIdentity, start: int, stop: int) -> None:
        """Remove the blocks that have bytes of an object, for all processes."""
        writer, _ = self._open()
        for wanted in self._place(identity, start, stop).ranges(start, stop):
            block = BlockFile.open(wanted.block)
            if block is not None:
                with block:
                    writer.discard(block)

    def _download(
        self, place: ObjectPlace, gaps: list[Span], get: Get, wait: bool, *, only_keep: bool = False
    ) -> Download:
        writer, reader = self._open()
        download = Download(reader, writer, place, get, only_keep=only_keep)
        download.run(gaps, self.config.wait_seconds if wait else 0)
        self._counters.get().add(
            misses=int(download.fetched_bytes > 0),
            missed_bytes=download.fetched_bytes,
            stored_bytes=download.kept_bytes,
            waits=int(download.waited),
            timeouts=int(download.gave_up),
        )
        return download

    def _place(self, identity: ObjectIdentity, start: int, stop: int) -> ObjectPlace:
        if not 0 <= start <= stop <= identity.size:
            raise RangeError(
                f"bytes {start} to {stop} are asked for, the object has {identity.size}",
                where=f"{identity.root}/{identity.path}",
            )
        return self.directory.place(identity, self.config.block)
