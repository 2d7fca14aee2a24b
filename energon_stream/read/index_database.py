"""A folder's ``index.sqlite``, opened once per process and queried from any thread."""

from __future__ import annotations

import posixpath
import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from energon_stream.index.sqlite_index import INDEX_SQLITE
from energon_stream.media import open_once
from energon_stream.read.sqlite_ranges import RemoteDatabase, RemoteFile, connect_local
from energon_stream.storage import StoreSpec, local_path
from energon_stream.storage.fork import PerProcess

if TYPE_CHECKING:
    import apsw

_CACHE_KIB = 256
"""SQLite's page cache of a connection. Dropped pages are read again from the lines that the process keeps."""


class IndexDatabase:
    """The index of one folder in one process. Use :func:`index_database`.

    Raises ObjectNotFoundError if the folder has no index.
    """

    def __init__(self, spec: StoreSpec) -> None:
        self.store = open_once(spec)
        self._connect: Callable[[], apsw.Connection]
        if self.store.is_local:
            self.store.head(INDEX_SQLITE)
            self._connect = partial(connect_local, posixpath.join(local_path(self.store.url), INDEX_SQLITE))
        else:
            self._connect = RemoteDatabase(RemoteFile(self.store, INDEX_SQLITE)).connect
        self._idle: deque[apsw.Connection] = deque()  # as many as queries ran at one time

    @property
    def url(self) -> str:
        """URL of the index."""
        return f"{self.store.url}/{INDEX_SQLITE}"

    def rows(self, query: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Run a query.

        Raises apsw.Error if the file is not a usable index, and StorageError if the store did not deliver.
        """
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect()
            connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        try:
            return connection.execute(query, values).fetchall()
        finally:
            self._idle.append(connection)


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


_SLOTS: PerProcess[_Slot] = PerProcess()


def index_database(spec: StoreSpec) -> IndexDatabase:
    """Return the index of a folder, which all users in the process share.

    Raises ObjectNotFoundError if the folder has no index, and StorageError if the store did not deliver.
    """
    return _SLOTS.map(spec, _Slot).get(spec)
