"""Fetches: requests that serve the byte ranges of several samples."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from energon_stream.arrays import Int64Array
from energon_stream.errors import IndexMismatchError, ObjectNotFoundError, RangeError
from energon_stream.read.locator import Cutter, Locator, RawSample
from energon_stream.read.window import Window
from energon_stream.storage import Body, ByteRange, Fetcher, plan_fetches

__all__ = ["RangeFetch", "PlannedSample", "plan_range_fetches"]

_GIVEN: Future[Any] = Future()
"""Stands for an answer whose bytes are not needed any more."""
_GIVEN.set_result(None)


@dataclass(slots=True, eq=False)
class _Apart:
    """Samples of a fetch, each with bytes of its own; an error stands for one that cannot be cut."""

    samples: list[RawSample | None | IndexMismatchError]

    def cut(self, sample: int, number: int) -> RawSample | None:
        """Give a sample out; see :meth:`Cutter.cut`."""
        found, self.samples[number] = self.samples[number], None
        if isinstance(found, IndexMismatchError):
            raise found
        return found


@dataclass(slots=True, eq=False)
class RangeFetch:
    """Neighbouring bytes of an object, and the ranges within them that are wanted.

    Attributes:
        locator: Whose object it is.
        object: Number of the object.
        start: First byte.
        size: Length in bytes.
        starts: ``int64``, first byte of each range.
        stops: ``int64``, one past the last byte of each.
        samples: ``int64``, sample that each range belongs to.
        deadline: When its first range is wanted, as the fetcher counts.
        users: Ranges that are still wanted.
    """

    locator: Locator
    object: int
    start: int
    size: int
    starts: Int64Array
    stops: Int64Array
    samples: Int64Array
    deadline: int
    users: int
    _answer: Future[Body] | None = None
    _cutter: Cutter | None = None
    _left: list[int] | None = None
    _sizes: list[int] | None = None

    @property
    def is_requested(self) -> bool:
        """Whether the request was made."""
        return self._answer is not None

    @property
    def has_arrived(self) -> bool:
        """Whether the answer is there."""
        return self._answer is not None and self._answer.done()

    @property
    def answer(self) -> Future[Body]:
        """The answer to come.

        Raises:
            RuntimeError: Nothing was requested.
        """
        if self._answer is None:
            raise RuntimeError("a fetch was used before it was requested; please report this")
        return self._answer

    def request(self, fetcher: Fetcher) -> None:
        """Ask for the bytes."""
        store, path = self.locator.place(self.object)
        self._answer = fetcher.submit(
            store,
            path,
            ByteRange(self.start, self.start + self.size),
            etag=self.locator.etag(self.object),
            deadline=self.deadline,
        )

    def cutter(self) -> Cutter:
        """Wait for the bytes, and give what cuts them.

        Raises:
            StorageError: They could not be read.
            IndexMismatchError: The index asked for them, and they do not exist.
        """
        if self._cutter is None:
            self._cutter = self._split()
        return self._cutter

    @property
    def held(self) -> int:
        """Bytes that it takes, or will when they are here."""
        if self._answer is None or not self.users:
            return 0
        if self._sizes is None:
            return self.size
        return sum(self._sizes) - sum(self._sizes[number] for number in self._left or ())

    def leave(self, number: int) -> int:
        """A range is consumed; returns how many bytes less the fetch takes."""
        self.users -= 1
        if self._left is not None:
            self._left.append(number)
            if self._sizes is not None:
                return self._sizes[number]
        return 0 if self.users else self.size

    def may_be_taken_apart(self) -> None:
        """Remember which ranges are consumed, from now on."""
        self._left = []

    def take_apart(self) -> int:
        """Give each sample bytes of its own where the fetch has arrived; returns how many bytes less it takes.

        An error stays where it is, for whoever wants the first sample.
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
        self._answer = _GIVEN
        self._sizes = (self.stops - self.starts).tolist()
        return before - self.held

    def drop(self) -> int:
        """Forget the fetch, and take the request back if it has not begun; returns the bytes that it took."""
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
                "the dataset lists a shard that is not there",
                where=error.where,
                hint="Put it back, or run `energon-stream prepare` again.",
            ) from error
        self.locator.observe(self.object, body.etag)
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
    """A sample to come.

    Attributes:
        leaf: Number of its locator.
        sample: Its number there.
        fetch: RangeFetch that holds its range, or the first of several.
        number: Number of the range within the fetch.
        more: RangeFetch and number of its further ranges.
    """

    leaf: int
    sample: int
    fetch: RangeFetch
    number: int
    more: tuple[tuple[RangeFetch, int], ...] = ()

    def cut(self, locator: Locator) -> RawSample | None:
        """Wait for the bytes, and cut the sample out of them.

        Returns:
            The sample; None when it is excluded.

        Raises:
            StorageError: They could not be read.
            IndexMismatchError: They are not the sample.
        """
        if locator.width == 1:
            return self.fetch.cutter().cut(self.sample, self.number)
        ranges = ((self.fetch, self.number), *self.more)
        found = [(fetch.object, fetch.cutter().cut(self.sample, number)) for fetch, number in ranges]
        return locator.merge(self.sample, found)


_planned: Callable[[tuple[Any, ...]], PlannedSample] = partial(tuple.__new__, PlannedSample)  # there are many


def plan_range_fetches(
    locators: Sequence[Locator],
    window: Window,
    must: int,
    may: int,
    max_gap: int,
    max_bytes: int,
    deadline: int,
) -> tuple[list[RangeFetch], list[PlannedSample]]:
    """Plan requests for the next ``must`` ranges of a window, which forgets them.

    Ranges of the ``may`` after them that lie between two of these are served too; they get their fetch now, and
    their turn later.

    Args:
        locators: Locators by leaf number.
        window: Located ranges.
        must: Ranges to serve, at the window's head; they hold whole references.
        may: Ranges after these that may be served as well.
        max_gap: Unwanted bytes between two ranges that are read rather than split a request.
        max_bytes: Largest fetch, but for a single larger range.
        deadline: What the fetcher is told for the first range; it counts on from there.

    Returns:
        The fetches, the most urgent first, and the samples in their order.
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
            deadline + int(free[rows[0]]),  # rows are in order: the first is the most urgent
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
    """Samples of the ranges in columns; each has those from its head to the next one's."""
    if len(heads) == len(fetches):
        columns = zip(leaves, indices, fetches, numbers, itertools.repeat(()), strict=False)
        return list(map(_planned, columns))
    ranges = list(zip(fetches, numbers, strict=True))
    return [
        PlannedSample(leaf, index, *ranges[head], tuple(ranges[head + 1 : end]))
        for leaf, index, head, end in zip(leaves, indices, heads, [*heads[1:], len(ranges)], strict=True)
    ]
