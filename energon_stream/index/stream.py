"""Reading a large object from its first to its last byte, in pieces and ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future

from energon_stream.storage import Body, ByteRange, Store, shared_fetcher

__all__ = ["stream_object"]

_PIECE = 8 << 20
_AHEAD = 8


def stream_object(store: Store, path: str) -> Iterator[memoryview]:
    """Read an object in pieces, all of one version; some are requested ahead.

    Args:
        store: Where it lies.
        path: Its path.

    Raises:
        ObjectNotFoundError: There is no such object.
        ObjectChangedError: It was replaced meanwhile.
    """
    meta = store.head(path)
    fetcher = shared_fetcher()
    waiting: deque[Future[Body]] = deque()
    for start in range(0, meta.size, _PIECE):
        part = ByteRange(start, min(start + _PIECE, meta.size))
        waiting.append(fetcher.submit(store, path, part, etag=meta.etag))
        if len(waiting) == (1 if store.is_local else _AHEAD):
            yield waiting.popleft().result().data
    while waiting:
        yield waiting.popleft().result().data
