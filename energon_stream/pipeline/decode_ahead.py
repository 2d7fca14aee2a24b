"""Parts that threads decode before the pipeline asks for them: ``decode_threads``.

The thread of the worker makes the samples in order, as without threads. Only calls of decoders move: those
for parts that took long in earlier samples. What a call returns or raises, the worker gets where it asks.
"""

from __future__ import annotations

import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeAlias

from energon_stream.fork import PerProcess
from energon_stream.read.consume import SampleReader
from energon_stream.threads import context_runner

if TYPE_CHECKING:
    from energon_stream.read.locator import RawSample
    from energon_stream.schedule import Cursor

Decode: TypeAlias = "Callable[[str, bytes | memoryview], Any]"

_WORTH_SECONDS = 0.0002  # of a call: handing one over to a thread and back takes about a fifth of it


class DecodeThreads:
    """The threads of a process that decode, which start with the first part."""

    def __init__(self, threads: int, streams: int) -> None:
        self.most_ahead: int = max(2 * threads, 8 * threads // streams)  # samples of each stream
        self.open: weakref.WeakSet[Decoding] = weakref.WeakSet()  # whose values nobody has taken
        self.most_open: int = 2 * self.most_ahead * streams
        self._pools = PerProcess(lambda: ThreadPoolExecutor(threads, "energon_stream decode"))

    def submit(self, decode: Decode, parts: dict[str, bytes | memoryview]) -> Future[dict[str, Any]]:
        """Decode parts on a thread. The result has a value or an error for each of them."""
        run = context_runner()  # numpy's errstate, and what else the worker has set
        return self._pools.get().submit(run, _decode_each, decode, parts)

    def close(self) -> None:
        """Let the threads end after the parts that they decode."""
        pool = self._pools.pop()
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)


def _decode_each(decode: Decode, parts: dict[str, bytes | memoryview]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, data in parts.items():
        try:
            made[name] = decode(name, data), None
        except BaseException as error:
            made[name] = None, error
    return made


class AheadParts(dict[str, "bytes | memoryview"]):
    """Parts of a sample, some of which a thread may be decoding."""

    __slots__ = ("decoding",)

    def __init__(self, parts: dict[str, bytes | memoryview], decoding: Decoding) -> None:
        super().__init__(parts)
        self.decoding: Decoding = decoding


class Decoding:
    """Parts of a sample that a thread decodes; each is taken once. ``worth`` has the parts that take long."""

    __slots__ = ("__weakref__", "_future", "_names", "_open", "_pid", "_worth")

    def __init__(
        self, worth: set[str], threads: DecodeThreads, decode: Decode, parts: dict[str, bytes | memoryview]
    ) -> None:
        self._worth = worth
        self._names = worth & parts.keys()
        self._pid, self._open = os.getpid(), threads.open
        self._future: Future[dict[str, Any]] | None = None
        # A buffer of samples may hold many that were begun.
        if self._names and len(self._open) < threads.most_open:
            self._future = threads.submit(decode, {name: parts[name] for name in self._names})
            self._open.add(self)

    def value(self, decode: Decode, name: str, data: bytes | memoryview) -> Any:
        """Return what ``decode(name, data)`` returns, or raise what it raises."""
        future = self._future
        if future is None or name not in self._names or os.getpid() != self._pid:
            begin = time.perf_counter()
            value = decode(name, data)
            if time.perf_counter() - begin > _WORTH_SECONDS:
                self._worth.add(name)
            return value
        self._names.remove(name)
        self._open.discard(self)
        value, error = future.result().pop(name)
        if error is not None:
            raise error
        return value


def open_reader(*place: Any, leaves: Sequence[Any], threads: DecodeThreads | None) -> SampleReader:
    """Return a reader of leaves at a place, which decodes ahead if there are threads."""
    return SampleReader(*place) if threads is None else AheadReader(*place, leaves=leaves, threads=threads)


class AheadReader(SampleReader):
    """Takes samples ahead whose bytes are there, to decode parts; its place is that of what it returned.

    Samples ahead hold at most an eighth of the byte budget, beside the next one.
    """

    def __init__(self, *reader: Any, leaves: Sequence[Any], threads: DecodeThreads) -> None:
        super().__init__(*reader)
        self._leaves, self._threads, self._most_bytes = leaves, threads, self._group.options.fetch_bytes // 8
        self._worth: dict[int, set[str]] = {}  # of each leaf
        # Samples, errors and ends, with the references that each took, and bytes.
        self._taken: deque[tuple[RawSample | Exception | None, int, int]] = deque()
        self._passed = self._bytes = 0  # those of all

    def next(self) -> RawSample | None:
        taken = self._taken
        while not taken or self._may_take(taken[-1][0]):
            self._take()
        found, passed, size = taken.popleft()
        self._passed -= passed
        self._bytes -= size
        if isinstance(found, Exception):
            raise found
        return found

    def _may_take(self, last: RawSample | Exception | None) -> bool:
        return (
            last is not None
            and not isinstance(last, Exception)
            and any(self._worth.values())
            and len(self._taken) <= self._threads.most_ahead
            and self._bytes < self._most_bytes
            and self.is_at_hand()
        )

    def _take(self) -> None:
        before, size = super().since, 0
        found: RawSample | Exception | None
        try:
            found = super().next()
        except Exception as error:
            found = error
        if found is not None and not isinstance(found, Exception):
            size = sum(len(part) for each in (found, *found.members) if each for part in each.parts.values())
            worth = self._worth.setdefault(found.leaf, set())
            self._leaves[found.leaf].decode_ahead(found, self._threads, worth)
        passed = super().since - before
        self._passed += passed
        self._bytes += size
        self._taken.append((found, passed, size))

    def cursor(self, behind: int = 0) -> Cursor:
        return super().cursor(self._passed + behind)

    @property
    def since(self) -> int:
        return super().since - self._passed

    def close(self) -> None:
        self._taken.clear()
        super().close()
