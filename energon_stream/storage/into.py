"""Byte ranges read to where they are wanted, for stores that can do without a buffer of their own."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from energon_stream.storage.base import Body, ByteRange, Store

__all__ = ["get_into"]


@runtime_checkable
class _IntoStore(Protocol):
    """A store with a way of its own."""

    def get_into(
        self, path: str, byte_range: ByteRange, into: memoryview, *, etag: str | None = None
    ) -> Body:
        """See :func:`get_into`."""


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
    if isinstance(store, _IntoStore):
        return store.get_into(path, byte_range, into, etag=etag)
    body = store.get_range(path, byte_range, etag=etag)
    into[:] = body.data
    return Body(into, body.etag, body.total_size)
