"""Bytes of files that are read by range: pieces at hand or on their way, and merged requests for them."""

from __future__ import annotations

import threading
import weakref
from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from energon_stream.fork import PerProcess
from energon_stream.storage import Body, ByteRange, Store, plan_fetches, shared_fetcher

_MAX_GAP = 64 << 10
_MAX_FETCH = 32 << 20


@dataclass(eq=False, slots=True, weakref_slot=True)
class _Fetch:
    """A request for bytes of an object, from ``start`` on."""

    start: int
    answer: Future[Body]


@dataclass(order=True, slots=True)
class HeldRange:
    """Bytes of a file, at hand or requested; they live as long as a piece of their request does."""

    start: int  # first byte in the file
    stop: int
    _bytes: memoryview | _Fetch = field(compare=False, repr=False)
    _first: int = field(compare=False, default=0)  # place of the piece in the object of a request

    def data(self) -> memoryview:
        """Return the bytes; wait for them if they are requested. Raises the store's errors."""
        if isinstance(self._bytes, _Fetch):
            begin = self._first - self._bytes.start
            return self._bytes.answer.result().data[begin : begin + self.stop - self.start]
        return self._bytes

    @property
    def body(self) -> Body | None:
        """The answer that has the bytes, once it arrives; None for bytes that were at hand."""
        return self._bytes.answer.result() if isinstance(self._bytes, _Fetch) else None


class HeldRanges:
    """HeldRanges of one file, in order of their place.

    Example:
        >>> pieces = HeldRanges([HeldRange(2, 4, memoryview(b"cd"))])
        >>> bytes(pieces.at(3)), pieces.at(4)
        (b'd', None)
        >>> pieces.missing(ByteRange(0, 9))
        [ByteRange(start=0, stop=2), ByteRange(start=4, stop=9)]
    """

    def __init__(self, pieces: Iterable[HeldRange] = ()) -> None:
        self._all = sorted(pieces)

    def add(self, start: int, data: memoryview) -> None:
        """Add bytes that are at hand."""
        insort(self._all, HeldRange(start, start + len(data), data))

    def at(self, position: int) -> memoryview | None:
        """Return the bytes from a position on, as far as one piece has them; None if none has the first."""
        piece = self._piece(position)
        return None if piece is None else piece.data()[position - piece.start :]

    def missing(self, wanted: ByteRange) -> list[ByteRange]:
        """Return the parts of a range that no piece has."""
        found, position = [], wanted.start
        while position < wanted.stop:
            piece = self._piece(position)
            if piece is not None:
                position = piece.stop
                continue
            number = self._after(position)
            stop = min(self._all[number].start if number < len(self._all) else wanted.stop, wanted.stop)
            found.append(ByteRange(position, stop))
            position = stop
        return found

    def touching(self, ranges: Sequence[ByteRange]) -> list[HeldRange]:
        """Return the pieces that have bytes of a range."""
        ends = [(wanted.start, wanted.stop) for wanted in ranges]
        return [p for p in self._all if any(p.start < stop and start < p.stop for start, stop in ends)]

    def __iter__(self) -> Iterator[HeldRange]:
        return iter(self._all)

    def _after(self, position: int) -> int:
        return bisect_right(self._all, position, key=lambda piece: piece.start)

    def _piece(self, position: int) -> HeldRange | None:
        number = self._after(position) - 1
        return self._all[number] if number >= 0 and position < self._all[number].stop else None


@dataclass(frozen=True, slots=True)
class FileRanges:
    """Ranges of a file that are to be fetched: ``start`` and ``size`` are the file's place in its object."""

    store: Store
    path: str
    start: int
    size: int
    etag: str | None
    ranges: Sequence[ByteRange]  # places in the file


class Allowance:
    """Bytes that requests made ahead may hold in a process. It counts a request until its bytes are freed."""

    def __init__(self, most: int) -> None:
        self._lock = threading.Lock()
        self.left: int = most

    def take(self, size: int) -> bool:
        """Take bytes; return False if too few are left."""
        with self._lock:
            if size > self.left:
                return False
            self.left -= size
            return True


def request_ranges(files: Sequence[FileRanges], allowance: Allowance) -> list[list[HeldRange]]:
    """Request ranges of several files: close ones together, those of the first files first.

    Files of one object, such as parts in a tar, share requests. Ranges beyond the allowance are left out.
    Return the ranges of each file that are on their way.
    """
    wanted = [(number, found) for number, file in enumerate(files) for found in file.ranges if len(found)]
    pieces: list[list[HeldRange]] = [[] for _ in files]
    if not wanted:
        return pieces
    names: dict[tuple[int, str, str | None], int] = {}
    objects = [names.setdefault((id(f.store), f.path, f.etag), len(names)) for f in files]
    starts = [files[number].start + found.start for number, found in wanted]
    plan = plan_fetches(
        np.array([objects[number] for number, _ in wanted]),
        np.array(starts),
        np.array([files[number].start + found.stop for number, found in wanted]),
        np.ones(len(wanted), bool),
        max_gap=_MAX_GAP,
        max_bytes=_MAX_FETCH,
    )
    users: dict[int, list[int]] = {}  # numbers of the files of each fetch, in order of need
    for (number, _), fetch in zip(wanted, plan.fetch_of.tolist(), strict=True):
        if number not in users.setdefault(fetch, []):
            users[fetch].append(number)
    fetcher = shared_fetcher()
    for fetch, numbers in users.items():
        file, whole = files[numbers[0]], ByteRange(int(plan.starts[fetch]), int(plan.stops[fetch]))
        if not allowance.take(len(whole)):
            continue
        answer = fetcher.submit(file.store, file.path, whole, etag=file.etag, deadline=numbers[0])
        request = _Fetch(whole.start, answer)
        weakref.finalize(request, allowance.take, -len(whole)).atexit = False  # gives them back
        for number in numbers:
            begin = files[number].start
            first, stop = max(whole.start, begin), min(whole.stop, begin + files[number].size)
            pieces[number].append(HeldRange(first - begin, stop - begin, request, first))
    return pieces


_ahead: PerProcess[Allowance] = PerProcess(lambda: Allowance(256 << 20))


def shared_allowance() -> Allowance:
    """Return what all look-ahead at clips may hold in this process: 256 MiB."""
    return _ahead.get()
