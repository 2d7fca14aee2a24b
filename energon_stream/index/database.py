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

import apsw

from energon_stream.errors import MetadataError
from energon_stream.fork import PerProcess
from energon_stream.index.remote_sqlite import RemoteDatabase, RemoteFile, connect_local
from energon_stream.index.sqlite_index import INDEX_SQLITE
from energon_stream.media import open_once
from energon_stream.urls import local_path

if TYPE_CHECKING:
    from energon_stream.storage import Store, StoreSpec

_CACHE_KIB = 256  # of pages that a connection keeps; others are read again from the lines of the process


class IndexDatabase:
    """The index of one folder in one process. Use :func:`index_database`."""

    def __init__(self, spec: StoreSpec) -> None:
        self.store: Store = open_once(spec)
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

    def damaged(self, what: str) -> MetadataError:
        """Return the error for an index that says something impossible."""
        hint = "the index is damaged, or of other shards; run `energon-stream prepare` again"
        return MetadataError(f"the index cannot be used: {what}", where=self.url, hint=hint)

    def checked_rows(self, query: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Run a query; see :meth:`rows`. Raises MetadataError if the file is not a usable index."""
        try:
            return self.rows(query, values)
        except apsw.Error as error:
            raise self.damaged(str(error)) from error

    def rows(self, query: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Run a query. Raises apsw.Error if the file is not a usable index."""
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
    """Return a folder's index, which the process shares. Raises ObjectNotFoundError if there is none."""
    return _SLOTS.map(spec, _Slot).get(spec)
