"""A store whose reads go through a cache."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from energon_stream.cache.block_cache import BlockCache
from energon_stream.cache.download import Get
from energon_stream.cache.identity import ObjectIdentity
from energon_stream.cache.versions import Versions
from energon_stream.errors import ObjectChangedError, UnsupportedStoreError
from energon_stream.logs import log_once
from energon_stream.storage import Body, ByteRange, ListEntry, ObjectMeta, Store
from energon_stream.storage.attempts import attempt_listener, release_slot

__all__ = ["CachedStore"]

_log = logging.getLogger(__name__)


class CachedStore:
    """Reads a store through a cache; see ``Store`` for the methods.

    What the cache has to know of an object is its version and its size. Where nobody told them (:meth:`remember`),
    the first request goes out, and its answer tells them. From then on the object is the version that was seen
    first: another one is an ``ObjectChangedError``, as without a cache.

    Writes, listings and metadata go to the store.

    Args:
        store: The store.
        cache: The cache.
        versions: Tells versions that nobody told; None to learn them from answers.

    Attributes:
        cache: The cache.
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

    def remember(self, path: str, meta: ObjectMeta) -> None:
        """Tell an object's version and size; nothing follows from one without a version."""
        if meta.etag is not None:
            self._known[path] = ObjectIdentity(self.url, path, meta.etag, meta.size)

    def known(self, path: str) -> ObjectIdentity | None:
        """The version of an object that is read through the cache, if it is known or can be told without asking
        for the object."""
        return self._version(path, None)

    def identify(self, path: str) -> ObjectIdentity | None:
        """The version of an object that is read through the cache; its metadata are asked for where nothing else tells.
        None for an object that is not cached, because the store tells no version."""
        known = self.known(path)
        if known is None:
            self.remember(path, self.head(path))
            known = self.known(path)
        return known

    def get(self, path: str, *, etag: str | None = None) -> Body:
        """Read a whole object."""
        known = self._version(path, etag)
        if known is not None:
            return self._fetch(known, 0, known.size)
        body = self._store.get(path, etag=etag)
        return self._learn(path, 0, body, len(body.data))

    def get_range(self, path: str, byte_range: ByteRange, *, etag: str | None = None) -> Body:
        """Read a byte range."""
        known = self._version(path, etag)
        if known is not None and 0 <= byte_range.start < byte_range.stop <= known.size:
            return self._fetch(known, byte_range.start, byte_range.stop)
        return self._learn(path, byte_range.start, self._store.get_range(path, byte_range, etag=etag))

    def get_suffix(self, path: str, length: int, *, etag: str | None = None) -> Body:
        """Read the last ``length`` bytes (all of a shorter object)."""
        known = self._version(path, etag)
        if known is not None and length > 0:
            return self._fetch(known, max(0, known.size - length), known.size)
        body = self._store.get_suffix(path, length, etag=etag)
        return self._learn(path, (body.total_size or 0) - len(body.data), body)

    def get_at_hand(self, path: str, byte_range: ByteRange, *, etag: str | None = None) -> Body | None:
        """Read a byte range if the system has it in memory; see :func:`energon_stream.storage.base.get_at_hand`."""
        known = self._known.get(path)  # not _version(): to ask for versions takes a request
        if known is None or etag not in (None, known.etag):
            return None
        start, stop = byte_range.start, byte_range.stop
        if not 0 <= start < stop <= known.size:
            return None
        data = self.cache.read(known, start, stop, at_hand=True)
        return None if data is None else Body(data, known.etag, known.size)

    def keep(self, path: str, byte_range: ByteRange) -> bool:
        """Have a byte range in the cache; see :meth:`BlockCache.keep`.

        Raises:
            UnsupportedStoreError: The store tells no version of the object.
        """
        known = self.identify(path)
        if known is None:
            raise UnsupportedStoreError(
                "the store tells no version of this object, so that it cannot be cached",
                where=f"{self.url}/{path}",
            )
        return self.cache.keep(
            known, byte_range.start, byte_range.stop, self._getter(known), wait=_may_wait()
        )

    def head(self, path: str) -> ObjectMeta:
        """Metadata of one object, as it is now."""
        return self._store.head(path)

    def list(self, prefix: str = "") -> Iterator[ListEntry]:
        """All objects below a folder, as they are now."""
        return self._store.list(prefix)

    def put(self, path: str, data: bytes) -> None:
        """Write a whole object."""
        self._known.pop(path, None)
        self._store.put(path, data)

    def put_file(self, path: str, local_path: str) -> None:
        """Upload a local file."""
        self._known.pop(path, None)
        self._store.put_file(path, local_path)

    def delete(self, path: str) -> None:
        """Remove one object."""
        self._known.pop(path, None)
        self._store.delete(path)

    def close(self) -> None:
        """Release what the store can release; the cache belongs to others, too."""
        self._store.close()

    def _version(self, path: str, etag: str | None) -> ObjectIdentity | None:
        """The version that is known, unless another one is asked for."""
        known = self._known.get(path)
        if known is None and self._versions is not None:
            meta = self._versions.of(path)
            if meta is not None:
                self.remember(path, meta)
                known = self._known.get(path)
        return known if known is not None and etag in (None, known.etag) else None

    def _fetch(self, known: ObjectIdentity, start: int, stop: int) -> Body:
        data = self.cache.fetch(known, start, stop, self._getter(known), wait=_may_wait())
        return Body(data, known.etag, known.size)

    def _getter(self, known: ObjectIdentity) -> Get:
        def fetch(first: int, last: int) -> memoryview:
            body = self._store.get_range(known.path, ByteRange(first, last), etag=known.etag)
            release_slot()
            return self._check(known, body).data

        return fetch

    def _check(self, known: ObjectIdentity, body: Body) -> Body:
        """Stores compare versions already; but bytes of another one must never get into the cache."""
        if body.etag not in (None, known.etag) or body.total_size not in (None, known.size):
            raise ObjectChangedError(
                "the object was replaced while it was in use",
                where=f"{self.url}/{known.path}",
                hint="Prepare the dataset again and start a new run.",
            )
        return body

    def _learn(self, path: str, start: int, body: Body, size: int | None = None) -> Body:
        """Keep the bytes of an answer, and what it tells of the object."""
        size = size if body.total_size is None else body.total_size
        if body.etag is None:
            message = "%s tells no version of %s; such objects are not cached"
            log_once(_log, message, self.url, path, key=self.url)
        elif size is not None:
            known = self._known[path] = ObjectIdentity(self.url, path, body.etag, size)
            release_slot()
            self.cache.publish(known, start, body.data)
        return body


def _may_wait() -> bool:
    """Not so for a request beside a late one: it would wait for the very one that is late."""
    listener = attempt_listener()
    return listener is None or listener.retries
