"""Many samples of one block of a tar at once: the headers of all of them are read as arrays.

The inner loop of training. What it does not understand at sight (anything but plain ustar headers, and PAX
headers that say nothing about names and sizes) it leaves to :func:`energon_stream.index.tar_format.sample_parts`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from energon_stream.index.tar_format import BLOCK, SampleParts, pax_matters, split_name
from energon_stream.rng import Int64Array

__all__ = ["split_samples"]

_Bools = npt.NDArray[np.bool_]

_HEADER = np.dtype(
    {
        "names": ["name", "size", "kind", "magic", "prefix"],
        "formats": ["S100", ("u1", 12), "S1", "S5", "u1"],
        "offsets": [0, 124, 156, 257, 345],
        "itemsize": BLOCK,
    }
)
_OCTAL = 8 ** np.arange(10, -1, -1, dtype=np.int64)
_SPACE = 0x20
_MOST_HEADERS = 64  # of a sample; more are left to the general way


class _Members(NamedTuple):
    """One header of each of several samples.

    Attributes:
        is_file: Plain files.
        is_pax: PAX headers that change nothing.
        names: Names of the plain files; None if they cannot be told.
        starts: ``int64``, first byte of each payload within the block.
        stops: ``int64``, one past the last byte.
        following: ``int64``, number of the 512 bytes where the next header begins.
    """

    is_file: _Bools
    is_pax: _Bools
    names: list[str] | None
    starts: Int64Array
    stops: Int64Array
    following: Int64Array


def split_samples(data: memoryview, starts: Int64Array, stops: Int64Array) -> list[SampleParts | None]:
    """Find the parts of many samples.

    Args:
        data: Bytes of a tar.
        starts: ``int64 [n]``, where each sample's first header begins within ``data``.
        stops: ``int64 [n]``, where the next sample's first header begins.

    Returns:
        For each sample its parts; None for one that has to be looked at one header at a time.
    """
    found: list[SampleParts | None] = [None] * len(starts)
    headers = np.frombuffer(data, _HEADER, count=len(data) // BLOCK)
    aligned = (starts % BLOCK == 0) & (stops % BLOCK == 0)
    rows = np.flatnonzero(aligned & (starts < stops) & (stops <= len(headers) * BLOCK))
    at, end = starts[rows] // BLOCK, stops[rows] // BLOCK
    alike = _split_alike(data, headers, at, end)
    for row, parts in zip(rows.tolist(), alike or _split_any(data, headers, at, end), strict=True):
        found[row] = parts
    return found


def _members(data: memoryview, headers: npt.NDArray[Any], at: Int64Array, end: Int64Array) -> _Members:
    header = headers[at]
    digits = header["size"][:, :11] - np.uint8(0x30)
    size = digits.astype(np.int64) @ _OCTAL
    following = at + 1 + (size + BLOCK - 1) // BLOCK
    last = header["size"][:, 11]
    plain = (digits < 8).all(axis=1) & ((last == 0) | (last == _SPACE))
    plain &= (header["magic"] == b"ustar") & (header["prefix"] == 0) & (following <= end)
    is_file = plain & (header["kind"] == b"0")
    is_pax = plain & (header["kind"] == b"x") & (size > 0) & (size < BLOCK)
    if is_pax.any():
        records = [data[(place + 1) * BLOCK : (place + 2) * BLOCK] for place in at[is_pax].tolist()]
        if pax_matters(b"".join(records)):
            is_pax[:] = False
    names = b"\0".join(header["name"][is_file].tolist()).decode("utf-8", "surrogateescape").split("\0")
    known = len(names) == np.count_nonzero(is_file)  # else there are bytes after the end of a name
    starts = (at + 1) * BLOCK
    return _Members(is_file, is_pax, names if known else None, starts, starts + size, following)


def _split_alike(
    data: memoryview, headers: npt.NDArray[Any], at: Int64Array, end: Int64Array
) -> list[SampleParts] | None:
    """Parts of samples that all have the same parts in the same order, as is usual; None for others."""
    keys: list[str] = []
    names: list[str] = []
    starts, stops = [], []
    for _ in range(_MOST_HEADERS):
        found = _members(data, headers, at, end)
        finished = found.following == end
        if found.is_pax.all() and not finished.any():
            at = found.following
            continue
        if not found.is_file.all() or found.names is None or finished.any() != finished.all():
            return None
        first, _, part = found.names[0].rpartition("/")[2].partition(".")
        if not keys:
            keys = [name[: -len(part) - 1] for name in found.names] if first and part else []
            if any("." in key or "__" in key for key in keys):
                return None
        if not keys or [f"{key}.{part}" for key in keys] != found.names:
            return None
        names.append(part)
        starts.append(found.starts)
        stops.append(found.stops)
        at = found.following
        if finished.all():
            places = zip(np.stack(starts, axis=1).tolist(), np.stack(stops, axis=1).tolist(), strict=True)
            return [SampleParts(key, names, *place) for key, place in zip(keys, places, strict=True)]
    return None


def _split_any(
    data: memoryview, headers: npt.NDArray[Any], at: Int64Array, end: Int64Array
) -> list[SampleParts | None]:
    """Parts of any samples, each with its own."""
    done: list[SampleParts | None] = [None] * len(at)
    parts: dict[int, SampleParts] = {}
    rows = np.arange(len(at))
    for _ in range(_MOST_HEADERS):
        if not len(rows):
            break
        found = _members(data, headers, at, end)
        go_on = found.is_file | found.is_pax
        if found.names is None:
            go_on &= ~found.is_file
        else:
            _add_members(parts, rows, found, found.names, go_on)
        finished = go_on & (found.following == end)
        for row in rows[
            finished & found.is_file
        ].tolist():  # a PAX header announces a member: it cannot be the last
            done[row] = parts[row]
        rest = go_on & ~finished
        rows, at, end = rows[rest], found.following[rest], end[rest]
    return done


def _add_members(
    parts: dict[int, SampleParts], rows: Int64Array, found: _Members, names: list[str], go_on: _Bools
) -> None:
    """Add one member to each sample; what is odd about it is struck from ``go_on``."""
    files = np.flatnonzero(found.is_file)
    columns = (array[files].tolist() for array in (rows, found.starts, found.stops))
    for place, name, row, start, stop in zip(files.tolist(), names, *columns, strict=True):
        key, part = split_name(name) or ("", "")
        known = parts.get(row)
        if not key:
            go_on[place] = False
        elif known is None:
            parts[row] = SampleParts(key, [part], [start], [stop])
        elif known.key == key:
            known.names.append(part)
            known.starts.append(start)
            known.stops.append(stop)
        else:
            go_on[place] = False
