"""Byte ranges read to where they are wanted, for stores that can do without a buffer of their own."""

from __future__ import annotations

from collections.abc import Callable

from energon_stream.storage.base import Body, ByteRange, Store

__all__ = ["get_into"]


def get_into(
    store: Store, path: str, byte_range: ByteRange, into: memoryview, *, etag: str | None = None
) -> Body:
    """Read a byte range to memory of the caller's; see ``Store.get_range``.

    Args:
        store: Where the object lies.
        path: Its path.
        byte_range: The range; not empty.
        into: As many bytes. What it holds after an error is undefined.
        etag: Content version that the object must have.

    Returns:
        The body; its data is ``into``.
    """
    own: Callable[..., Body] | None = getattr(store, "get_into", None)  # a protocol's isinstance takes 10 us
    if own is not None:
        return own(path, byte_range, into, etag=etag)
    body = store.get_range(path, byte_range, etag=etag)
    into[:] = body.data
    return Body(into, body.etag, body.total_size)
