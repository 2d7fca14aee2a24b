"""Range fetches: coalesced requests, and the samples that are cut from their answers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from energon_stream.errors import IndexMismatchError, ObjectNotFoundError, RangeError
from energon_stream.storage import Body, ByteRange, Fetcher, plan_fetches

if TYPE_CHECKING:
    from energon_stream.arrays import Int64Array
    from energon_stream.read.locator import Cutter, Locator, RawSample
    from energon_stream.read.window import Window

_RELEASED: Future[Any] = Future()
"""Stands for an answer whose bytes are no longer needed."""
_RELEASED.set_result(None)


@dataclass(slots=True, eq=False)
class _Apart:
    """Samples of a fetch that was taken apart, each with its own bytes; an error if it cannot be cut."""

    samples: list[RawSample | None | IndexMismatchError]

    def cut(self, sample: int, number: int) -> RawSample | None:
        """Return a sample once; see :meth:`Cutter.cut`."""
        found, self.samples[number] = self.samples[number], None
        if isinstance(found, IndexMismatchError):
            raise found
        return found


@dataclass(slots=True, eq=False)
class RangeFetch:
    """One coalesced range request, and the wanted ranges within it."""

    locator: Locator
    object: int  # number of the object
    start: int  # first byte
    size: int  # length in bytes
    starts: Int64Array  # ``int64``, first byte of each range
    stops: Int64Array  # ``int64``, one past the last byte of each
    samples: Int64Array  # ``int64``, sample that each range belongs to
    deadline: int  # urgency of the first range, as for :meth:`Fetcher.submit`
    users: int  # number of ranges that are not consumed yet
    _answer: Future[Body] | None = None
    _cutter: Cutter | None = None
    _left: list[int] | None = None
    _sizes: list[int] | None = None

    @property
    def is_requested(self) -> bool:
        """True if the request was made."""
        return self._answer is not None

    @property
    def has_arrived(self) -> bool:
        """True if the answer has arrived."""
        return self._answer is not None and self._answer.done()

    @property
    def answer(self) -> Future[Body]:
        """The future answer. Raises RuntimeError if the request was not made; a bug of this library."""
        if self._answer is None:
            raise RuntimeError("a fetch was used before it was requested; please report this bug")
        return self._answer

    def request(self, fetcher: Fetcher) -> None:
        """Submit the request."""
        shard = self.locator.object(self.object)
        self._answer = fetcher.submit(
            shard.store,
            shard.path,
            ByteRange(self.start, self.start + self.size),
            etag=shard.etag,
            deadline=self.deadline,
        )

    def cutter(self) -> Cutter:
        """Wait for the bytes and return their cutter.

        Raises StorageError if the bytes could not be read, and IndexMismatchError if the index points beyond
        the object.
        """
        if self._cutter is None:
            self._cutter = self._split()
        return self._cutter

    @property
    def held(self) -> int:
        """Bytes that the fetch holds, or will hold when its answer arrives."""
        if self._answer is None or not self.users:
            return 0
        if self._sizes is None:
            return self.size
        return sum(self._sizes) - sum(self._sizes[number] for number in self._left or ())

    def leave(self, number: int) -> int:
        """Mark a range as consumed; return how many bytes this releases."""
        self.users -= 1
        if self._left is not None:
            self._left.append(number)
            if self._sizes is not None:
                return self._sizes[number]
        return 0 if self.users else self.size

    def may_be_taken_apart(self) -> None:
        """Record consumed ranges from now on, so that :meth:`take_apart` is possible."""
        self._left = []

    def take_apart(self) -> int:
        """Copy each remaining sample out of the answer; return how many bytes this releases.

        If the request failed, nothing happens; the error is raised for the first sample.
        """
        if self._left is None or self._sizes is not None or not self.users or len(self.starts) < 2:
            return 0
        try:
            cutter = self.cutter()
        except Exception:
            return 0
        before = self.held
        left = set(self._left)
        self._cutter = _Apart(
            [
                None if number in left else _own(cutter, sample, number)
                for number, sample in enumerate(self.samples.tolist())
            ]
        )
        self._answer = _RELEASED
        self._sizes = (self.stops - self.starts).tolist()
        return before - self.held

    def drop(self) -> int:
        """Cancel the request if it has not begun; return the bytes that the fetch held."""
        held, self.users = self.held, 0
        if self._answer is not None:
            self._answer.cancel()
        return held

    def _split(self) -> Cutter:
        try:
            body = self.answer.result()
        except RangeError as error:
            raise IndexMismatchError(error.what, where=error.where, hint=error.hint) from error
        except ObjectNotFoundError as error:
            raise ObjectNotFoundError(
                "a shard of the dataset does not exist",
                where=error.where,
                hint="Restore it, or run `energon-stream prepare` again.",
            ) from error
        self.locator.object(self.object).observe(body.etag)
        return self.locator.split(self.object, body.data, self.start, self.starts, self.stops)


def _own(cutter: Cutter, sample: int, number: int) -> RawSample | None | IndexMismatchError:
    try:
        raw = cutter.cut(sample, number)
    except IndexMismatchError as error:
        return error
    if raw is not None:
        raw.parts = {name: memoryview(bytes(part)) for name, part in raw.parts.items()}
    return raw


class PlannedSample(NamedTuple):
    """A sample whose fetches are planned."""

    leaf: int  # number of the leaf
    sample: int  # sample number within the leaf
    fetch: RangeFetch  # fetch of the sample's first range
    number: int  # number of this range within the fetch
    more: tuple[tuple[RangeFetch, int], ...] = ()  # fetch and number of further ranges

    def cut(self, locator: Locator) -> RawSample | None:
        """Wait for the bytes and cut the sample.

        Raises StorageError if the bytes could not be read, and IndexMismatchError if they are not the sample.
        """
        if locator.width == 1:
            return self.fetch.cutter().cut(self.sample, self.number)
        ranges = ((self.fetch, self.number), *self.more)
        found = [(fetch.object, fetch.cutter().cut(self.sample, number)) for fetch, number in ranges]
        return locator.merge(self.sample, found)


# Skips the constructor, because it is called for every sample.
_planned: Callable[[tuple[Any, ...]], PlannedSample] = partial(tuple.__new__, PlannedSample)


def plan_range_fetches(
    locators: Sequence[Locator],
    window: Window,
    must: int,
    may: int,
    max_gap: int,
    max_bytes: int,
    deadline: int,
) -> tuple[list[RangeFetch], list[PlannedSample]]:
    """Plan fetches for the next ``must`` ranges of a window, and remove these from it.

    Of the ``may`` ranges after them, those that lie between two of these are served as well. They get their
    fetch now and are planned later.

    Args:
        locators: Locators by leaf number.
        window: Located ranges.
        must: Number of ranges to serve, from the head of the window; they form whole references.
        may: Number of ranges after these that may be served as well.
        max_gap: Unwanted bytes between two ranges that are read rather than split a request.
        max_bytes: Largest fetch; only a larger single range exceeds it.
        deadline: Deadline of the first range; later ranges count on from it.

    Returns:
        The fetches, most urgent first, and the samples in order.
    """
    reach = must + may
    free = np.flatnonzero(window.is_free(reach))
    leaf, objects = window.leaf[free], window.objects[free]
    starts, stops = window.starts[free], window.stops[free]
    plan = plan_fetches(
        leaf << 32 | objects, starts, stops, free < must, max_gap=max_gap, max_bytes=max_bytes
    )
    served = np.flatnonzero(plan.fetch_of >= 0)
    by_fetch = served[np.argsort(plan.fetch_of[served], kind="stable")]
    bounds = np.searchsorted(plan.fetch_of[by_fetch], np.arange(len(plan.starts) + 1)).tolist()
    fetches = []
    first_byte, last_byte = plan.starts.tolist(), plan.stops.tolist()
    for number, (begin, end) in enumerate(itertools.pairwise(bounds)):
        rows = by_fetch[begin:end]
        fetch = RangeFetch(
            locators[int(leaf[rows[0]])],
            int(objects[rows[0]]),
            first_byte[number],
            last_byte[number] - first_byte[number],
            starts[rows],
            stops[rows],
            window.index[free[rows]],
            deadline + int(free[rows[0]]),  # rows are in order, so the first is the most urgent
            len(rows),
        )
        fetches.append(fetch)
        for place, row in enumerate(free[rows].tolist()):
            window.fetches[row] = fetch
            window.numbers[row] = place
    fetches.sort(key=lambda fetch: fetch.deadline)
    heads = np.flatnonzero(window.begins[:must])
    columns = window.leaf[heads].tolist(), window.index[heads].tolist()
    planned = _samples(*columns, heads.tolist(), *window.forget(must))
    return fetches, planned


def _samples(
    leaves: list[int], indices: list[int], heads: list[int], fetches: list[RangeFetch], numbers: list[int]
) -> list[PlannedSample]:
    """Group ranges into samples. A sample has the ranges from its head to the next head."""
    if len(heads) == len(fetches):
        columns = zip(leaves, indices, fetches, numbers, itertools.repeat(()), strict=False)
        return list(map(_planned, columns))
    ranges = list(zip(fetches, numbers, strict=True))
    return [
        PlannedSample(leaf, index, *ranges[head], tuple(ranges[head + 1 : end]))
        for leaf, index, head, end in zip(leaves, indices, heads, [*heads[1:], len(ranges)], strict=True)
    ]
