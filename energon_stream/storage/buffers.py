"""Memory of answers: byte strings without needless copies, and the C library's arenas."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import io
import os


def as_bytes(data: bytes | memoryview) -> bytes:
    """Return the content of a view as ``bytes`` that keep no other memory alive: a copy, or the ``bytes``
    object that the view shows all of.
    """
    if isinstance(data, bytes):
        return data
    whole = data.obj
    if type(whole) is bytes and data.nbytes == len(whole) and data.c_contiguous:
        return whole
    return data.tobytes()


class BytesBuilder:
    """A ``bytes`` object that is filled piece by piece, without a copy at the end.

    ``io.BytesIO`` owns the object meanwhile, and returns it without a copy if it is filled exactly and no
    view of it is left. Its pages come from ``calloc``, so memory is used only as far as it was filled.

    Use it in a ``with`` statement, which releases the view if an error comes between: a ``BytesIO`` that is
    finalized while a view of it lives reports an ignored exception since Python 3.13.
    """

    def __init__(self, size: int) -> None:
        self._buffer = io.BytesIO(bytes(size))
        self._view = self._buffer.getbuffer()

    def __enter__(self) -> BytesBuilder:
        return self

    def __exit__(self, *error: object) -> None:
        self._view.release()

    def write(self, at: int, data: bytes | memoryview) -> None:
        """Copy ``data`` to the bytes from ``at``; several threads may write pieces that do not overlap."""
        self._view[at : at + len(data)] = data

    def finish(self) -> bytes:
        """Return the object; nothing can be written after."""
        self._view.release()
        return self._buffer.getvalue()


_M_ARENA_MAX = -8  # glibc's malloc.h
_ARENAS = 2


@functools.cache
def share_arenas() -> None:
    """Let all threads of this process share two of glibc's arenas, unless the user has set their number.

    Call this before the threads start: arenas that exist remain. On other systems it does nothing.

    By default, glibc makes one arena per thread, up to eight per core. Each keeps up to twice the largest
    block that was freed from it, which another thread's next block cannot use. With 64 threads that read
    blocks of some MB, that was 75 to 110 MiB beside a budget of 256 MiB, and more on more cores. Sharing
    reuses this memory, and saves a third of the page faults.
    """
    if "MALLOC_ARENA_MAX" in os.environ or "arena_max" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    with contextlib.suppress(AttributeError, OSError, TypeError):  # a C library without mallopt
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS)
