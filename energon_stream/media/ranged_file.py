"""A file within an object of a store, of which only the bytes that are needed are read."""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from energon_stream.errors import MissingFileError, ObjectChangedError, ObjectNotFoundError, RangeError
from energon_stream.media.file_layout import header_range
from energon_stream.media.openings import Opening, forget_opening, keep_opening, kept_opening
from energon_stream.storage import Body, ByteRange, Store, StoreSpec, plan_fetches, shared_fetcher
from energon_stream.storage.fork import PerProcess

_HEAD_BYTES = 64 << 10
_LARGEST_STEP = 4 << 20  # bytes of one request where a file is read from begin to end
_MAX_GAP = 64 << 10
_MAX_FETCH = 32 << 20
_MAX_AHEAD = 128 << 20  # bytes that are fetched for one call; the rest is read on the way

_STORES: PerProcess[Store] = PerProcess()


def open_once(spec: StoreSpec) -> Store:
    """Return the store of a specification, opened at the first call in this process."""
    return _STORES.map(spec, spec.open)


@dataclass(frozen=True, slots=True)
class FilePlace:
    """Place of a file: ``size`` bytes from ``start`` of the object at ``path``. A picklable value."""

    spec: StoreSpec
    path: str
    start: int = 0
    size: int | None = None  # None for an object of its own, from ``start`` to the end


@dataclass(slots=True)
class _Pieces:
    """Bytes of a file, by place; pieces do not overlap."""

    starts: list[int] = field(default_factory=list)
    data: list[memoryview] = field(default_factory=list)

    def add(self, start: int, data: memoryview) -> None:
        at = bisect_right(self.starts, start)
        self.starts.insert(at, start)
        self.data.insert(at, data)

    def at(self, position: int) -> memoryview | None:
        """Return the bytes from a position on, as far as they are at hand; None if the first is not."""
        number = bisect_right(self.starts, position) - 1
        if number < 0 or position >= self.starts[number] + len(self.data[number]):
            return None
        return self.data[number][position - self.starts[number] :]

    def missing(self, wanted: ByteRange) -> list[ByteRange]:
        """Return the parts of a range that are not at hand."""
        found, position = [], wanted.start
        while position < wanted.stop:
            data = self.at(position)
            if data is not None:
                position += len(data)
                continue
            number = bisect_right(self.starts, position)
            stop = min(self.starts[number] if number < len(self.starts) else wanted.stop, wanted.stop)
            found.append(ByteRange(position, stop))
            position = stop
        return found


class RangedFile(io.RawIOBase):
    """A seekable file that reads its bytes from a store by range.

    What a reader needs to open the file (its header and index) is kept in the process and on this node, so
    that the next one who opens it asks the store for nothing. Other bytes are fetched ahead by
    :meth:`prefetch`, and forgotten with the next call; reads outside of them work, with a request each.

    A pickled copy has the place alone. Use one file in one thread at a time.

    Args:
        place: Where the file is.

    Raises:
        MissingFileError: (On reading.) There is no such object.
        ObjectChangedError: (On reading.) The object was replaced since this file was first read.
        StorageError: (On reading.) The store did not deliver.
    """

    def __init__(self, place: FilePlace) -> None:
        super().__init__()
        self.place = place
        self._position = 0
        self._is_kept = False
        self._restart(kept_opening(place.spec.url, place.path, place.start))

    def __reduce__(self) -> tuple[type[RangedFile], tuple[FilePlace]]:
        return RangedFile, (self.place,)

    @property
    def name(self) -> str:
        """Path of the object, for messages."""
        return self.place.path

    @property
    def size(self) -> int:
        """Number of bytes. The first use may need a request."""
        if self._size is None:
            self._read_head()
        return self._size or 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position, and return it. A place before the file means its begin."""
        base = 0 if whence == io.SEEK_SET else self._position if whence == io.SEEK_CUR else self.size
        self._position = max(base + offset, 0)
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        """Return bytes from the position on: fewer than asked for where bytes at hand end."""
        if size is None or size < 0:
            return self.readall()
        left = self.size - self._position
        if size == 0 or left <= 0:
            return b""
        data = self._at_hand() or self._read_on(min(size, left))
        found = bytes(data[:size])
        self._position += len(found)
        return found

    def prefetch(self, ranges: Iterable[ByteRange]) -> bool:
        """Fetch ranges of the file, close ones together, and forget those of the call before.

        What was read until now is kept as what opening the file needs.

        Returns:
            False if the object was replaced since that was kept: it is forgotten, so open the file again.
        """
        was_kept = self._is_kept
        self._keep_opening()
        self._ahead = _Pieces()
        wanted = [part for found in ranges for part in self._opening.missing(self._within(found))]
        if not wanted:
            return True
        plan = plan_fetches(
            np.zeros(len(wanted), np.int64),
            np.array([part.start for part in wanted]),
            np.array([part.stop for part in wanted]),
            np.ones(len(wanted), bool),
            max_gap=_MAX_GAP,
            max_bytes=_MAX_FETCH,
        )
        fetches = [ByteRange(int(a), int(b)) for a, b in zip(plan.starts, plan.stops, strict=True)]
        total, chosen = 0, []
        for fetch in fetches:
            total += len(fetch)
            if total > _MAX_AHEAD:
                break
            chosen.append(fetch)
        try:
            bodies = self._fetch(chosen)
        except (ObjectChangedError, RangeError):
            forget_opening(self.place.spec.url, self.place.path, self.place.start)
            if not was_kept:
                raise
            self._restart(None)
            return False
        for fetch, body in zip(chosen, bodies, strict=True):
            self._ahead.add(fetch.start, body.data)
        return True

    def _within(self, wanted: ByteRange) -> ByteRange:
        stop = min(wanted.stop, self.size)
        return ByteRange(min(max(wanted.start, 0), stop), stop)

    def _restart(self, opening: Opening | None) -> None:
        self._opening, self._ahead = _Pieces(), _Pieces()
        self._size, self._etag = self.place.size, None
        self._is_kept = opening is not None
        self._step, self._step_stop = _HEAD_BYTES, -1
        self._last = _Pieces()
        if opening is not None:
            self._size, self._etag = opening.size, opening.etag
            for start, data in opening.pieces:
                self._opening.add(start, memoryview(data))

    def _keep_opening(self) -> None:
        if self._is_kept or open_once(self.place.spec).is_local:
            return
        pieces = tuple(
            (start, bytes(data)) for start, data in zip(self._opening.starts, self._opening.data, strict=True)
        )
        opening = Opening(self.size, self._etag, pieces)
        keep_opening(self.place.spec.url, self.place.path, self.place.start, opening)
        self._is_kept = True

    def _at_hand(self) -> memoryview | None:
        for pieces in (self._ahead, self._opening, self._last):
            data = pieces.at(self._position)
            if data is not None:
                return data
        return None

    def _read_on(self, size: int) -> memoryview:
        """Read bytes that nobody announced, more at a time if they follow each other."""
        self._step = min(2 * self._step, _LARGEST_STEP) if self._position == self._step_stop else _HEAD_BYTES
        stop = self._position + max(self._step, size)
        head = self._opening.at(0)
        header = None if head is None or self._is_kept else header_range(head, self.size)
        if header is not None and header.start <= self._position < header.stop:
            stop = max(stop, header.stop)
        wanted = ByteRange(self._position, min(stop, self.size))
        for pieces in (self._opening, self._ahead):
            wanted = pieces.missing(wanted)[0]  # up to the next bytes at hand
        (body,) = self._fetch([wanted])
        self._step_stop = wanted.stop
        if self._is_kept:
            self._last = _Pieces()
        (self._last if self._is_kept else self._opening).add(wanted.start, body.data)
        return body.data

    def _read_head(self) -> None:
        """Read the first bytes, and with them the size, of an object of its own."""
        store, path, start = open_once(self.place.spec), self.place.path, self.place.start
        try:
            body = store.get_range(path, ByteRange(start, start + _HEAD_BYTES))
            total = body.total_size if body.total_size is not None else store.head(path).size
        except RangeError:  # the object is shorter
            body = store.get(path)
            total = len(body.data)
        except ObjectNotFoundError as error:
            raise _missing(error) from error
        self._size, self._etag = total - start, body.etag
        data = body.data if len(body.data) <= _HEAD_BYTES else body.data[start:]
        self._opening.add(0, data)

    def _fetch(self, ranges: list[ByteRange]) -> list[Body]:
        store, fetcher, start = open_once(self.place.spec), shared_fetcher(), self.place.start
        requests = [
            fetcher.submit(
                store,
                self.place.path,
                ByteRange(start + wanted.start, start + wanted.stop),
                etag=self._etag,
            )
            for wanted in ranges
        ]
        try:
            bodies = [request.result() for request in requests]
        except ObjectNotFoundError as error:
            raise _missing(error) from error
        self._etag = self._etag or bodies[0].etag
        return bodies


def _missing(error: ObjectNotFoundError) -> MissingFileError:
    return MissingFileError(error.what, where=error.where, hint="check the name that the sample refers to")
