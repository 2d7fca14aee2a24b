"""Remote stores as the library uses them: retried, counted, and opened anew in a forked process."""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from energon_stream.errors import BadAnswerError, RangeError, UnsupportedStoreError
from energon_stream.fork import PerProcess
from energon_stream.logs import log_once
from energon_stream.storage._answers import object_changed
from energon_stream.storage.attempts import AnswerUnwanted, ScheduledStore, with_listener
from energon_stream.storage.contact import contact_with
from energon_stream.storage.counters import StorageCounters, default_counters
from energon_stream.storage.retry import RetryPolicy
from energon_stream.storage.store import Body, ByteRange, ListEntry, ObjectMeta, Store
from energon_stream.tracing import current_recorder

T = TypeVar("T")
_log = logging.getLogger(__name__)

# Empty segments, those of one or two dots, and control characters. obstore cannot read such keys.
_NO_PATH = re.compile(r"(?:^|/)\.{0,2}(?:/|$)|[\x00-\x1f\x7f]")


class ManagedStore(ScheduledStore):
    """Adds retries, counters and fork safety to a store.

    ``factory`` opens the wrapped store, once in each process. ``counters`` default to the process's.
    Stores with the same ``contact_key`` share what the process knows of the server.
    """

    is_local = False

    def __init__(
        self,
        factory: Callable[[], Store],
        policy: RetryPolicy,
        counters: StorageCounters | None,
        contact_key: str,
    ) -> None:
        self._policy = policy
        self._counters = counters
        self._stores: PerProcess[Store] = PerProcess(factory)
        self.url: str = self._stores.get().url  # this reports unusable options now, not at the first read
        self._contact_key = contact_key

    def get(self, path: str, *, etag: str | None = None) -> Body:
        return self._read(path, lambda store: store.get(path, etag=etag), etag, math.inf)

    def get_range(self, path: str, byte_range: ByteRange, *, etag: str | None = None) -> Body:
        if not 0 <= byte_range.start < byte_range.stop:
            if byte_range.start == byte_range.stop >= 0:
                return Body(memoryview(b""), etag, None)  # without a request
            raise RangeError(f"no such byte range: {byte_range}", where=f"{self.url}/{path}")
        request: Callable[[Store], Body] = lambda store: store.get_range(path, byte_range, etag=etag)  # noqa: E731
        return self._read(path, request, etag, len(byte_range), byte_range)

    def get_suffix(self, path: str, length: int, *, etag: str | None = None) -> Body:
        if length <= 0:
            raise RangeError(
                f"a suffix of {length} bytes", where=f"{self.url}/{path}", hint="Ask for 1 or more."
            )
        try:
            return self._read(path, lambda store: store.get_suffix(path, length, etag=etag), etag, length)
        except (RangeError, UnsupportedStoreError):
            # An empty object has no last bytes: some stores refuse the request, others answer 200.
            if self.head(path).size:
                raise
            return self.get(path, etag=etag)

    def head(self, path: str) -> ObjectMeta:
        return self._run("head", path, lambda store: store.head(path))

    def list(self, prefix: str = "") -> Iterator[ListEntry]:
        """List all objects below a folder. A listing is retried as a whole and counts once.

        Keys that are no paths, such as those with ``//``, are left aside, with a warning.
        """
        listed = self._run("list", prefix, lambda store: sorted(store.list(prefix), key=lambda e: e.path))
        odd = [entry.path for entry in listed if _NO_PATH.search(entry.path)]
        if not odd:
            return iter(listed)
        message = "%s: keys that are no paths are left aside: %d, such as %r"
        log_once(_log, message, self.url, len(odd), odd[0])
        return (entry for entry in listed if not _NO_PATH.search(entry.path))

    def put(self, path: str, data: bytes) -> None:
        self._run("put", path, lambda store: store.put(path, data))

    def put_file(self, path: str, local_path: str, *, move: bool = False) -> None:
        self._run("put", path, lambda store: store.put_file(path, local_path))

    def delete(self, path: str) -> None:
        self._run("delete", path, lambda store: store.delete(path))

    def close(self) -> None:
        self._stores.get().close()

    def _read(
        self,
        path: str,
        request: Callable[[Store], Body],
        etag: str | None,
        length: float,  # bytes that are wanted, if the object has so many
        byte_range: ByteRange | None = None,
    ) -> Body:
        def whole(store: Store) -> Body:
            """Ask, and compare the length: some clients pass a body on that ends before its header says."""
            body, most = request(store), length
            if byte_range is None:
                most = min(length, len(body.data) if body.total_size is None else body.total_size)
            if len(body.data) != most:
                what = f"the store sent {len(body.data)} bytes of {most}"
                hint = "Check that no proxy or gateway on the way cuts answers off."
                raise BadAnswerError(what, where=f"{self.url}/{path}", hint=hint)
            return body

        body = self._run("get", path, whole, byte_range)
        if etag is not None and body.etag not in (None, etag):  # some servers ignore If-Match
            raise object_changed(f"{self.url}/{path}")
        return body

    def _run(
        self, kind: str, path: str, request: Callable[[Store], T], byte_range: ByteRange | None = None
    ) -> T:
        listener = self._listener
        is_hedge = listener.hedged_bytes > 0
        store = with_listener(self._stores.get(), listener)
        counters = self._counters or default_counters()

        def trace(begun: float, number: int, **outcome: Any) -> None:
            if (record := current_recorder()) is not None:
                url = f"{self.url}/{path}"
                values = {"object": url, "attempt": number, **outcome}
                if byte_range is not None:
                    values |= {"start": byte_range.start, "stop": byte_range.stop}
                    values["reason"] = record.reasons.get((url, byte_range.start), "")
                record.add(kind, "request", begun, time.perf_counter(), **values, is_hedge=is_hedge)

        def attempt(number: int) -> T:
            listener.begin()
            counters.begin(kind, is_retry=number > 0, hedged_bytes=listener.hedged_bytes)
            begun = time.perf_counter()
            try:
                result = request(store)
            except BaseException as error:
                counters.end(error=None if isinstance(error, AnswerUnwanted) else error)
                listener.end(error)
                trace(begun, number, error=type(error).__name__)
                raise
            received = len(result.data) if isinstance(result, Body) else 0
            counters.end(received=received, seconds=time.perf_counter() - begun)
            listener.end(None)
            trace(begun, number, bytes=received)
            return result

        if is_hedge:
            return replace(self._policy, attempts=1).run(attempt)
        return self._policy.run(attempt, contact_with(self._contact_key, self.url))
