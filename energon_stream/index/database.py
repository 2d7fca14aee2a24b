"""A folder's ``index.sqlite``, opened once per process and queried from any thread."""

from __future__ import annotations

import posixpath
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from energon_stream.cache.cached_store import forget
from energon_stream.errors import MetadataError, ObjectNotFoundError
from energon_stream.fork import PerProcess
from energon_stream.index.guarded_sqlite import IndexConnection, connect_local, damaged_index
from energon_stream.index.remote_sqlite import RemoteDatabase, RemoteFile
from energon_stream.index.sqlite_index import INDEX_SQLITE
from energon_stream.media import open_once
from energon_stream.urls import local_path

if TYPE_CHECKING:
    from energon_stream.index.dataset import WebDatasetIndex
    from energon_stream.storage import Store, StoreSpec

_T = TypeVar("_T")
_CACHE_KIB = 256  # of pages that a connection keeps; others are read again from the lines of the process

_MOST_FILES = 64  # that a process keeps open, of all local datasets
_of_files: weakref.WeakSet[IndexConnection] = weakref.WeakSet()


class IndexDatabase:
    """The index of one folder in one process. Use :func:`index_database`."""

    def __init__(self, spec: StoreSpec) -> None:
        self.store: Store = open_once(spec)
        self._lock, self._is_anew = threading.Lock(), False
        self._connect: Callable[[], IndexConnection]
        self._open()

    def _open(self) -> None:
        if self.store.is_local:
            self.store.head(INDEX_SQLITE)
            path = posixpath.join(local_path(self.store.url), INDEX_SQLITE)
            self._connect = partial(connect_local, path, self.url)
        else:
            remote = RemoteDatabase(RemoteFile(self.store, INDEX_SQLITE))
            self._connect = partial(remote.connect, self.url)
        self._idle: deque[IndexConnection] = deque()  # as many as queries ran at one time

    @property
    def url(self) -> str:
        """URL of the index."""
        return f"{self.store.url}/{INDEX_SQLITE}"

    def damaged(self, what: str) -> MetadataError:
        """Return the error for an index that says something impossible."""
        return damaged_index(self.url, what)

    def rows(self, query: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Run a query; see :meth:`IndexConnection.select`. No row has a text that is not Unicode."""
        try:
            return self._use(lambda connection: list(connection.select(query, *values)))
        except UnicodeEncodeError:
            return []

    def has_table(self, name: str) -> bool:
        """Return whether the index has a table. Raises MetadataError if it cannot be used."""
        return self._use(lambda connection: connection.has_table(name))

    def _use(self, action: Callable[[IndexConnection], _T]) -> _T:
        idle = self._idle
        try:
            return self._query(action, idle)
        except MetadataError:
            with self._lock:
                if idle is self._idle:  # nobody else has opened it anew
                    if self.store.is_local or self._is_anew:
                        raise
                    self._is_anew = True  # an answer may have been wrong, and in the disk cache
                    forget(self.store, INDEX_SQLITE)
                    self._open()
            return self._query(action, self._idle)

    def _query(self, action: Callable[[IndexConnection], _T], idle: deque[IndexConnection]) -> _T:
        try:
            connection = idle.pop()
        except IndexError:
            connection = self._connect()
            connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            if self.store.is_local:
                _of_files.add(connection)
        try:
            return action(connection)
        finally:
            if connection in _of_files and len(_of_files) > _MOST_FILES:
                _of_files.discard(connection)
                connection.close()
            else:
                idle.append(connection)


@dataclass(slots=True)
class _Slot:
    """The index of one folder, while it is in use. A dataset that is opened later may be a new one."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    opened: weakref.ref[IndexDatabase] | None = None

    def get(self, spec: StoreSpec) -> IndexDatabase:
        with self.lock:
            found = None if self.opened is None else self.opened()
            if found is None:
                found = IndexDatabase(spec)
                self.opened = weakref.ref(found)
            return found


shared_indices: PerProcess[_Slot] = PerProcess()


def sample_key(index: WebDatasetIndex, number: int) -> str | None:
    """Return the key of a sample of a split part, given its number; None if no index of the folder has it."""
    if index.shard_ids is None:
        return None
    shard = int(index.shard_of(np.array([number]))[0])
    place = int(index.shard_ids[shard]), number - int(index.shard_starts[shard])
    with suppress(ObjectNotFoundError):
        rows = index_database(index.spec).rows(
            "SELECT sample_key FROM samples WHERE tar_file_id = ? AND sample_index = ?", place
        )
        return str(rows[0][0]) if rows else None
    return None


def index_database(spec: StoreSpec) -> IndexDatabase:
    """Return a folder's index, which the process shares. Raises ObjectNotFoundError if there is none."""
    return shared_indices.map(spec, _Slot).get(spec)
