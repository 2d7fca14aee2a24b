"""Versions of a dataset's objects, from one listing that the processes of a node share for a run."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import threading
import time

import msgpack

from energon_stream.cache.identity import root_name
from energon_stream.errors import StorageError
from energon_stream.storage import ObjectMeta, Store

_log = logging.getLogger(__name__)


class Versions:
    """Versions of a store's objects, from a listing of everything below the store's root.

    Without a listing, cached bytes of an object could be used only after a request to it had returned its
    version. A listing costs one request for 1,000 objects. It is kept in the cache's folder: one process
    makes it, and the others, and workers that start later, read it. Each run (``since``) makes its own.

    File format: msgpack of ``{"listed": seconds since the epoch, "objects": {path: [etag, size]}}``.

    Args:
        directory: The cache's folder.
        store: The store below the cache.
        since: Time in seconds since the epoch; older listings are not used.
    """

    def __init__(self, directory: str, store: Store, since: float) -> None:
        self._path = os.path.join(directory, "v1", "versions", root_name(store.url))
        self._store = store
        self._since = since
        self._lock = threading.Lock()
        self._known: dict[str, ObjectMeta] | None = None

    def of(self, path: str) -> ObjectMeta | None:
        """Return the version and size of an object; None if the listing does not have them."""
        known = self._known
        if known is None:
            with self._lock:
                known = self._known
                if known is None:
                    known = self._known = self._kept() or self._listed()
        return known.get(path)

    def _listed(self) -> dict[str, ObjectMeta]:
        listed = time.time()
        found = {}
        try:
            found = {entry.path: entry.meta for entry in self._store.list() if entry.meta.etag is not None}
            if not found:  # the root may be an object itself
                found = {"": self._store.head("")}
        except StorageError as error:  # reading may be allowed where listing is not
            _log.info(
                "%s cannot be listed; the first answer of each object tells its version: %s",
                self._store.url,
                error,
            )
        self._keep(listed, found)
        return found

    def _kept(self) -> dict[str, ObjectMeta] | None:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            with open(self._path, "rb") as file:
                content = msgpack.unpackb(file.read())
            if content["listed"] >= self._since:
                return {path: ObjectMeta(size, etag) for path, (etag, size) in content["objects"].items()}
        return None

    def _keep(self, listed: float, found: dict[str, ObjectMeta]) -> None:
        objects = {path: (meta.etag, meta.size) for path, meta in found.items()}
        with contextlib.suppress(OSError):  # a read-only cache is useful as well
            folder = os.path.dirname(self._path)
            os.makedirs(folder, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=folder)
            with os.fdopen(handle, "wb") as file:
                file.write(msgpack.packb({"listed": listed, "objects": objects}))
            os.replace(temporary, self._path)
