"""Versions of a dataset's objects: from one listing of it, which the processes of a node share for a run."""

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

__all__ = ["Versions"]

_log = logging.getLogger(__name__)


class Versions:
    """Tells the version that an object has, by a listing of everything below a store's root.

    Without it, what is in the cache could not be used before a request to the object had told its version. A listing
    costs a request for each 1,000 objects. It is kept beside the cache, so one process makes it and the others, and
    workers that start later, use it; each run (``since``) makes its own.

    File format: msgpack of ``{"listed": seconds since the epoch, "objects": {path: [etag, size]}}``.

    Args:
        directory: The cache's folder.
        store: The store below the cache.
        since: Seconds since the epoch; older listings are not used.
    """

    def __init__(self, directory: str, store: Store, since: float) -> None:
        self._path = os.path.join(directory, "v1", "versions", root_name(store.url))
        self._store = store
        self._since = since
        self._lock = threading.Lock()
        self._known: dict[str, ObjectMeta] | None = None

    def of(self, path: str) -> ObjectMeta | None:
        """Version and size of an object; None where the listing did not tell them."""
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
        except StorageError as error:  # one may be allowed to read, and not to list
            _log.info(
                "%s cannot be listed, so each object's first request tells its version: %s",
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
        with contextlib.suppress(OSError):  # a cache that is only read is of use, too
            folder = os.path.dirname(self._path)
            os.makedirs(folder, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=folder)
            with os.fdopen(handle, "wb") as file:
                file.write(msgpack.packb({"listed": listed, "objects": objects}))
            os.replace(temporary, self._path)
