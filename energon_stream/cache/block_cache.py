"""The cache of a node, as one process uses it: look, fetch once what is missing, keep it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from energon_stream.cache.config import CacheConfig
from energon_stream.cache.counters import CacheCounters, CacheSnapshot
from energon_stream.cache.directory import CacheDirectory
from energon_stream.cache.download import READ_OVER, Download, Get, keep_unclaimed
from energon_stream.cache.finding import Chunk, Finder, Span, join_chunks, merge_spans, recorded_gaps
from energon_stream.cache.identity import ObjectIdentity, ObjectPlace, clean_url, root_name
from energon_stream.cache.keeper import Keeper
from energon_stream.cache.locks import require_locks
from energon_stream.cache.open_blocks import OpenBlocks
from energon_stream.errors import RangeError
from energon_stream.storage import ByteRange
from energon_stream.storage.fork import PerProcess

__all__ = ["BlockCache"]

_OPEN_BLOCKS = 64  # two file descriptors and 32 MiB of addresses each


class BlockCache:
    """Bytes of objects, kept on disk for all processes of a node.

    Safe to call from several threads. Opened anew in a forked child; travels by pickle. Whatever goes wrong with
    the disk, reads are answered: by fetching, without keeping the bytes.

    Args:
        config: Where and how much.
        shares: See :meth:`set_shares`.

    Raises:
        ConfigError: The directory cannot be made, or the system has not the locks that are needed.
    """

    def __init__(self, config: CacheConfig, shares: Mapping[str, int] | None = None) -> None:
        require_locks()
        self.config = config
        self._shares: dict[str, int] = {}
        self._named_shares: dict[str, int] = {}
        self.set_shares(shares or {})
        self._directories = PerProcess(partial(CacheDirectory, config.directory), drop_inherited=True)
        self._counters = PerProcess(CacheCounters, drop_inherited=True)
        self._opened: PerProcess[tuple[Keeper, Finder]] = PerProcess(drop_inherited=True)
        self._open()

    def __reduce__(self) -> tuple[Any, ...]:
        return BlockCache, (self.config, self._shares)

    @property
    def directory(self) -> CacheDirectory:
        """Folders and ledger of the cache, opened by this process."""
        return self._directories.get()

    def _open(self) -> tuple[Keeper, Finder]:
        return self._opened.map(None, self._make)

    def _make(self) -> tuple[Keeper, Finder]:
        blocks = OpenBlocks(_OPEN_BLOCKS if self.config.policy == "pin" else 0)
        keeper = Keeper(self.directory, self.config, self._named_shares, blocks)
        return keeper, Finder(keeper, self._counters.get(), blocks)

    def set_shares(self, shares: Mapping[str, int]) -> None:
        """Limit what some datasets may have, as :func:`plan_shares` deals it; in this process.

        Args:
            shares: Bytes by root URL. What a dataset has beyond its share makes room for others.
        """
        self._shares = dict(shares)
        self._named_shares.clear()
        self._named_shares.update({root_name(clean_url(url)): size for url, size in shares.items()})

    def counters(self) -> CacheSnapshot:
        """What this process asked for so far."""
        return self._counters.get().snapshot()

    def close(self) -> None:
        """Let others evict what this process used. It may be used again."""
        opened = self._opened.pop()
        if opened is not None:
            opened[0].close()

    def use(self, url: str) -> None:
        """Keep what is there of a dataset from being evicted as out of use, until this process ends or closes.

        Reading does so as well; a job that uses several datasets says so of all of them before it reads.

        Args:
            url: Its root URL.
        """
        self._open()[0].mark(clean_url(url))

    def missing(self, identity: ObjectIdentity, start: int, stop: int) -> list[ByteRange]:
        """What of some bytes is not there; nothing is read or verified."""
        place = self._place(identity, start, stop)
        gaps = [gap for part in place.parts(start, stop) for gap in recorded_gaps(part)]
        return [ByteRange(*gap) for gap in merge_spans(gaps)]

    def read(
        self, identity: ObjectIdentity, start: int, stop: int, *, at_hand: bool = False
    ) -> memoryview | None:
        """Bytes ``start`` to ``stop`` of an object; None unless all of them are there and undamaged.

        Args:
            identity: The object.
            start: First byte.
            stop: One past the last byte.
            at_hand: Read nothing from the disk: None also where the system has not the bytes in memory, as far as
                first and last ones tell.
        """
        place = self._place(identity, start, stop)
        chunks, gaps = self._open()[1].find(place, start, stop, at_hand=at_hand)
        if gaps:
            return None
        self._counters.get().add(hits=1, hit_bytes=stop - start)
        return join_chunks(chunks)

    def fetch(
        self, identity: ObjectIdentity, start: int, stop: int, get: Get, *, wait: bool = True
    ) -> memoryview:
        """Bytes of an object: those that are there, and the others by ``get``, which are kept if there is room.

        Of several who want the same bytes at the same time one fetches and the others wait; if it dies, one of them
        takes over.

        Args:
            identity: The object.
            start: First byte.
            stop: One past the last byte.
            get: Called for each range that is missing, one after the other, in this thread.
            wait: Whether to wait for others who are fetching the same bytes, up to ``wait_seconds``; if not, they
                are fetched again.

        Returns:
            The bytes, read-only; without a copy where they lie in one block, or are all fetched at once.

        Raises:
            RangeError: The object has no such bytes.
            Exception: What ``get`` raises.
        """
        return join_chunks(self._collect(identity, start, stop, get, wait))

    def keep(self, identity: ObjectIdentity, start: int, stop: int, get: Get, *, wait: bool = True) -> bool:
        """Have bytes of an object in the cache: what is there is not read, what there is no room for is not fetched.

        Args:
            identity: The object.
            start: First byte.
            stop: One past the last byte.
            get: As for :meth:`fetch`.
            wait: As for :meth:`fetch`.

        Returns:
            Whether all of them are there now.

        Raises:
            RangeError: The object has no such bytes.
            Exception: What ``get`` raises.
        """
        place = self._place(identity, start, stop)
        download = self._download(place, [(start, stop)], get, wait, only_keep=True)
        if download.kept_bytes < download.fetched_bytes:  # not taken, or others were faster
            return not self.missing(identity, start, stop)
        return not download.refused

    def filling(self) -> AbstractContextManager[None]:
        """Around many calls of :meth:`keep`, by several threads: what is kept is counted together."""
        return self._open()[0].filling()

    def publish(self, identity: ObjectIdentity, start: int, data: memoryview) -> None:
        """Keep bytes that were fetched without asking the cache, if there is room."""
        keeper, _ = self._open()
        place = self._place(identity, start, start + len(data))
        kept = keep_unclaimed(keeper, place, start, data)
        self._counters.get().add(stored_bytes=kept)

    def _collect(self, identity: ObjectIdentity, start: int, stop: int, get: Get, wait: bool) -> list[Chunk]:
        place = self._place(identity, start, stop)
        chunks, gaps = self._open()[1].find(place, start, stop)
        gaps = merge_spans(gaps, READ_OVER)
        chunks = [chunk for chunk in chunks if not any(first <= chunk.start < last for first, last in gaps)]
        download = self._download(place, gaps, get, wait)
        fetched = download.fetched_bytes
        self._counters.get().add(hits=int(not fetched), hit_bytes=stop - start - fetched)
        return chunks + download.chunks

    def _download(
        self, place: ObjectPlace, gaps: list[Span], get: Get, wait: bool, *, only_keep: bool = False
    ) -> Download:
        keeper, finder = self._open()
        download = Download(finder, keeper, place, get, only_keep=only_keep)
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
