"""Reads a long range of an object in order, in pieces, within bounded memory."""

from __future__ import annotations

import io
from collections.abc import Callable, Generator
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

from energon_stream.read.read_options import CONNECTION_BYTES, ReadOptions
from energon_stream.storage import ByteRange, Fetcher
from energon_stream.storage.in_order import in_order

if TYPE_CHECKING:
    from energon_stream.index.objects import ShardObject

_PIECES = 16  # most requests in flight


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
    # From 2 MiB on, latency is no longer most of a request's time. Only short memory makes pieces smaller.
    size = min(max(room // _PIECES, min(2 << 20, room // 4), 64 << 10), options.max_request)
    return PieceSizes(size, max(1, min(room // (size + CONNECTION_BYTES), _PIECES, options.max_in_flight)))


class RangeStream:
    """A range of an object, read from first to last byte. Requests begin with the first read."""

    def __init__(
        self, shard: ShardObject, byte_range: ByteRange, pieces: PieceSizes, fetcher: Fetcher
    ) -> None:
        self.start: int = byte_range.start
        self.stop: int = byte_range.stop
        # Called with all bytes in order, skipped ones included.
        self.watch: Callable[[memoryview], object] | None = None
        self._pieces = _read_pieces(shard, byte_range, pieces, fetcher)
        self._position = self.start
        self._piece = memoryview(b"")

    def seek(self, offset: int) -> None:
        """Skip to ``offset``, which must not lie before the current position."""
        while self._position < min(offset, self.stop):
            self._next(offset - self._position)

    def read(self, length: int) -> bytes:
        """Return the next ``length`` bytes, or fewer at the end of the range, in a new object."""
        length = min(length, self.stop - self._position)
        # It fills the bytes object that it returns. The pages come from calloc, so memory is used only as far
        # as they are filled.
        built = io.BytesIO(bytes(length))
        while built.tell() < length:
            built.write(self._next(length - built.tell()))
        return built.getvalue()

    def close(self) -> None:
        self._pieces.close()
        self._piece = memoryview(b"")

    def _next(self, most: int) -> memoryview:
        """Return at most ``most`` of the next bytes. Copy them before the next call."""
        if not self._piece:
            self._piece = next(self._pieces)
        piece, self._piece = self._piece[:most], self._piece[most:]
        self._position += len(piece)
        if self.watch is not None:
            self.watch(piece)
        return piece


def _read_pieces(
    shard: ShardObject, whole: ByteRange, pieces: PieceSizes, fetcher: Fetcher
) -> Generator[memoryview, None, None]:
    """Yield the pieces of a range in order, and request as many of them as may be in flight."""
    starts = range(whole.start, whole.stop, pieces.size)
    requests = (
        shard.submit(fetcher, ByteRange(start, min(start + pieces.size, whole.stop))) for start in starts
    )
    with closing(in_order(requests, pieces.ahead)) as bodies:
        for body in bodies:
            shard.observe(body.etag)
            yield body.data
