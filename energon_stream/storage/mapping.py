"""Memory maps that keep no file descriptor, as Python's own do: a process may have about a thousand."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
from typing import Any

import numpy as np

from energon_stream.arrays import MappedArray


@functools.cache
def _library() -> Any:
    """Return libc; None where none is found."""
    try:
        library = ctypes.CDLL(None, use_errno=True)
        library.mmap.restype = ctypes.c_void_p
        library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    except (OSError, TypeError, AttributeError):
        return None
    return library


_FAILED = ctypes.c_void_p(-1).value


class _Map:
    """Owns mapped bytes; arrays of them keep it alive."""

    def __init__(self, address: int, size: int) -> None:
        self.__array_interface__ = {"data": (address, True), "shape": (size,), "typestr": "|u1", "version": 3}
        self._place, self._unmap = (address, size), _library().munmap

    def __del__(self) -> None:
        self._unmap(*self._place)


def map_file(descriptor: int, size: int) -> memoryview:
    """Return a read-only view of a file's first bytes; the file may be closed. Raises OSError."""
    if not size:  # nothing can be mapped
        return memoryview(b"")
    library = _library()
    if library is None:
        return memoryview(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ))
    address = library.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if address == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    array: Any = np.asarray(_Map(address, size)).view(MappedArray)
    return memoryview(array)
