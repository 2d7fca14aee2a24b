"""Every remote store as users get it: retried, counted, and made anew in a forked process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

from energon_stream.errors import RangeError, UnsupportedStoreError
from energon_stream.storage._answers import answer_error
from energon_stream.storage.attempts import AnswerUnwanted, AttemptListener, attempt_listener
from energon_stream.storage.base import Body, ByteRange, ListEntry, ObjectMeta, Store
from energon_stream.storage.counters import StorageCounters, default_counters
from energon_stream.storage.fork import PerProcess
from energon_stream.storage.retry import RetryPolicy

__all__ = ["ManagedStore"]

T = TypeVar("T")


class ManagedStore:
    """Wraps the store that ``factory`` makes; see ``Store`` for the methods.

    Args:
        factory: Makes the wrapped store; called once in every process.
        policy: Retries of transient faults.
        counters: Where attempts are counted; None is the counters of the process.
    """

    is_local = False

    def __init__(
        self, factory: Callable[[], Store], policy: RetryPolicy, counters: StorageCounters | None
    ) -> None:
        self._policy = policy
        self._counters = counters
        self._stores: PerProcess[Store] = PerProcess(factory)
        self._stores.get()  # options that the transport refuses are refused now

    @property
    def url(self) -> str:
        """Root URL without credentials."""
        return self._stores.get().url

    def get(self, path: str, *, etag: str | None = None) -> Body:
        """Read a whole object."""
        return self._read(path, lambda store: store.get(path, etag=etag), etag)

    def get_range(self, path: str, byte_range: ByteRange, *, etag: str | None = None) -> Body:
        """Read a byte range. An empty one costs no request."""
        if not 0 <= byte_range.start < byte_range.stop:
            if byte_range.start == byte_range.stop >= 0:
                return Body(memoryview(b""), etag, None)
            raise RangeError(f"no such byte range: {byte_range}", where=f"{self.url}/{path}")
        return self._read(path, lambda store: store.get_range(path, byte_range, etag=etag), etag)

    def get_suffix(self, path: str, length: int, *, etag: str | None = None) -> Body:
        """Read the last ``length`` bytes (all of a shorter object)."""
        if length <= 0:
            raise RangeError(
                f"a suffix of {length} bytes", where=f"{self.url}/{path}", hint="Ask for 1 or more."
            )
        try:
            return self._read(path, lambda store: store.get_suffix(path, length, etag=etag), etag)
        except (RangeError, UnsupportedStoreError):
            if self.head(path).size:
                raise
            return self.get(path, etag=etag)  # an empty object has no last bytes; stores refuse or answer 200

    def head(self, path: str) -> ObjectMeta:
        """Metadata of one object."""
        return self._run("head", lambda store: store.head(path))

    def list(self, prefix: str = "") -> Iterator[ListEntry]:
        """All objects below a folder, sorted; a listing is retried as a whole and counts once."""

        def entries(store: Store) -> list[ListEntry]:
            return sorted(store.list(prefix), key=lambda entry: entry.path)

        return iter(self._run("list", entries))

    def put(self, path: str, data: bytes) -> None:
        """Write a whole object."""
        self._run("put", lambda store: store.put(path, data))

    def put_file(self, path: str, local_path: str) -> None:
        """Upload a local file."""
        self._run("put", lambda store: store.put_file(path, local_path))

    def delete(self, path: str) -> None:
        """Remove one object."""
        self._run("delete", lambda store: store.delete(path))

    def close(self) -> None:
        """Release what the wrapped store can release."""
        self._stores.get().close()

    def _read(self, path: str, request: Callable[[Store], Body], etag: str | None) -> Body:
        body = self._run("get", request, _body_size)
        if etag is not None and body.etag not in (None, etag):  # some servers ignore If-Match
            raise answer_error(412, "", "", where=f"{self.url}/{path}", endpoint="")
        return body

    def _run(
        self, kind: str, request: Callable[[Store], T], size: Callable[[T], int] = lambda result: 0
    ) -> T:
        store = self._stores.get()
        counters = self._counters or default_counters()
        listener = attempt_listener() or _NOBODY

        def attempt(number: int) -> T:
            listener.begin()
            counters.begin(kind, is_retry=number > 0, hedged_bytes=listener.hedged_bytes)
            try:
                result = request(store)
            except BaseException as error:
                counters.end(error=None if isinstance(error, AnswerUnwanted) else error)
                listener.end(error)
                raise
            counters.end(received=size(result))
            listener.end(None)
            return result

        policy = self._policy if listener.retries else replace(self._policy, attempts=1)
        return policy.run(attempt)


class _Nobody:
    """Listens to requests that no fetcher runs."""

    retries = True
    hedged_bytes = 0

    def begin(self) -> None:
        """Attempts start at once."""

    def answered(self) -> bool:
        """Every answer is wanted."""
        return True

    def end(self, error: BaseException | None) -> None:
        """Nothing follows from an answer."""

    def release_slot(self) -> None:
        """There is no line to release_slot."""


_NOBODY: AttemptListener = _Nobody()


def _body_size(body: Body) -> int:
    return len(body.data)
