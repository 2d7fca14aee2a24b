"""Byte ranges that a store has in memory, so that they need neither a thread nor a slot."""

from __future__ import annotations

from collections.abc import Callable

from energon_stream.storage.base import Body, ByteRange, Store

__all__ = ["get_at_hand"]


def get_at_hand(store: Store, path: str, byte_range: ByteRange, *, etag: str | None = None) -> Body | None:
    """Read a byte range if that waits for nothing; see ``Store.get_range``.

    A store that may have bytes in memory has a method of this name, without the first argument.

    Returns:
        The body; None where it has to be read the usual way, which also tells of errors.
    """
    # Not a protocol that is checked at runtime: that takes 30 us, on every read.
    method: Callable[..., Body | None] | None = getattr(store, "get_at_hand", None)
    return None if method is None else method(path, byte_range, etag=etag)
