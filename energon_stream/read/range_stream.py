"""The bytes of a long range in order, each of them once, with bounded memory."""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple

from energon_stream.read.options import CONNECTION_BYTES, ReadOptions
from energon_stream.storage import ByteRange, Fetcher, Store
from energon_stream.storage.buffers import BytesBuilder
from energon_stream.storage.into import get_into

__all__ = ["PieceSizes", "RangeStream", "piece_sizes"]

_PIECES = 16
"""Most requests in flight at one time."""
_GOOD_PIECE = 2 << 20
"""Bytes from which a request's latency is no longer most of its time; smaller only where memory is short."""
_MIN_PIECE = 64 << 10


class PieceSizes(NamedTuple):
    """How a range is requested.

    Attributes:
        size: Bytes of a request.
        ahead: Pieces that are requested and not yet copied to their place.
    """

    size: int
    ahead: int


def piece_sizes(sample: int, options: ReadOptions) -> PieceSizes:
    """Pieces that hold, with their connections, a sixteenth of the sample or the budget, and half of what it leaves.

    Args:
        sample: Bytes of the sample.
        options: Limits.
    """
    room = max(options.byte_budget, sample) // 16 + max(options.byte_budget - sample, 0) // 2
    size = max(room // _PIECES, min(_GOOD_PIECE, room // 4), _MIN_PIECE)
    size = min(size, options.max_request)
    return PieceSizes(size, max(1, min(room // (size + CONNECTION_BYTES), _PIECES, options.max_in_flight)))


class _Piece(NamedTuple):
    """A request, and which slab it fills."""

    bytes: ByteRange
    slab: int


class RangeStream:
    """A range of an object, read from first to last byte; requests begin with the first read.

    It may be read on one of the fetcher's own threads: what has not begun when it is needed is fetched by the
    reading thread itself, so nothing waits for a thread that waits.

    Args:
        store: Where the object lies.
        path: Its path.
        byte_range: The range.
        pieces: How it is requested.
        fetcher: Runs the requests.
        etag: Gives the content version that the object must have, if it is known.
        observe: Told the version of each answer; raises when it is another one.
        deadline: Rank of the requests in the fetcher's queue.
    """

    def __init__(
        self,
        store: Store,
        path: str,
        byte_range: ByteRange,
        *,
        pieces: PieceSizes,
        fetcher: Fetcher,
        etag: Callable[[], str | None],
        observe: Callable[[str | None], None],
        deadline: int = 0,
    ) -> None:
        self.start = byte_range.start
        self.stop = byte_range.stop
        self._store, self._path, self._fetcher = store, path, fetcher
        self._pieces, self._deadline = pieces, deadline
        self._etag, self._observe = etag, observe
        self._requested = self._position = self.start
        self._waiting: deque[tuple[_Piece, Future[str | None]]] = deque()
        self._slabs: list[memoryview] = []
        self._current: _Piece | None = None
        self._block = memoryview(b"")

    def seek(self, offset: int) -> None:
        """Leave out the bytes before ``offset``, which is not before those that were read."""
        while self._position < min(offset, self.stop):
            self._next(offset - self._position)

    def read(self, length: int) -> bytes:
        """The next ``length`` bytes, or those up to the end of the range, in an object of their own."""
        length = min(length, self.stop - self._position)
        built = BytesBuilder(length)
        done = 0
        while done < length:
            piece = self._next(length - done)
            built.write(done, piece)
            done += len(piece)
        return built.finish()

    def close(self) -> None:
        """Cancel what is queued and let go of what was not read."""
        for _, future in self._waiting:
            future.cancel()
        self._waiting.clear()
        self._slabs.clear()
        self._current, self._block = None, memoryview(b"")
        self._requested = self.stop

    def _next(self, most: int) -> memoryview:
        """Some of the next bytes, ``most`` at most; to be copied before the next call."""
        if not self._block:
            self._block = self._take()
        piece, self._block = self._block[:most], self._block[most:]
        self._position += len(piece)
        return piece

    def _take(self) -> memoryview:
        free = None if self._current is None else self._current.slab
        self._request(free)
        self._current, future = self._waiting.popleft()
        etag = self._fetch(self._current) if future.cancel() else future.result()
        self._observe(etag)
        return self._slabs[self._current.slab][: len(self._current.bytes)]

    def _request(self, slab: int | None) -> None:
        """Request as many pieces as there are slabs for; one is free, or new ones are made."""
        while self._requested < self.stop and len(self._waiting) < self._pieces.ahead:
            if slab is None:
                slab = len(self._slabs)
                self._slabs.append(_new_slab(self._pieces.size))
            stop = min(self._requested + self._pieces.size, self.stop)
            piece, slab = _Piece(ByteRange(self._requested, stop), slab), None
            future = self._fetcher.call(partial(self._fetch, piece), deadline=self._deadline)
            self._waiting.append((piece, future))
            self._requested = stop

    def _fetch(self, piece: _Piece) -> str | None:
        """Fill a slab. Neither call nor answer refers to it, so that nobody who keeps them keeps it."""
        into = self._slabs[piece.slab][: len(piece.bytes)]
        return get_into(self._store, self._path, piece.bytes, into, etag=self._etag()).etag


def _new_slab(size: int) -> memoryview:
    """Memory that goes back to the system with its last view; malloc's, of that size, mostly would not."""
    return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
