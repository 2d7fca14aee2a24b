"""A file within an object of a store, of which only the bytes that are needed are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from energon_stream.errors import MissingFileError, ObjectChangedError, ObjectNotFoundError, RangeError
from energon_stream.fork import PerProcess
from energon_stream.media.file_layout import FileLayout, header_range
from energon_stream.media.file_ranges import Allowance, FileRanges, HeldRange, HeldRanges, request_ranges
from energon_stream.media.openings import Opening, forget_opening, keep_opening, kept_opening
from energon_stream.media.seekable import SeekableFile
from energon_stream.storage import ByteRange, Store, StoreSpec, shared_fetcher
from energon_stream.urls import is_local

_HEAD_BYTES = 64 << 10
_LARGEST_STEP = 4 << 20  # bytes of one request where a file is read from begin to end
_MAX_AHEAD = 128 << 20  # bytes that are fetched for one call; the rest is read on the way

_STORES: PerProcess[Store] = PerProcess()


def open_once(spec: StoreSpec) -> Store:
    """Return the store of a specification, opened at the first call in this process.

    A local one is opened anew: its path may be relative, and the working directory may change.
    """
    return spec.open() if is_local(spec.url) else _STORES.map(spec, spec.open)


@dataclass(frozen=True, slots=True)
class FilePlace:
    """Place of a file: ``size`` bytes from ``start`` of the object at ``path``. A picklable value."""

    spec: StoreSpec
    path: str
    start: int = 0
    size: int | None = None  # None for an object of its own, from ``start`` to the end


class RangedFile(SeekableFile):
    """A seekable file that reads its bytes from a store by range.

    What a reader needs to open the file (its header and index) is kept in the process and on this node, so
    that the next one who opens it asks the store for nothing. Other bytes are fetched ahead by
    :meth:`prefetch`, and forgotten with the next call; reads outside of them work, with a request each.

    A pickled copy has the place alone. Use one file in one thread at a time. ``layout`` returns what the
    dataset's index says of the file, and is called if its header is not kept. Reading raises MissingFileError
    if there is no such object, and ObjectChangedError if it was replaced since this file was first read.
    """

    _opening: HeldRanges  # bytes that opening the file reads
    _ahead: HeldRanges  # bytes that were fetched for clips
    _last: HeldRanges  # bytes that were read last
    _size: int | None
    _etag: str | None
    _is_opened: bool
    _is_kept: bool

    def __init__(self, place: FilePlace, layout: Callable[[], FileLayout | None] | None = None) -> None:
        super().__init__()
        self.place = place
        self._find_layout = layout
        self._restart(kept_opening(place.spec.url, place.path, place.start))

    def __reduce__(self) -> tuple[type[RangedFile], tuple[FilePlace]]:
        return RangedFile, (self.place,)

    @property
    def name(self) -> str:
        """Path of the object, for messages."""
        return self.place.path

    @property
    def is_local(self) -> bool:
        """True if reading ahead gains nothing."""
        return open_once(self.place.spec).is_local

    @property
    def size(self) -> int:
        """Number of bytes. The first use may need a request."""
        self._open()
        if self._size is None:
            self._read_head()
        return self._size or 0

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
        """Fetch ranges of the file, close ones together, and forget others that were fetched before.

        What was read until now is kept as what opening the file needs. Returns False if the object was
        replaced since that was kept: it is forgotten, so open the file again.
        """
        was_kept = self._is_kept
        wanted = self.unfetched(ranges)
        self._ahead = HeldRanges([*self._ahead, *request_ranges([wanted], Allowance(_MAX_AHEAD))[0]])
        return self._arrived(was_kept)

    def unfetched(self, ranges: Iterable[ByteRange]) -> FileRanges:
        """Return which ranges are to be fetched, and forget bytes of others; see :meth:`prefetch`."""
        self._keep_opening()
        within = [self._within(found) for found in ranges]
        self._ahead = HeldRanges(self._ahead.touching(within))
        missing = [part for found in within for part in self._opening.missing(found)]
        return self._ranges(part for found in missing for part in self._ahead.missing(found))

    def expect(self, pieces: Sequence[HeldRange]) -> None:
        """Take pieces that were requested for this file, for a later :meth:`prefetch`."""
        self._ahead = HeldRanges([*self._ahead, *pieces])

    def wait(self) -> bool:
        """Wait for all bytes that were requested; see :meth:`prefetch`."""
        return self._arrived(self._is_kept)

    def open_as_kept(self) -> None:
        """Use the header that another file of this place has kept since this one was made."""
        if not self._is_opened:
            self._restart(kept_opening(self.place.spec.url, self.place.path, self.place.start))

    def _arrived(self, was_kept: bool) -> bool:
        """Wait for all bytes. Return False if the object was replaced since what was kept."""
        try:
            for piece in self._ahead:
                body = piece.body
                if body is not None:
                    self._etag = self._etag or body.etag
                    is_other_size = self.place.size is None and body.total_size not in (None, self._size)
                    if is_other_size or body.etag not in (None, self._etag):
                        raise ObjectChangedError("the file was replaced", where=self.name)
        except (ObjectChangedError, RangeError):
            forget_opening(self.place.spec.url, self.place.path, self.place.start)
            if not was_kept:
                raise
            self._find_layout = None
            self._restart(None)
            return False
        except ObjectNotFoundError as error:
            raise _missing(error) from error
        return True

    def _open(self) -> None:
        """Fetch what opening needs, as the index says, at the first use of a file that is not kept."""
        if self._is_opened:
            return
        self._is_opened = True
        layout = None if self._find_layout is None or self.is_local else self._find_layout()
        if layout is None:
            return
        self._size = self._size or layout.size
        header = self._ranges(map(self._within, layout.ranges))
        self._ahead = HeldRanges(request_ranges([header], Allowance(_MAX_AHEAD))[0])
        if self._arrived(was_kept=True):
            for piece in self._ahead:
                self._opening.add(piece.start, piece.data())
        self._ahead = HeldRanges()

    def _ranges(self, ranges: Iterable[ByteRange]) -> FileRanges:
        place = self.place
        return FileRanges(open_once(place.spec), place.path, place.start, self.size, self._etag, list(ranges))

    def _within(self, wanted: ByteRange) -> ByteRange:
        stop = min(wanted.stop, self.size)
        return ByteRange(min(max(wanted.start, 0), stop), stop)

    def _restart(self, opening: Opening | None) -> None:
        self._opening, self._ahead, self._last = HeldRanges(), HeldRanges(), HeldRanges()
        self._size, self._etag = self.place.size, None
        self._is_opened = self._is_kept = opening is not None
        self._step, self._step_stop = _HEAD_BYTES, -1
        if opening is not None:
            self._size, self._etag = opening.size, opening.etag
            for start, data in opening.pieces:
                self._opening.add(start, memoryview(data))

    def _keep_opening(self) -> None:
        if self._is_kept or self.is_local:
            return
        pieces = tuple((piece.start, bytes(piece.data())) for piece in self._opening)
        opening = Opening(self.size, self._etag, pieces)
        keep_opening(self.place.spec.url, self.place.path, self.place.start, opening)
        self._is_kept = True

    def _at_hand(self) -> memoryview | None:
        found = (pieces.at(self._position) for pieces in (self._ahead, self._opening, self._last))
        return next((data for data in found if data is not None), None)

    def _read_on(self, size: int) -> memoryview:
        """Read unannounced bytes, more at a time if they follow each other."""
        self._step = min(2 * self._step, _LARGEST_STEP) if self._position == self._step_stop else _HEAD_BYTES
        stop = self._position + max(self._step, size)
        head = self._opening.at(0)
        header = None if head is None or self._is_kept else header_range(head, self.size)
        if header is not None and header.start <= self._position < header.stop:
            stop = max(stop, header.stop)
        wanted = ByteRange(self._position, min(stop, self.size))
        for pieces in (self._opening, self._ahead):
            wanted = pieces.missing(wanted)[0]  # up to the next bytes at hand
        data = self._fetch(wanted)
        self._step_stop = wanted.stop
        if self._is_kept:
            self._last = HeldRanges()
        (self._last if self._is_kept else self._opening).add(wanted.start, data)
        return data

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

    def _fetch(self, wanted: ByteRange) -> memoryview:
        store, start = open_once(self.place.spec), self.place.start
        within = ByteRange(start + wanted.start, start + wanted.stop)
        try:
            body = shared_fetcher().submit(store, self.place.path, within, etag=self._etag).result()
        except ObjectNotFoundError as error:
            raise _missing(error) from error
        self._etag = self._etag or body.etag
        return body.data


def _missing(error: ObjectNotFoundError) -> MissingFileError:
    return MissingFileError(error.what, where=error.where, hint="check the name that the sample refers to")
