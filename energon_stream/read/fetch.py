"""Requests under way: their answers, the bytes that they hold, and the samples cut out of them."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from energon_stream.errors import ChecksumError, DatasetError, IndexMismatchError
from energon_stream.index.objects import as_errors_of_shards
from energon_stream.storage import Body, ByteRange, Fetcher, abandon, default_counters
from energon_stream.storage.coalesce import plan_fetches
from energon_stream.tar.headers import FEW
from energon_stream.tracing import current_recorder

if TYPE_CHECKING:
    from energon_stream.read.locator import Cut, Locator, RawSample
    from energon_stream.read.read_options import ReadOptions
    from energon_stream.read.read_plan import ReadPlan, Request

_log = logging.getLogger(__name__)

_REPEATS = 2
"""Times that bytes which disagree with the index are requested again."""

LOOKED_AT_EVERY = 0.01
"""Seconds after which a local file is looked at again, in case it was edited; it takes some microseconds."""


def wait_for_first(answers: list[Future[Any]], seconds: float | None = None) -> None:
    """Wait until one of some answers is there, or for some seconds."""
    wait(answers, seconds, FIRST_COMPLETED)


class RangeFetch:
    """A planned request on its way, until its last sample is consumed.

    It holds its whole answer, or, after :meth:`take_apart`, a copy of each sample that is still wanted.
    ``is_shared`` tells that other readers share the budget, so that the answer may be taken apart.
    """

    __slots__ = (
        "_again",
        "_answer",
        "_first",
        "_locator",
        "_sizes",
        "_users",
        "_written",
        "cutting",
        "due",
        "is_requested",
        "keeps",
        "left",
        "request",
        "uses",
    )

    def __init__(self, request: Request, locator: Locator, *, keeps: bool, is_shared: bool = False) -> None:
        self.request: Request = locator.with_neighbours(request)
        self.keeps: bool = keeps  # the answer, when no planned sample needs it any more
        self.is_requested: bool = False
        self._locator = locator
        self.uses: int = len(request.starts)  # planned ranges that are not consumed yet
        self._answer: Future[Body] | None = None
        self._first = 0  # byte of the answer with which the own ones begin
        self._users = [1]  # fetches that the answer is for
        self.cutting: Cut | None = None  # once the answer was looked at
        # When to look whether the file was edited, by ``time.monotonic``. Few samples are parsed one by one,
        # and compared with their headers.
        self.due: float = 0.0 if self.is_local and self.uses >= FEW else math.inf
        self._written: int | None = None  # when it was written to, before it was looked at
        self._again = _REPEATS  # times that the bytes may be requested again
        # Uses of each range, if the answer may be taken apart.
        self.left: list[int] | None = [1] * self.uses if is_shared and not self.is_local else None
        self._sizes: list[int] | None = None  # bytes of each copied sample, if it was taken apart

    @property
    def size(self) -> int:
        return self.request.size

    @property
    def deadline(self) -> int:
        return self.request.deadline

    @property
    def has_arrived(self) -> bool:
        return self._answer is not None and self._answer.done()

    @property
    def is_split(self) -> bool:
        """True if a sample was cut already."""
        return self.cutting is not None

    @property
    def is_local(self) -> bool:
        """True if the bytes are views of a local file."""
        return self._locator.index_is_local

    @property
    def answer(self) -> Future[Body]:
        """The future answer. Raises RuntimeError if the request was not made; a bug of this library."""
        if self._answer is None:
            raise RuntimeError("a fetch was used before it was requested; please report this bug")
        return self._answer

    def send(self, fetcher: Fetcher, *others: RangeFetch) -> None:
        """Make one request for this fetch and others of the same object."""
        every = (self, *others)
        shard = self._locator.object(self.request.object)
        start = min(fetch.request.start for fetch in every)
        stop = max(fetch.request.start + fetch.size for fetch in every)
        if not self.is_local:
            reason = self.request.reason.name.lower()
            default_counters().plan(reason)
            if (record := current_recorder()) is not None:
                record.reasons[shard.url, start] = reason
        deadline = min(fetch.deadline for fetch in every)
        answer, users = shard.submit(fetcher, ByteRange(start, stop), deadline), [len(every)]
        for fetch in every:
            fetch._answer, fetch._users, fetch._first = answer, users, fetch.request.start - start
            fetch.is_requested = True

    def reuse(self, places: Sequence[int]) -> None:
        """Note that ranges are planned once more, and served by the kept answer."""
        self.uses += len(places)
        if self.left is not None:
            for place in places:
                self.left[place] += 1

    def leave(self, place: int) -> int:
        """Mark a range as consumed; return how many bytes this releases."""
        self.uses -= 1
        if self.left is not None:
            self.left[place] -= 1
            if self._sizes is not None:
                return self._sizes[place]
        return 0 if self.uses or self.keeps else self.request.size

    def look(self) -> None:
        """Forget what was parsed of a local file that has changed; call this when ``due`` has passed."""
        self.due = time.monotonic() + LOOKED_AT_EVERY
        written = self._locator.object(self.request.object).written
        if written != self._written:
            self._written, self.cutting = written, None

    def cut(self, sample: int, place: int) -> RawSample | None:
        """Wait for the bytes and cut a sample.

        Raises StorageError if the bytes could not be read, IndexMismatchError if the index points beyond the
        object, and this or ChecksumError if the bytes are not the sample when they are requested again, too.
        """
        while True:
            self.cutting = cut = self.cutting or self._split()
            try:
                return cut(sample, place)
            except (IndexMismatchError, ChecksumError) as error:
                if not self.ask_again(error):
                    raise

    def ask_again(self, error: DatasetError) -> bool:
        """Request bytes that are not what the index says once more, past the disk cache.

        Return False if they came from a local file, or were requested often enough.
        """
        if self.is_local or not self._again or self._sizes is not None:
            return False
        self._again -= 1
        _log.warning("bytes that disagree with the index are requested again: %s", error)
        shard = self._locator.object(self.request.object)
        shard.forget(self.request.range)
        with as_errors_of_shards():
            body = shard.get_range(self.request.range)
        self.cutting, self._answer, self._first = None, Future(), 0
        self._answer.set_result(body)
        return True

    @property
    def is_done(self) -> bool:
        """True if no sample needs the answer any more."""
        return not (self.uses or self.keeps)

    @property
    def held(self) -> int:
        """Bytes that the fetch holds, or will hold when its answer arrives."""
        if self._answer is None or self.is_done:
            return 0
        if self._sizes is None:
            return self.request.size
        return sum(size for size, uses in zip(self._sizes, self.left or (), strict=True) if uses)

    def stop_keeping(self) -> int:
        """Keep the answer until its planned samples are consumed; return how many bytes this releases."""
        before, self.keeps = self.held, False
        if self._users[0] > 1 and self.has_arrived:  # else one fetch would hold the bytes of others
            self.take_apart()
        return before - self.held

    def take_apart(self) -> int:
        """Copy each wanted sample out of the answer; return how many bytes this releases.

        If the request failed, nothing happens; the error is raised for the first sample.
        """
        left = self.left
        if left is None or self._sizes is not None or self.keeps or not self.uses:
            return 0
        if len(left) < 2 and self._users[0] < 2:
            return 0
        if max(left) > 1:  # planned for several passes
            return 0
        try:
            self.cutting = self.cutting or self._split()
        except Exception:
            return 0
        before = self.held
        samples = enumerate(self.request.samples.tolist())
        copies = [_own(self.cut, sample, place) if left[place] else None for place, sample in samples]
        self.cutting = partial(_take_once, copies)
        self._sizes = (self.request.stops - self.request.starts).tolist()
        self._answer = Future()  # the bytes are no longer needed
        self._answer.set_result(Body(memoryview(b""), None, None))
        return before - self.held

    def drop(self) -> int:
        """Cancel the request, or let it end; return the bytes that the fetch held."""
        held, self.uses, self.keeps = self.held, 0, False
        if self._answer is not None:
            self._users[0] -= 1
            if not self._users[0]:
                self._answer.cancel()
                abandon(self._answer)
        return held

    def _split(self) -> Cut:
        request, locator = self.request, self._locator
        shard = locator.object(request.object)
        with as_errors_of_shards():
            body = self.answer.result()
        shard.observe(body.etag)
        data = body.data[self._first : self._first + request.size]
        wrong = locator.wrong_ranges(request, data)
        cut = locator.split(request, data)
        return partial(_refuse, wrong, cut) if wrong else cut


def fetches_of(plan: ReadPlan, locators: Sequence[Locator], is_shared: bool) -> dict[int, RangeFetch]:
    """Return the fetches of a plan by number."""
    return {
        each.number: RangeFetch(each, locators[each.leaf], keeps=plan.keeps, is_shared=is_shared)
        for each in plan.requests
    }


def stop_keeping(fetches: dict[int, RangeFetch]) -> int:
    """Release kept answers whose samples are consumed; return how many bytes this releases."""
    kept = [fetch for fetch in fetches.values() if fetch.keeps]
    freed = sum(fetch.stop_keeping() for fetch in kept)
    for fetch in kept:
        if fetch.is_done:
            del fetches[fetch.request.number]
    return freed


def joined(fetches: Sequence[RangeFetch], options: ReadOptions) -> Iterable[list[RangeFetch]]:
    """Group fetches that one request serves; the most urgent group first.

    They touch, or what lies between is little: gaps of all fetches, with those inside, have at most
    ``max_waste`` times the bytes of the samples.
    """
    if len(fetches) < 2:
        return [list(fetches)] if fetches else []
    requests = [fetch.request for fetch in fetches]
    columns = np.array([(each.leaf << 32 | each.object, each.start, each.size) for each in requests]).T
    keys, starts, sizes = columns
    every = np.ones(len(fetches), dtype=np.bool_)
    merge = partial(plan_fetches, keys, starts, starts + sizes, every, max_bytes=options.max_request)
    plan = merge(max_gap=0)
    read = int((plan.stops - plan.starts).sum())
    wanted = sum(int((each.stops - each.starts).sum()) for each in requests)
    waste = (1 + options.max_waste) * wanted / max(1, read) - 1
    if waste > 0 and len(plan.starts) > 1:
        plan = merge(max_gap=options.max_gap, sparse=every, max_waste=waste)
    groups = dict[int, list[RangeFetch]]()
    for fetch, number in zip(fetches, plan.fetch_of.tolist(), strict=True):
        groups.setdefault(number, []).append(fetch)
    return groups.values()


def _refuse(wrong: Mapping[int, ChecksumError], cut: Cut, sample: int, place: int) -> RawSample | None:
    """Cut a sample; raise the error of one whose bytes are wrong."""
    if place in wrong:
        raise wrong[place]
    return cut(sample, place)


def _own(cut: Cut, sample: int, place: int) -> RawSample | None | DatasetError:
    """Return a sample with bytes of its own, or the error if it cannot be cut."""
    try:
        raw = cut(sample, place)
    except DatasetError as error:
        return error
    if raw is not None:
        raw.parts = {
            name: bytes(part) if isinstance(part, memoryview) else part for name, part in raw.parts.items()
        }
    return raw


def _take_once(copies: list[RawSample | None | DatasetError], sample: int, place: int) -> RawSample | None:
    """Return a copied sample, and keep it no longer; raise its error if it could not be cut."""
    found, copies[place] = copies[place], None
    if isinstance(found, DatasetError):
        raise found
    return found
