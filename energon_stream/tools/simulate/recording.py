"""Opens a dataset for real, and notes its requests, so that a model of another store can repeat them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from energon_stream.storage import Body, ByteRange, ListEntry, LocalStore, ObjectMeta, Store, register_store
from energon_stream.storage.transports import Transport, open_transport
from energon_stream.urls import is_local, local_path, url_scheme

T = TypeVar("T")

_SCHEME = "recorded+"
_HOLD = 0.05  # seconds that each request takes at least, so that concurrent ones overlap on any store


@dataclass(slots=True, eq=False)
class RequestLog:
    """Requests in rounds: no request waits for one of its own round. Repeats of late ones do not count."""

    listener: Callable[[int], None] | None = None  # gets the bytes of each request instead, once it is set
    _running: dict[Hashable, int] = field(default_factory=dict)  # their rounds
    _ended: list[int] = field(default_factory=list)  # round of each ended request
    _rounds: dict[int, list[int]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def rounds(self) -> list[list[int]]:
        """Bytes of each request, round by round."""
        return [sorted(self._rounds[number]) for number in sorted(self._rounds)]

    def run(self, what: Hashable, request: Callable[[], T], size_of: Callable[[T], int]) -> T:
        """Make a request, and note it."""
        if self.listener is not None:
            result = request()
            self.listener(size_of(result))
            return result
        with self._lock:
            self._running.setdefault(what, max(self._ended, default=0) + 1)
        end = time.monotonic() + _HOLD
        size = 0
        try:
            result = request()
            size = size_of(result)
        finally:
            time.sleep(max(0.0, end - time.monotonic()))
            with self._lock:
                number = self._running.pop(what, None)
                if number is not None:  # else the request, or a repeat of it, has ended
                    self._ended.append(number)
                    self._rounds.setdefault(number, []).append(size)
        return result


class _RecordedStore:
    """Notes the reads of a store; local files count as remote ones."""

    is_local = False

    def __init__(self, store: Store, log: RequestLog) -> None:
        self._store, self._log = store, log
        self.url = store.url

    def get(self, path: str, *, etag: str | None = None) -> Body:
        return self._log.run(path, lambda: self._store.get(path, etag=etag), _size)

    def get_range(self, path: str, byte_range: ByteRange, *, etag: str | None = None) -> Body:
        what = path, byte_range
        return self._log.run(what, lambda: self._store.get_range(path, byte_range, etag=etag), _size)

    def get_suffix(self, path: str, length: int, *, etag: str | None = None) -> Body:
        what = path, length
        return self._log.run(what, lambda: self._store.get_suffix(path, length, etag=etag), _size)

    def head(self, path: str) -> ObjectMeta:
        return self._log.run((path, "head"), lambda: self._store.head(path), lambda _: 0)

    def list(self, prefix: str = "") -> Iterator[ListEntry]:
        return iter(self._log.run((prefix, "list"), lambda: list(self._store.list(prefix)), lambda _: 0))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)  # what writes, and ``close``


def _size(body: Body) -> int:
    return len(body.data)


def recorded(
    path: str | os.PathLike[str], options: Mapping[str, Any] | None, transport: Transport, log: RequestLog
) -> tuple[str, dict[str, Any]]:
    """Return the URL and storage options that read a path through a log."""
    url = os.fspath(path)
    if is_local(url):
        url = f"file://{local_path(url)}"
    register_store(_SCHEME + url_scheme(url), _open)
    return _SCHEME + url, {"log": log, "options": dict(options or {}), "transport": transport}


def _open(url: str, options: Mapping[str, Any]) -> Store:
    inner, log = url.removeprefix(_SCHEME), options["log"]
    store = (
        LocalStore(inner)
        if is_local(inner)
        else open_transport(inner, options["options"], options["transport"])
    )
    return cast("Store", _RecordedStore(store, log))
