"""A fetcher whose requests are answered by a model of a store, in virtual time."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from energon_stream.errors import TransientStorageError
from energon_stream.storage import Body, ByteRange, Fetcher, RetryPolicy, Store
from energon_stream.storage.hedge import HedgeBudget, LatencyModel
from energon_stream.storage.limiter import ConcurrencyLimit

if TYPE_CHECKING:
    from energon_stream.storage.fetcher import StoreT
    from energon_stream.tools.simulate.clock import Line
    from energon_stream.tools.simulate.model import Costs, StoreModel

_T = TypeVar("_T")
_HEDGED_SHARE = 0.03  # as that of the fetcher
_MOST_REPEATS = 2  # as that of the fetcher
_LOOK_AGAIN = 0.05  # seconds, while it is not known when an answer is late


class _Answer(Future[_T]):
    """A future whose result comes at a virtual time."""

    def __init__(self, line: Line) -> None:
        super().__init__()
        self._line = line

    def result(self, timeout: float | None = None) -> _T:
        """Let time pass until the result is there. There is no timeout."""
        while not self.done():
            self._line.step()
        return super().result()


@dataclass(slots=True, eq=False)
class _Task:
    """One submitted function: its requests, one after another, and its result."""

    urgency: tuple[int, int]  # deadline, order of submission
    sizes: list[int]  # bytes of the requests that are left, the next one last
    repeatable: bool
    finish: Callable[[], None]  # sets the future's result
    future: Future[Any]
    has_slot: bool = False
    failures: int = 0
    failing_since: float = 0.0  # virtual time of the request's first failure
    repeats: int = 0
    number: int = 0  # counts requests that were answered
    started: float = 0.0
    is_answering: bool = False


@dataclass(slots=True)
class Counts:
    """Requests and bytes of a process so far."""

    requests: int = 0
    bytes: int = 0
    rejected: int = 0
    repeated: int = 0


@dataclass(slots=True)
class _Late:
    """Times of earlier answers, as in the fetcher's watcher."""

    budget: HedgeBudget = field(default_factory=lambda: HedgeBudget(_HEDGED_SHARE))
    to_end: LatencyModel = field(default_factory=LatencyModel)
    to_first_byte: LatencyModel = field(default_factory=LatencyModel.of_first_bytes)

    def after(self, size: int, is_answering: bool) -> float:
        """Return the seconds after which an answer is late; infinite while unknown."""
        to_end = self.to_end.late_after(size)
        if is_answering:
            return to_end
        return min(to_end, self.to_first_byte.late_after(1), self.to_first_byte.early)


class VirtualFetcher(Fetcher):
    """Runs requests against a model of a store, in virtual time, without threads.

    It follows the rules of the fetcher: slots by deadline, retries, a limit that follows rejections, and
    second requests. A function of :meth:`ask` runs at once; its result comes when the model has answered
    the requests that it made.

    Attributes:
        counts: Requests and bytes so far.
    """

    def __init__(self, line: Line, store: StoreModel, costs: Costs, in_flight: int, seed: int) -> None:
        # Without that of the base class: there are no threads to end.
        self.line: Line = line
        self.counts: Counts = Counts()
        self._store, self._costs = store, costs
        self._policy = RetryPolicy()
        self._random = Random(seed)
        self._limit = ConcurrencyLimit(min(in_flight, store.connections))
        self._late = _Late()
        self._busy = 0
        self._submitted = 0
        self._waiting: list[tuple[tuple[int, int], _Task]] = []
        self._made: list[int] | None = None  # bytes of the requests of the function that runs now
        self._zeros = memoryview(bytes(1 << 20))

    def submit(
        self, store: Store, path: str, byte_range: ByteRange, *, etag: str | None = None, deadline: int = 0
    ) -> Future[Body]:
        """Request a range. The bytes of the answer are zeros."""
        size = len(byte_range)
        future: Future[Body] = _Answer(self.line)
        body = Body(self.zeros(size), None, None)
        self._submit([size], deadline, lambda: future.set_result(body), future, repeatable=True)
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
        future: Future[_T] = _Answer(self.line)
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
            self._submit(made[::-1], deadline, finish, future, repeatable=repeatable_bytes > 0)
        else:
            finish()
        return future

    def read(self, size: int) -> None:
        """Note a request of the function that runs now; outside of one, wait for the answer."""
        if self._made is not None:
            self._made.append(size)
            return
        future: Future[None] = _Answer(self.line)
        self._submit([size], -1, lambda: future.set_result(None), future, repeatable=False)
        future.result()

    def wait_for_first(self, futures: Sequence[Future[Any]]) -> None:
        """Let time pass until one of some futures is done."""
        while not any(future.done() for future in futures):
            self.line.step()

    def clock(self) -> float:
        """Return the virtual time in seconds."""
        return self.line.now

    def zeros(self, size: int) -> memoryview:
        """Return so many zeros."""
        if len(self._zeros) < size:
            self._zeros = memoryview(bytes(size))
        return self._zeros[:size]

    def close(self) -> None:
        """There is nothing to close."""

    # A task's way

    def _submit(
        self,
        sizes: list[int],
        deadline: int,
        finish: Callable[[], None],
        future: Future[Any],
        repeatable: bool,
    ) -> None:
        self._submitted += 1
        task = _Task((deadline, self._submitted), sizes, repeatable, finish, future)
        if repeatable:
            self._late.budget.earn(sum(sizes))
        self._queue(task)

    def _queue(self, task: _Task) -> None:
        heapq.heappush(self._waiting, (task.urgency, task))
        self._grant()

    def _grant(self) -> None:
        while self._waiting and self._busy < self._limit.limit:
            task = heapq.heappop(self._waiting)[1]
            is_new = not task.future.running()
            if task.future.done() or (is_new and not task.future.set_running_or_notify_cancel()):
                continue  # a second request was faster than this one's back-off, or nobody wants it
            task.has_slot = True
            self._busy += 1
            self._begin(task)

    def _release(self, task: _Task) -> None:
        self._busy -= task.has_slot
        task.has_slot = False
        self._grant()

    def _begin(self, task: _Task) -> None:
        """Begin the first attempt at a task's next request, or another one after a rejection."""
        task.started, task.is_answering = self.line.now, False
        self._attempt(task, is_second=False)
        if task.repeatable:
            self._watch(task)

    def _attempt(self, task: _Task, *, is_second: bool) -> None:
        """Send a request."""
        store, random, number = self._store, self._random, task.number
        first_byte = store.latency + (random.expovariate(1 / store.jitter) if store.jitter else 0.0)
        if store.slow_share and random.random() < store.slow_share:
            first_byte *= store.slow_factor
        self.counts.requests += 1
        self.counts.repeated += is_second
        is_rejected = store.error_share > 0 and random.random() < store.error_share
        size = task.sizes[-1]
        byte = max(self._costs.byte, 1 / store.rate_total if store.rate_total else 0.0)
        started = 0.0
        paced = max(0, size - store.burst) / store.rate_per_connection if store.rate_per_connection else 0.0

        def sent() -> None:
            nonlocal started
            started = task.started = self.line.now
            action = partial(self._rejected, task, number, is_second) if is_rejected else answering
            self.line.at(started + first_byte, action)

        def answering() -> None:
            if task.number == number:
                task.is_answering = True
            self._late.to_first_byte.observe(1, self.line.now - started)
            self.line.receive(size * byte, received)

        def received() -> None:
            self.line.at(max(self.line.now, started + first_byte + paced), arrived)

        def arrived() -> None:
            self._late.to_end.observe(size, self.line.now - started)
            self._limit.observe(rejected=False, in_flight=self._busy)
            self.counts.bytes += size
            if task.number == number:
                self._answered(task)

        self.line.send(self._costs.request, sent)

    def _answered(self, task: _Task) -> None:
        """Go on to the task's next request, or finish it."""
        task.sizes.pop()
        task.number += 1
        task.failures = task.repeats = 0
        task.failing_since = 0.0
        if task.sizes:
            self._begin(task)
            return
        task.finish()
        self._release(task)

    def _rejected(self, task: _Task, number: int, is_second: bool) -> None:
        """Try again after a while; a second request is not tried again."""
        self.counts.rejected += 1
        self._limit.observe(rejected=True, in_flight=self._busy)
        if is_second or task.number != number:
            return
        task.failures += 1
        task.failing_since = task.failing_since or self.line.now
        if self.line.now - task.failing_since >= self._policy.deadline:
            error = TransientStorageError(f"the modelled store rejected {task.failures} attempts")
            task.future.set_exception(error)
        else:
            most = self._policy.longest_wait(task.failures)
            self.line.at(self.line.now + self._random.random() * most, partial(self._return, task, number))
        self._release(task)

    def _return(self, task: _Task, number: int) -> None:
        """Wait for a slot after a rejection, unless a second request was faster."""
        if task.number == number:
            self._queue(task)

    def _watch(self, task: _Task) -> None:
        """Repeat the task's request when it is late."""
        number, size = task.number, task.sizes[-1]

        def look() -> None:
            if task.number != number or task.future.done() or task.repeats == _MOST_REPEATS:
                return
            late_after = self._late.after(size, task.is_answering)
            if late_after == math.inf:
                self.line.at(self.line.now + _LOOK_AGAIN, look)
                return
            if self.line.now >= task.started + late_after - 1e-9:
                if self._late.budget.can_spend(size):
                    self._late.budget.spend(size)
                    task.repeats += 1
                    self._attempt(task, is_second=True)
                task.started, task.is_answering = self.line.now, False
            self.line.at(task.started + late_after, look)

        look()
