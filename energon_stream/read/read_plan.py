"""A plan as a value: requests with their reasons, and the samples that they hold. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain, repeat, starmap
from typing import NamedTuple, TypeAlias

import numpy as np

from energon_stream.arrays import Int64Array
from energon_stream.drawing import brief
from energon_stream.storage import ByteRange

Window: TypeAlias = tuple[int, int]
"""Numbers of a pass, and of a window of planned packs in it."""


class Reason(Enum):
    """Why a request ends where it does, and is not larger."""

    FIRST_BATCH = "it has the first samples, which nothing may delay"
    MAX_REQUEST = "the next range would make it larger than max_request"
    SHARED_LIMIT = "the next range would make it larger than a reader may request beside others"
    GENERATION_END = "its neighbour belongs to a later generation"
    WASTE = "reading on to the next sample of a view would read more unwanted bytes than max_waste allows"
    GAP = "no wanted range follows within max_gap bytes"
    PARTS = "the bytes after it are parts that are not wanted"
    LARGE = "the sample is read alone, in pieces"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Request:
    """One range request, and the wanted ranges in it."""

    number: int  # in the plan of its reader
    leaf: int
    object: int  # number of the leaf's object
    start: int  # first byte
    size: int
    starts: Int64Array  # first byte of each range
    stops: Int64Array  # one past the last byte of each
    samples: Int64Array  # sample that each range belongs to
    deadline: int  # number of ranges that the reader consumes before the first one of these
    reason: Reason

    @property
    def range(self) -> ByteRange:
        return ByteRange(self.start, self.start + self.size)

    def __repr__(self) -> str:
        place = {"leaf": self.leaf, "object": self.object, "start": self.start, "size": self.size}
        why = {"deadline": self.deadline, "reason": self.reason.name}
        return brief(self, number=self.number, **place, ranges=len(self.starts), **why)


class PlannedSample(NamedTuple):
    """A sample, and the requests that hold it."""

    leaf: int
    sample: int  # number within the leaf
    request: int  # that holds the sample's first range
    place: int  # number of this range within the request
    more: tuple[tuple[int, int], ...] = ()  # request and place of further ranges


Row: TypeAlias = tuple[int, int, int, int, tuple[tuple[int, int], ...]]
"""The fields of a :class:`PlannedSample`."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PlannedSamples:
    """Planned samples in columns. No object is made for a sample before it is consumed."""

    leaves: list[int]
    samples: list[int]
    requests: list[int]
    places: list[int]
    more: list[tuple[tuple[int, int], ...]] | None = None  # None if each sample has one range

    def rows(self) -> Iterator[Row]:
        more = repeat(()) if self.more is None else self.more
        return zip(self.leaves, self.samples, self.requests, self.places, more)  # noqa: B905 # repeat never ends

    def __iter__(self) -> Iterator[PlannedSample]:
        return starmap(PlannedSample, self.rows())

    def __len__(self) -> int:
        return len(self.samples)

    def __repr__(self) -> str:
        return brief(self, samples=len(self))


class LargeSample(NamedTuple):
    """A sample that is read alone, in pieces, when all samples before it are consumed."""

    leaf: int
    sample: int
    ranges: tuple[tuple[int, int, int], ...]  # object, first byte, and one past the last byte of each range


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ReadPlan:
    """One generation: its requests, most urgent first, and its samples, in order."""

    generation: int
    requests: tuple[Request, ...]
    samples: PlannedSamples | tuple[LargeSample, ...]
    ranges: int  # number of ranges of the samples
    bytes: int  # bytes of these ranges
    first_range: int  # number of ranges of earlier plans
    # By number of an earlier request, whose answer is kept: places of the ranges that it serves once more.
    reused: dict[int, list[int]] = field(default_factory=dict)
    keeps: bool = False  # whether answers are kept after their last sample is consumed

    def __repr__(self) -> str:
        sizes = {"samples": len(self.samples), "ranges": self.ranges, "bytes": self.bytes}
        return brief(self, generation=self.generation, requests=len(self.requests), **sizes)

    @property
    def sample_of_range(self) -> Int64Array:
        """Number of the sample, within the plan, that each range belongs to."""
        counts = [
            len(each.ranges) if isinstance(each, LargeSample) else 1 + len(each.more) for each in self.samples
        ]
        return np.repeat(np.arange(len(counts)), counts)


class ReadySamples:
    """Planned samples that are not consumed yet, in order. The row of a sample is made when it is taken."""

    __slots__ = ("_peeked", "_plans", "_rows", "ends_large", "left")

    def __init__(self) -> None:
        self._plans: deque[Iterator[Row | LargeSample]] = deque()
        self._rows = chain.from_iterable(iter(self._plans.popleft, None))
        self._peeked: Row | LargeSample | None = None
        self.left: int = 0
        self.ends_large: bool = False  # whether the last sample is read alone

    def add(self, samples: PlannedSamples | tuple[LargeSample, ...]) -> None:
        self.ends_large = isinstance(samples, tuple)
        self._plans.append(iter(samples) if isinstance(samples, tuple) else samples.rows())
        self.left += len(samples)

    def pop(self) -> Row | LargeSample:
        """Remove and return the next sample. There must be one."""
        self.left -= 1
        if self._peeked is not None:
            row, self._peeked = self._peeked, None
            return row
        return next(self._rows)

    def requests(self) -> list[int]:
        """Return the numbers of the next sample's requests; none if it is read alone, or missing."""
        if self._peeked is None and self.left:
            self._peeked = next(self._rows)
        row = self._peeked
        return [] if row is None or isinstance(row, LargeSample) else [row[2], *(each for each, _ in row[4])]
