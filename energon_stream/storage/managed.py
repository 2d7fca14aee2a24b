"""Remote stores as the library uses them: retried, counted, and opened anew in a forked process."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeVar

from energon_stream.errors import RangeError, TransientStorageError, UnsupportedStoreError
from energon_stream.storage._answers import object_changed
from energon_stream.storage.attempts import AnswerUnwanted, attempt_listener
from energon_stream.storage.base import Body, ByteRange, ListEntry, ObjectMeta, Store
from energon_stream.storage.counters import StorageCounters, default_counters
from energon_stream.storage.fork import PerProcess

T = TypeVar("T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Rules for retrying a request: how often, and after which waits. See ``StoreSpec.open(policy=…)``.

    The wait before retry ``n`` is uniform in ``[0, min(max_delay, base_delay * 2**(n - 1))]`` ("full jitter",
    https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/). With eleven attempts, one
    request in fifty million is lost if a fifth of all answers are 503, and a dead server is given up after
    about 8 s. The first waits are short because other requests wait for this one; the limit of requests in
    flight protects a busy store.

    Attributes:
        attempts: Attempts in all, the first included.
        base_delay: Upper bound of the first wait, in seconds.
        max_delay: Upper bound of any wait, in seconds.
        jitter: Returns uniform numbers in ``[0, 1)``. Not the global generator, whose draws belong to the
            user.
        sleep: Waits for a number of seconds.

    Example:
        >>> waits = []
        >>> def busy(attempt):
        ...     raise TransientStorageError("the store is busy")
        >>> RetryPolicy(attempts=4, jitter=lambda: 1.0, sleep=waits.append).run(busy)
        Traceback (most recent call last):
        energon_stream.errors.TransientStorageError: the store is busy (gave up after 4 attempts)
        >>> waits
        [0.025, 0.05, 0.1]
    """

    attempts: int = 11
    base_delay: float = 0.025
    max_delay: float = 5.0
    jitter: Callable[[], float] = field(default=random.SystemRandom().random, repr=False)
    sleep: Callable[[float], None] = field(default=time.sleep, repr=False)

    def run(self, function: Callable[[int], T]) -> T:
        """Call ``function(attempt)``, attempts counted from 0, until it succeeds. Raises
        TransientStorageError if the last attempt failed too; the message says how many there were.
        """
        attempt = 0
        while True:
            try:
                return function(attempt)
            except TransientStorageError as error:
                attempt += 1
                if attempt >= self.attempts:
                    raise TransientStorageError(
                        f"{error.what} (gave up after {attempt} attempts)", where=error.where, hint=error.hint
                    ) from error
                delay = self.jitter() * min(self.max_delay, self.base_delay * 2.0 ** (attempt - 1))
                _log.debug("attempt %d failed, next in %.2f s: %s", attempt, delay, error)
                self.sleep(delay)


class ManagedStore:
    """Adds retries, counters and fork safety to a store; see ``Store`` for the methods.

    ``factory`` opens the wrapped store, once in each process. ``counters`` default to those of the process.
    """

    is_local = False

    def __init__(
        self, factory: Callable[[], Store], policy: RetryPolicy, counters: StorageCounters | None
    ) -> None:
        self._policy = policy
        self._counters = counters
        self._stores: PerProcess[Store] = PerProcess(factory)
        self.url = self._stores.get().url  # this reports unusable options now instead of at the first read

    def get(self, path: str, *, etag: str | None = None) -> Body:
        return self._read(path, lambda store: store.get(path, etag=etag), etag)

    def get_range(self, path: str, byte_range: ByteRange, *, etag: str | None = None) -> Body:
        if not 0 <= byte_range.start < byte_range.stop:
            if byte_range.start == byte_range.stop >= 0:
                return Body(memoryview(b""), etag, None)  # without a request
            raise RangeError(f"no such byte range: {byte_range}", where=f"{self.url}/{path}")
        return self._read(path, lambda store: store.get_range(path, byte_range, etag=etag), etag)

    def get_suffix(self, path: str, length: int, *, etag: str | None = None) -> Body:
        if length <= 0:
            raise RangeError(
                f"a suffix of {length} bytes", where=f"{self.url}/{path}", hint="Ask for 1 or more."
            )
        try:
            return self._read(path, lambda store: store.get_suffix(path, length, etag=etag), etag)
        except (RangeError, UnsupportedStoreError):
            # An empty object has no last bytes: some stores refuse the request, others answer 200.
            if self.head(path).size:
                raise
            return self.get(path, etag=etag)

    def head(self, path: str) -> ObjectMeta:
        return self._run("head", lambda store: store.head(path))

    def list(self, prefix: str = "") -> Iterator[ListEntry]:
        """List all objects below a folder. A listing is retried as a whole and counts once."""

        def entries(store: Store) -> list[ListEntry]:
            return sorted(store.list(prefix), key=lambda entry: entry.path)

        return iter(self._run("list", entries))

    def put(self, path: str, data: bytes) -> None:
        self._run("put", lambda store: store.put(path, data))

    def put_file(self, path: str, local_path: str) -> None:
        self._run("put", lambda store: store.put_file(path, local_path))

    def delete(self, path: str) -> None:
        self._run("delete", lambda store: store.delete(path))

    def close(self) -> None:
        self._stores.get().close()

    def _read(self, path: str, request: Callable[[Store], Body], etag: str | None) -> Body:
        body = self._run("get", request)
        if etag is not None and body.etag not in (None, etag):  # some servers ignore If-Match
            raise object_changed(f"{self.url}/{path}")
        return body

    def _run(self, kind: str, request: Callable[[Store], T]) -> T:
        store = self._stores.get()
        counters = self._counters or default_counters()
        listener = attempt_listener()

        def attempt(number: int) -> T:
            listener.begin()
            counters.begin(kind, is_retry=number > 0, hedged_bytes=listener.hedged_bytes)
            try:
                result = request(store)
            except BaseException as error:
                counters.end(error=None if isinstance(error, AnswerUnwanted) else error)
                listener.end(error)
                raise
            counters.end(received=len(result.data) if isinstance(result, Body) else 0)
            listener.end(None)
            return result

        policy = self._policy if listener.retries else replace(self._policy, attempts=1)
        return policy.run(attempt)
