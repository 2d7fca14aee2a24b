"""Reads a long range of an object in order, in pieces, within bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from energon_stream.read.options import CONNECTION_BYTES, ReadOptions
from energon_stream.storage import Body, ByteRange, Fetcher
from energon_stream.storage.buffers import BytesBuilder

if TYPE_CHECKING:
    from concurrent.futures import Future

    from energon_stream.read.objects import ShardObject

_PIECES = 16
"""Largest number of requests in flight."""
_GOOD_PIECE = 2 << 20
"""Size from which latency is no longer most of a request's time. Only short memory makes pieces smaller."""
_MIN_PIECE = 64 << 10


class PieceSizes(NamedTuple):
    """Size and number of the pieces of a range."""

    size: int  # bytes of a request
    ahead: int  # largest number of pieces that are requested and not yet copied


def piece_sizes(sample: int, options: ReadOptions) -> PieceSizes:
    """Choose pieces for a sample.

    With their connections, they take a sixteenth of the budget or the sample, whichever is larger, and half
    of the budget that the sample leaves.
    """
    room = max(options.byte_budget, sample) // 16 + max(options.byte_budget - sample, 0) // 2
    size = max(room // _PIECES, min(_GOOD_PIECE, room // 4), _MIN_PIECE)
    size = min(size, options.max_request)
    return PieceSizes(size, max(1, min(room // (size + CONNECTION_BYTES), _PIECES, options.max_in_flight)))


class RangeStream:
    """A range of an object, read from first to last byte. Requests begin with the first read.

    A thread of the fetcher may read it: if a piece's request has not begun when the piece is needed, the
    reading thread fetches it itself, so no thread waits for a waiting one.

    Attributes:
        start: First byte.
        stop: One past the last byte.
        watch: Called with all bytes in order, also those that are skipped; None for nothing.
    """

    def __init__(
        self, shard: ShardObject, byte_range: ByteRange, *, pieces: PieceSizes, fetcher: Fetcher
    ) -> None:
        self.start = byte_range.start
        self.stop = byte_range.stop
        self.watch: Callable[[memoryview], object] | None = None
        self._shard, self._fetcher = shard, fetcher
        self._pieces = pieces
        self._requested = self._position = self.start
        self._waiting: deque[tuple[ByteRange, Future[Body]]] = deque()
        self._piece = memoryview(b"")

    def seek(self, offset: int) -> None:
        """Skip to ``offset``, which must not lie before the current position."""
        while self._position < min(offset, self.stop):
            self._next(offset - self._position)

    def read(self, length: int) -> bytes:
        """Return the next ``length`` bytes, or fewer at the end of the range, in a new object."""
        length = min(length, self.stop - self._position)
        with BytesBuilder(length) as built:
            done = 0
            while done < length:
                piece = self._next(length - done)
                built.write(done, piece)
                done += len(piece)
            return built.finish()

    def close(self) -> None:
        """Cancel queued requests and release received bytes."""
        for _, future in self._waiting:
            future.cancel()
        self._waiting.clear()
        self._piece = memoryview(b"")
        self._requested = self.stop

    def _next(self, most: int) -> memoryview:
        """Return at most ``most`` of the next bytes. Copy them before the next call."""
        if not self._piece:
            self._piece = self._take()
        piece, self._piece = self._piece[:most], self._piece[most:]
        self._position += len(piece)
        if self.watch is not None:
            self.watch(piece)
        return piece

    def _take(self) -> memoryview:
        self._request()
        piece, future = self._waiting.popleft()
        body = self._fetch(piece) if future.cancel() else future.result()
        self._shard.observe(body.etag)
        return body.data

    def _request(self) -> None:
        """Request as many pieces as may be in flight."""
        while self._requested < self.stop and len(self._waiting) < self._pieces.ahead:
            stop = min(self._requested + self._pieces.size, self.stop)
            piece = ByteRange(self._requested, stop)
            shard = self._shard
            future = self._fetcher.submit(shard.store, shard.path, piece, etag=shard.etag)
            self._waiting.append((piece, future))
            self._requested = stop

    def _fetch(self, piece: ByteRange) -> Body:
        return self._shard.store.get_range(self._shard.path, piece, etag=self._shard.etag)
