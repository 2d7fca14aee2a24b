"""Names for the NumPy array types of annotations, distinct values of arrays, bytes and views of bytes."""

from __future__ import annotations

from collections.abc import Mapping
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import numpy.typing as npt

Float64Array = npt.NDArray[np.float64]
Int16Array = npt.NDArray[np.int16]
Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
UInt64Array = npt.NDArray[np.uint64]


def distinct(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the distinct values, ascending. ``np.unique`` would import ``numpy.ma`` first, for 7 ms."""
    if len(values) == 1:
        return values
    ordered = np.sort(values)
    first = np.ones(len(ordered), dtype=np.bool_)
    first[1:] = ordered[1:] != ordered[:-1]
    return ordered[first]


def as_bytes(data: bytes | memoryview) -> bytes:
    """Return the content of a view as ``bytes``: a copy, unless the view shows all of such an object."""
    if isinstance(data, bytes):
        return data
    whole = data.obj
    if type(whole) is bytes and data.nbytes == len(whole) and data.c_contiguous:
        return whole
    return data.tobytes()


def python_value(scalar: Any) -> Any:
    """Return what ``as_py`` of pyarrow makes of a scalar; of times that Python's cannot hold, NumPy's.

    These are finer than a microsecond, or beyond the year 9999. One with a zone is in UTC then.
    """
    kind = type(scalar).__name__
    try:
        is_fine = (
            kind == "Time64Scalar" and scalar.is_valid and scalar.type.unit == "ns" and scalar.value % 1000
        )
        if not is_fine:  # with pandas, as_py cuts it
            return scalar.as_py()
    except (ValueError, OverflowError):
        if kind == "StructScalar":
            return {name: python_value(item) for name, item in scalar.items()}
        if kind == "MapScalar":
            return [tuple(map(python_value, pair.values())) for pair in scalar.values]
        if kind.endswith("ListScalar"):
            return [python_value(item) for item in scalar.values]
        if kind == "TimestampScalar":
            return np.datetime64(scalar.value, scalar.type.unit)
        if kind != "DurationScalar":
            raise
    return np.timedelta64(scalar.value, scalar.type.unit)


class MappedArray(np.ndarray[Any, np.dtype[np.uint8]]):
    """Bytes of a mapped file. Its views can be hashed, as those of ``bytes``."""

    __hash__ = object.__hash__  # type: ignore[assignment] # arrays have none, and their views neither


def reduce_view(view: memoryview) -> tuple[type[memoryview], tuple[bytes]]:
    """Return what pickles make of a view: a copy of plain bytes."""
    if view.format != "B" or view.ndim != 1:
        raise TypeError("cannot pickle memoryview objects")  # as pickle says
    return memoryview, (view.tobytes(),)


# What processes send each other, as the workers of torch's DataLoader: without it, such a worker hangs.
ForkingPickler.register(memoryview, reduce_view)


def as_view(data: bytes | memoryview) -> memoryview:
    """Return a read-only view that may be kept: of a mapped file, which takes no memory, or of a copy.

    What the disk cache has mapped is copied: a view would keep a file descriptor, and the space on the disk.
    """
    if isinstance(data, memoryview) and isinstance(data.obj, MappedArray):
        return data
    return memoryview(as_bytes(data))


def as_views(parts: Mapping[str, bytes | memoryview]) -> Mapping[str, bytes | memoryview]:
    """Return a sample's parts as views that may be kept; all are of mapped files if the first one is."""
    first = next(iter(parts.values()), b"")
    if isinstance(first, memoryview) and isinstance(first.obj, MappedArray):
        return parts
    return {part: as_view(data) for part, data in parts.items()}
