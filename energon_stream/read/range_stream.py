"""The bytes of a long range in order, each of them once, with bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple

from energon_stream.read.options import CONNECTION_BYTES, ReadOptions
from energon_stream.storage import Body, ByteRange, Fetcher, Store
from energon_stream.storage.buffers import BytesBuilder

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
        self._waiting: deque[tuple[ByteRange, Future[Body]]] = deque()
        self._block = memoryview(b"")

    def seek(self, offset: int) -> None:
        """Leave out the bytes before ``offset``, which is not before those that were read."""
        while self._position < min(offset, self.stop):
            self._next(offset - self._position)

    def read(self, length: int) -> bytes:
        """The next ``length`` bytes, or those up to the end of the range, in an object of their own."""
        length = min(length, self.stop - self._position)
        with BytesBuilder(length) as built:
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
        self._block = memoryview(b"")
        self._requested = self.stop

    def _next(self, most: int) -> memoryview:
        """Some of the next bytes, ``most`` at most; to be copied before the next call."""
        if not self._block:
            self._block = self._take()
        piece, self._block = self._block[:most], self._block[most:]
        self._position += len(piece)
        return piece

    def _take(self) -> memoryview:
        self._request()
        piece, future = self._waiting.popleft()
        body = self._fetch(piece) if future.cancel() else future.result()
        self._observe(body.etag)
        return body.data

    def _request(self) -> None:
        """Request as many pieces as may be under way."""
        while self._requested < self.stop and len(self._waiting) < self._pieces.ahead:
            stop = min(self._requested + self._pieces.size, self.stop)
            piece = ByteRange(self._requested, stop)
            future = self._fetcher.call(partial(self._fetch, piece), deadline=self._deadline)
            self._waiting.append((piece, future))
            self._requested = stop

    def _fetch(self, piece: ByteRange) -> Body:
        return self._store.get_range(self._path, piece, etag=self._etag())
