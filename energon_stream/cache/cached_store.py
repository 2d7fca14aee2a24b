"""A store whose reads go through a cache, and the versions of its objects."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Self, TypeVar

import msgpack

from energon_stream.cache.block_cache import BlockCache, CacheSnapshot
from energon_stream.cache.config import CacheConfig
from energon_stream.cache.download import Get
from energon_stream.cache.kept_files import KeptFiles
from energon_stream.cache.locks import has_locks
from energon_stream.cache.object_identity import ObjectIdentity, root_name
from energon_stream.errors import (
    CorruptTarError,
    IndexMismatchError,
    MetadataError,
    StorageError,
    UnsupportedStoreError,
)
from energon_stream.fork import PerProcess
from energon_stream.logs import log_once
from energon_stream.storage import Body, ByteRange, ListEntry, ObjectMeta, Store
from energon_stream.storage._answers import object_changed
from energon_stream.storage.attempts import AttemptListener, ScheduledStore, with_listener

T = TypeVar("T")
_log = logging.getLogger(__name__)

_caches: PerProcess[BlockCache] = PerProcess()


def shared_cache(config: CacheConfig) -> BlockCache:
    """Return this process's one :class:`BlockCache` of a configuration; no user may close it."""
    return _caches.map(config, lambda: BlockCache(config))


def cache_counters() -> CacheSnapshot:
    """Return the counters of all shared caches of this process."""
    return sum((cache.counters() for cache in _caches.values()), CacheSnapshot())


@dataclass(frozen=True, slots=True)
class CacheLayer:
    """Picklable wrapper of stores that adds the disk cache.

    On a system without the locks that a cache needs, it adds nothing and logs one warning.
    """

    config: CacheConfig  # the cache
    # Start of the run in seconds since the epoch. Objects have the versions that they had then or later.
    since: float = field(default_factory=time.time)

    def __call__(self, store: Store) -> Store:
        """Return a store that reads ``store`` through the cache."""
        if not has_locks():
            message = "the disk cache needs Linux; everything is read from the store, and %s is not used"
            log_once(_log, message, self.config.directory)
            return store
        cache = shared_cache(self.config)
        return CachedStore(store, cache, Versions(self.config.directory, store, self.since))


class Versions:
    """Versions of a store's objects, from a listing of everything below the store's root.

    Without a listing, cached bytes of an object could be used only after a request to it had returned its
    version. A listing costs one request for 1,000 objects. It is kept in the cache's folder, for all
    processes of a run: listings from before ``since`` are not used.

    A kept file is msgpack of ``{"listed": seconds since the epoch, "objects": {path: [etag, size]}}``.
    """

    def __init__(self, directory: str, store: Store, since: float) -> None:
        self._kept = KeptFiles(directory, "versions")
        self._store = store
        self._since = since
        self._lock = threading.Lock()
        self._known: dict[str, ObjectMeta] | None = None

    def of(self, path: str) -> ObjectMeta | None:
        """Return the version and size of an object; None if the listing does not have them."""
        with self._lock:
            if self._known is None:
                self._known = self._read() or self._list()
            return self._known.get(path)

    def _read(self) -> dict[str, ObjectMeta] | None:
        raw = self._kept.read(root_name(self._store.url))
        content = None if raw is None else msgpack.unpackb(raw)
        if content is None or content["listed"] < self._since:
            return None
        return {path: ObjectMeta(size, etag) for path, (etag, size) in content["objects"].items()}

    def _list(self) -> dict[str, ObjectMeta]:
        listed = time.time()
        found = {}
        try:
            found = {entry.path: entry.meta for entry in self._store.list() if entry.meta.etag is not None}
            if not found:  # the root may be an object itself
                found = {"": self._store.head("")}
        except StorageError as error:  # reading may be allowed where listing is not
            message = "%s cannot be listed; the first answer of each object tells its version: %s"
            _log.info(message, self._store.url, error)
        objects = {path: (meta.etag, meta.size) for path, meta in found.items()}
        raw = msgpack.packb({"listed": listed, "objects": objects})
        with contextlib.suppress(OSError):  # a read-only cache is useful as well
            self._kept.write(root_name(self._store.url), raw)
        return found


class CachedStore(ScheduledStore):
    """Reads a store through a cache; see ``Store`` for the methods.

    The cache has to know the version and the size of an object. If neither :meth:`remember` nor ``versions``
    gives them, the first request goes to the store, and its answer contains them. From then on, this store
    reads only that version; any other raises ``ObjectChangedError``, as without a cache. Writes, listings and
    metadata go to the store.
    """

    is_local = False

    def __init__(self, store: Store, cache: BlockCache, versions: Versions | None = None) -> None:
        self._versions = versions
        self._store = store
        self.cache = cache
        self._known: dict[str, ObjectIdentity] = {}
        cache.use(self.url)

    @property
    def url(self) -> str:
        """Root URL without credentials."""
        return self._store.url

    def with_listener(self, listener: AttemptListener) -> Self:
        """Return this store, reporting to ``listener``."""
        heard = super().with_listener(listener)
        heard._store = with_listener(self._store, listener)
        return heard

    def remember(self, path: str, meta: ObjectMeta) -> None:
        """Set an object's version and size; an object without a version is not cached."""
        if meta.etag is not None:
            self._known[path] = ObjectIdentity(self.url, path, meta.etag, meta.size)

    def known(self, path: str, etag: str | None = None) -> ObjectIdentity | None:
        """Return the version that the cache serves; None if only a request tells, or another is wanted."""
        known = self._known.get(path)
        if known is None and self._versions is not None:
            meta = self._versions.of(path)
            if meta is not None:
                self.remember(path, meta)
                known = self._known.get(path)
        return known if known is not None and etag in (None, known.etag) else None

    def identify(self, path: str) -> ObjectIdentity | None:
        """Return the version of an object, by a request if necessary; None if the store has no versions."""
        known = self.known(path)
        if known is None:
            self.remember(path, self.head(path))
            known = self.known(path)
        return known

    def get(self, path: str, *, etag: str | None = None) -> Body:
        """Read a whole object."""
        known = self.known(path, etag)
        if known is not None:
            return self._fetch(known, 0, known.size)
        body = self._store.get(path, etag=etag)
        return self._learn(path, 0, body, len(body.data))

    def get_range(self, path: str, byte_range: ByteRange, *, etag: str | None = None) -> Body:
        """Read a byte range."""
        known = self.known(path, etag)
        if known is not None and 0 <= byte_range.start < byte_range.stop <= known.size:
            return self._fetch(known, byte_range.start, byte_range.stop)
        return self._learn(path, byte_range.start, self._store.get_range(path, byte_range, etag=etag))

    def get_suffix(self, path: str, length: int, *, etag: str | None = None) -> Body:
        """Read the last ``length`` bytes (all of a shorter object)."""
        known = self.known(path, etag)
        if known is not None and length > 0:
            return self._fetch(known, max(0, known.size - length), known.size)
        body = self._store.get_suffix(path, length, etag=etag)
        return self._learn(path, (body.total_size or 0) - len(body.data), body)

    def get_at_hand(self, path: str, byte_range: ByteRange, *, etag: str | None = None) -> Body | None:
        """Read a byte range if the system has it in memory; see ``ScheduledStore``."""
        known = self._known.get(path)  # not known(), which may send a request
        if known is None or etag not in (None, known.etag):
            return None
        start, stop = byte_range.start, byte_range.stop
        if not 0 <= start < stop <= known.size:
            return None
        data = self.cache.read(known, start, stop, at_hand=True)
        return None if data is None else Body(data, known.etag, known.size)

    def asks_for(self, path: str, byte_range: ByteRange) -> bool:
        """Return whether reading a byte range makes a request. May list the store, as reading does."""
        known = self.known(path)
        return known is None or bool(self.cache.missing(known, byte_range.start, byte_range.stop))

    def keep(self, path: str, byte_range: ByteRange) -> bool:
        """Fetch a byte range into the cache. Raises UnsupportedStoreError for an object without a version."""
        known = self.identify(path)
        if known is None:
            raise UnsupportedStoreError(
                "the object cannot be cached, because the store returns no ETag for it",
                where=f"{self.url}/{path}",
                hint="Read this dataset without a cache (`cache: false`).",
            )
        start, stop, waits = byte_range.start, byte_range.stop, not self._listener.hedged_bytes
        return self.cache.keep(known, start, stop, self._getter(known), wait=waits)

    def forget(self, path: str, byte_range: ByteRange | None = None) -> None:
        """Remove the cached blocks that have wrong bytes: of a range of an object, or of all."""
        known = self._known.get(path)
        if known is not None:
            whole = byte_range or ByteRange(0, known.size)
            self.cache.forget(known, whole.start, min(whole.stop, known.size))

    def head(self, path: str) -> ObjectMeta:
        """Return the metadata of one object, from the store."""
        return self._store.head(path)

    def list(self, prefix: str = "") -> Iterator[ListEntry]:
        """List all objects below a folder, from the store."""
        return self._store.list(prefix)

    def put(self, path: str, data: bytes) -> None:
        """Write a whole object."""
        self._known.pop(path, None)
        self._store.put(path, data)

    def put_file(self, path: str, local_path: str, *, move: bool = False) -> None:
        """Upload a local file."""
        self._known.pop(path, None)
        self._store.put_file(path, local_path, move=move)

    def delete(self, path: str) -> None:
        """Remove one object."""
        self._known.pop(path, None)
        self._store.delete(path)

    def close(self) -> None:
        """Close the store. The cache stays open, because others use it."""
        self._store.close()

    def _fetch(self, known: ObjectIdentity, start: int, stop: int) -> Body:
        # A second request must not wait: it would wait for the very request that is late.
        data = self.cache.fetch(known, start, stop, self._getter(known), wait=not self._listener.hedged_bytes)
        return Body(data, known.etag, known.size)

    def _getter(self, known: ObjectIdentity) -> Get:
        def fetch(first: int, last: int) -> memoryview:
            body = self._store.get_range(known.path, ByteRange(first, last), etag=known.etag)
            self._listener.release_slot()
            # Stores compare versions already, but bytes of another version must never get into the cache.
            if body.etag not in (None, known.etag) or body.total_size not in (None, known.size):
                raise object_changed(f"{self.url}/{known.path}")
            return body.data

        return fetch

    def _learn(self, path: str, start: int, body: Body, size: int | None = None) -> Body:
        """Keep the bytes of an answer, and the object's version and size."""
        size = size if body.total_size is None else body.total_size
        if body.etag is None:
            message = "%s returns no ETag for %s; such objects are not cached"
            log_once(_log, message, self.url, path, key=self.url)
        elif size is not None:
            known = self._known[path] = ObjectIdentity(self.url, path, body.etag, size)
            self._listener.release_slot()
            self.cache.publish(known, start, body.data)
        return body


def forget(store: Store, path: str, byte_range: ByteRange | None = None) -> None:
    """Drop the blocks of the disk cache, if there is one, that have bytes of a range, or of all."""
    if isinstance(store, CachedStore):
        store.forget(path, byte_range)


def read_again(store: Store, paths: Iterable[str], read: Callable[[], T]) -> T:
    """Return what ``read`` reads and checks; once more, past the disk cache, if it cannot be right.

    ``paths`` are the objects that it reads. A wrong answer would stay in the cache, and end each later start.
    """
    try:
        return read()
    except (IndexMismatchError, MetadataError, CorruptTarError) as error:
        if store.is_local:
            raise
        wrong = error
    for path in paths:
        forget(store, path)
    found = read()
    _log.warning("an answer of the store was wrong, and was requested again: %s", wrong)
    return found
