"""A model of a store that answers requests in virtual time, and locators whose objects are in it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from energon_stream.errors import ThrottledError
from energon_stream.read.locator import Cut, Locator, RawSample
from energon_stream.storage import Body, ByteRange, Fetcher, LocalStore, RetryPolicy, Store
from energon_stream.storage.attempts import AnswerUnwanted
from energon_stream.storage.fetcher import HEDGED_SHARE, StoreT
from energon_stream.storage.request_scheduler import RequestRun, RequestScheduler, RequestTask
from energon_stream.storage.retry import RequestFailures

if TYPE_CHECKING:
    from energon_stream.arrays import Int64Array
    from energon_stream.index.entries import Load
    from energon_stream.index.objects import ShardObject
    from energon_stream.read.range_stream import RangeStream
    from energon_stream.read.read_plan import Request
    from energon_stream.tools.simulate.clock import Line
    from energon_stream.tools.simulate.model import Costs, StoreModel

_T = TypeVar("_T")


class _VirtualAnswer(Future[_T]):
    """A future whose result comes at a virtual time."""

    def __init__(self, line: Line) -> None:
        super().__init__()
        self._line = line

    def result(self, timeout: float | None = None) -> _T:
        """Let time pass until the result is there. There is no timeout."""
        while not self.done():
            self._line.step()
        return super().result()


@dataclass(slots=True, eq=False, kw_only=True)
class _VirtualTask(RequestTask):
    """One submitted function: its requests, one after another, and its result."""

    sizes: list[int]  # bytes of the requests, the first one last
    finish: Callable[[], None]  # sets the future's result
    future: Future[Any]
    first: _VirtualRun | None = None


class _VirtualRun(RequestRun[_VirtualTask]):
    """One run of a function."""

    def __init__(self, task: _VirtualTask, *, is_second: bool = False) -> None:
        super().__init__(task, is_second=is_second)
        self.left = task.sizes.copy()
        self.failures: RequestFailures | None = None  # of the next request


@dataclass(slots=True)
class RequestCounts:
    """Requests and bytes of a process so far."""

    requests: int = 0
    bytes: int = 0
    rejected: int = 0
    repeated: int = 0


class VirtualFetcher(Fetcher):
    """Runs requests against a model of a store, in virtual time, without threads.

    It shares scheduler and retries with :class:`Fetcher`. A function of :meth:`ask` runs at once; its
    result comes when the model has answered the requests that it made.
    """

    def __init__(self, line: Line, store: StoreModel, costs: Costs, in_flight: int, seed: int) -> None:
        # Without that of the base class: there are no threads to end.
        self.line: Line = line
        self.counts: RequestCounts = RequestCounts()
        self._store, self._costs = store, costs
        self._random = Random(seed)
        self._policy = RetryPolicy(jitter=self._random.random)
        self._scheduler: RequestScheduler[_VirtualTask] = RequestScheduler(
            min(in_flight, store.max_in_flight), HEDGED_SHARE, self._repeat, self._look_later
        )
        self._look_at = math.inf  # when late requests are looked for
        self._made: list[int] | None = None  # bytes of the requests of the function that runs now
        self._zeros = memoryview(bytes(1 << 20))

    def submit(
        self, store: Store, path: str, byte_range: ByteRange, *, etag: str | None = None, deadline: int = 0
    ) -> Future[Body]:
        """Request a range. The bytes of the answer are zeros."""
        size = len(byte_range)
        future: Future[Body] = _VirtualAnswer(self.line)
        body = Body(self.zeros(size), None, None)
        self._submit([size], deadline, lambda: future.set_result(body), future, repeatable_bytes=size)
        return future

    def ask(
        self,
        store: StoreT,
        request: Callable[[StoreT], _T],
        *,
        deadline: int = 0,
        repeatable_bytes: int = 0,
    ) -> Future[_T]:
        """Run a function now, and return its result when its requests are answered."""
        future: Future[_T] = _VirtualAnswer(self.line)
        outer, self._made = self._made, []
        try:
            result = request(store)
        except BaseException as error:
            raised = error
            finish: Callable[[], None] = lambda: future.set_exception(raised)  # noqa: E731
        else:
            finish = lambda: future.set_result(result)  # noqa: E731
        made, self._made = self._made, outer
        if made:
            self._submit(made[::-1], deadline, finish, future, repeatable_bytes)
        else:
            finish()
        return future

    def read(self, size: int) -> None:
        """Note a request of the function that runs now; outside of one, wait for the answer."""
        if self._made is not None:
            self._made.append(size)
            return
        future: Future[None] = _VirtualAnswer(self.line)
        self._submit([size], -1, lambda: future.set_result(None), future)
        future.result()

    def wait_for_first(self, futures: Sequence[Future[Any]], seconds: float | None = None) -> None:
        """Let time pass until one of some futures is done, or for some seconds."""
        end = math.inf if seconds is None else self.line.now + seconds
        if seconds is not None:
            self.line.at(end, lambda: None)
        while self.line.now < end and not any(future.done() for future in futures):
            self.line.step()

    @property
    def scheduler(self) -> RequestScheduler[Any]:
        return self._scheduler

    def clock(self) -> float:
        """Return the virtual time in seconds."""
        return self.line.now

    def zeros(self, size: int) -> memoryview:
        """Return ``size`` zero bytes."""
        if len(self._zeros) < size:
            self._zeros = memoryview(bytes(size))
        return self._zeros[:size]

    def close(self) -> None:
        """There is nothing to close."""

    def _submit(
        self,
        sizes: list[int],
        deadline: int,
        finish: Callable[[], None],
        future: Future[Any],
        repeatable_bytes: int = 0,
    ) -> None:
        task = _VirtualTask(repeatable_bytes, sizes=sizes, finish=finish, future=future)
        self._scheduler.submit(task, deadline)
        self._grant()

    # What a thread of the pool does

    def _grant(self) -> None:
        while (task := self._scheduler.grant()) is not None:
            if task.first is None and not task.future.set_running_or_notify_cancel():
                self._scheduler.release(task)
                continue
            task.first = task.first or _VirtualRun(task)
            self._begin(task.first)

    def _begin(self, run: _VirtualRun) -> None:
        """Begin an attempt at a run's next request, unless it has to wait for a slot."""
        try:
            begins = self._scheduler.begin(run, self.line.now)
        except AnswerUnwanted as unwanted:
            self._finish(run, unwanted)
        else:
            if begins:
                self._send(run)

    def _send(self, run: _VirtualRun) -> None:
        store, random, scheduler = self._store, self._random, self._scheduler
        first_byte = store.latency + (random.expovariate(1 / store.jitter) if store.jitter else 0.0)
        if store.slow_share and random.random() < store.slow_share:
            first_byte *= store.slow_factor
        self.counts.requests += 1
        self.counts.repeated += run.is_second
        is_rejected = store.error_share > 0 and random.random() < store.error_share
        size = run.left[-1]
        byte = max(self._costs.byte, 1 / store.rate_total if store.rate_total else 0.0)
        paced = max(0, size - store.burst) / store.rate_per_connection if store.rate_per_connection else 0.0
        earliest = 0.0

        def sent() -> None:
            nonlocal earliest
            earliest = self.line.now + first_byte
            self.line.at(earliest, rejected if is_rejected else answering)

        def answering() -> None:
            if scheduler.answered(run, self.line.now):
                self.line.receive(
                    size * byte, lambda: self.line.at(max(self.line.now, earliest + paced), arrived)
                )
            else:
                failed(AnswerUnwanted(), None)

        def arrived() -> None:
            self.counts.bytes += size
            scheduler.end(run, None, self.line.now)
            run.left.pop()
            run.failures = None
            if run.left:
                self._begin(run)
            else:
                self._finish(run, None)
            self._grant()

        def rejected() -> None:
            self.counts.rejected += 1
            run.failures = run.failures or RequestFailures(self._policy, self.line.now, self.line.now)
            error = ThrottledError(f"the modelled store rejected {run.failures.count + 1} attempts")
            failed(error, None if run.is_second else run.failures.add(error, self.line.now))

        def failed(error: Exception, wait: float | None) -> None:
            scheduler.end(run, error, self.line.now)
            if wait is None:
                self._finish(run, error)
            else:
                self.line.at(self.line.now + wait, again)
            self._grant()

        def again() -> None:
            self._begin(run)
            self._grant()

        self.line.send(self._costs.request, sent)

    def _finish(self, run: _VirtualRun, error: BaseException | None) -> None:
        """End a run; the first one to succeed brings the result."""
        task = run.task
        if self._scheduler.finish(run, error):
            if error is None:
                task.finish()
            else:
                task.future.set_exception(task.error)
        if task.settled or not run.is_second:
            self._scheduler.release(task)

    # Late requests

    def _repeat(self, task: _VirtualTask) -> None:
        self.line.at(self.line.now, lambda: self._begin(_VirtualRun(task, is_second=True)))

    def _look_later(self, look_at: float) -> None:
        self._look_at = look_at
        if look_at < math.inf:
            self.line.at(look_at, partial(self._look, look_at))

    def _look(self, look_at: float) -> None:
        """Repeat late requests, unless another time was set since."""
        if look_at == self._look_at:
            self._look_later(self._scheduler.look(self.line.now))


class VirtualStore(LocalStore):
    """Answers with zeros, in virtual time."""

    def __init__(self, fetcher: VirtualFetcher) -> None:
        super().__init__("/")
        self._fetcher = fetcher

    def get_range(self, path: str, byte_range: ByteRange, *, etag: str | None = None) -> Body:
        self._fetcher.read(len(byte_range))
        return Body(self._fetcher.zeros(len(byte_range)), None, None)


@dataclass(frozen=True, slots=True)
class VirtualLocator(Locator):
    """A locator whose objects are in the modelled store; see :class:`Locator`."""

    inner: Locator
    leaf: int
    fetcher: VirtualFetcher
    planning: float  # CPU seconds to plan a sample

    @property
    def width(self) -> int:
        return self.inner.width

    @property
    def index_is_local(self) -> bool:
        return self.inner.index_is_local

    @property
    def is_sparse(self) -> bool:
        return self.inner.is_sparse

    @property
    def skips_bytes(self) -> bool:
        return self.inner.skips_bytes

    @property
    def opening(self) -> Locator:
        inner = self.inner.opening
        return self if inner is self.inner else replace(self, inner=inner)

    def claim_loads(self, samples: Int64Array) -> list[Load]:
        return self.inner.claim_loads(samples)

    def locate(self, samples: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        self.fetcher.line.work(self.planning * len(samples))
        return self.inner.locate(samples)

    def object(self, number: int) -> ShardObject:
        return replace(self.inner.object(number), store=VirtualStore(self.fetcher))

    def split(self, request: Request, data: memoryview) -> Cut:
        return lambda sample, _: RawSample(self.leaf, sample, "", None, {})

    def cut_streams(self, sample: int, streams: Sequence[tuple[int, RangeStream]]) -> RawSample | None:
        for _, stream in streams:
            stream.seek(stream.stop)
        return RawSample(self.leaf, sample, "", None, {})
