"""Many samples of one block of a tar at once: the headers of all of them are read as arrays.

The inner loop of training. What it does not understand at sight (anything but plain ustar headers, and PAX
headers that say nothing about names and sizes) it leaves to :func:`energon_stream.index.tar_format.sample_parts`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from energon_stream.arrays import Int64Array
from energon_stream.index.tar_format import TAR_RECORD, SampleParts, pax_matters, split_name

__all__ = ["AlikeSamples", "split_samples"]

_Bools = npt.NDArray[np.bool_]

_HEADER = np.dtype(
    {
        "names": ["name", "size", "kind", "magic", "prefix"],
        "formats": ["S100", ("u1", 12), "S1", "S5", "u1"],
        "offsets": [0, 124, 156, 257, 345],
        "itemsize": TAR_RECORD,
    }
)
_OCTAL = 8 ** np.arange(10, -1, -1, dtype=np.int64)
_ZERO, _SPACE = np.uint8(0x30), np.uint8(0x20)
_NAME, _KIND, _PREFIX = 100, 156, 345  # columns of a header
_LOOKED_AT = np.array([*range(124, 135), _KIND, *range(257, 262), _PREFIX])
_FILE, _PAX = (np.frombuffer(b"0" * 11 + kind + b"ustar\0", np.uint8) for kind in (b"0", b"x"))
_MAY_DIFFER = np.array([7] * 11 + [0] * 7, dtype=np.uint8)  # octal digits, by their lowest bits
_FEW = 24
"""Samples of which each by itself is read in less time than all as arrays."""
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


@dataclass(frozen=True, slots=True, eq=False)
class AlikeSamples:
    """Samples with the same parts, in columns: nothing is made for a sample before it is asked for.

    Attributes:
        keys: Key of each sample.
        names: Part names of all.
        starts: First bytes, sample after sample.
        stops: One past the last bytes.
    """

    keys: list[str]
    names: list[str]
    starts: list[int]
    stops: list[int]


def split_samples(
    data: memoryview, starts: Int64Array, stops: Int64Array
) -> AlikeSamples | list[SampleParts | None]:
    """Find the parts of many samples.

    Args:
        data: Bytes of a tar.
        starts: ``int64 [n]``, where each sample's first header begins within ``data``.
        stops: ``int64 [n]``, where the next sample's first header begins.

    Returns:
        By number the parts of each sample; None for one that has to be looked at one header at a time.
    """
    found: list[SampleParts | None] = [None] * len(starts)
    if len(starts) < _FEW:
        return found
    whole = len(data) // TAR_RECORD * TAR_RECORD
    usable = ((starts | stops) % TAR_RECORD == 0) & (starts < stops) & (stops <= whole)
    if usable.all():
        blocks = np.frombuffer(data, np.uint8, count=whole).reshape(-1, TAR_RECORD)
        alike = _split_alike(blocks, starts // TAR_RECORD, stops // TAR_RECORD)
        if alike is not None:
            return alike
    rows = np.flatnonzero(usable)
    at, end = starts[rows] // TAR_RECORD, stops[rows] // TAR_RECORD
    headers: npt.NDArray[Any] = np.frombuffer(data, _HEADER, count=whole // TAR_RECORD)
    for row, parts in zip(rows.tolist(), _split_any(data, headers, at, end), strict=True):
        found[row] = parts
    return found


def _members(data: memoryview, headers: npt.NDArray[Any], at: Int64Array, end: Int64Array) -> _Members:
    header = headers[at]
    digits = header["size"][:, :11] - _ZERO
    size = digits.astype(np.int64) @ _OCTAL
    following = at + 1 + (size + TAR_RECORD - 1) // TAR_RECORD
    last = header["size"][:, 11]
    plain = (digits < 8).all(axis=1) & ((last == 0) | (last == _SPACE))
    plain &= (header["magic"] == b"ustar") & (header["prefix"] == 0) & (following <= end)
    is_file = plain & (header["kind"] == b"0")
    is_pax = plain & (header["kind"] == b"x") & (size > 0) & (size < TAR_RECORD)
    if is_pax.any():
        records = [data[(place + 1) * TAR_RECORD : (place + 2) * TAR_RECORD] for place in at[is_pax].tolist()]
        if pax_matters(b"".join(records)):
            is_pax[:] = False
    names = b"\0".join(header["name"][is_file].tolist()).decode("utf-8", "surrogateescape").split("\0")
    known = len(names) == np.count_nonzero(is_file)  # else there are bytes after the end of a name
    starts = (at + 1) * TAR_RECORD
    return _Members(is_file, is_pax, names if known else None, starts, starts + size, following)


def _split_alike(blocks: npt.NDArray[np.uint8], at: Int64Array, end: Int64Array) -> AlikeSamples | None:
    """Parts of samples that all have the same parts in the same order, as is usual; None for others.

    A block holds some dozens of samples, so the calls of numpy are what costs: there are few.
    """
    keys: list[bytes] = []
    names: list[str] = []
    starts, stops = [], []
    headers = blocks[:, : _PREFIX + 1]
    for _ in range(_MOST_HEADERS):
        header = headers[at]
        is_pax = header[0, _KIND] == _PAX[11]
        differs = header[:, _LOOKED_AT] ^ (_PAX if is_pax else _FILE)
        if np.count_nonzero(differs > _MAY_DIFFER):
            return None
        size = differs[:, :11] @ _OCTAL
        begin = at + 1
        at = begin + (size + TAR_RECORD - 1 >> 9)
        left = end - at
        least = left.min()
        if least < 0:
            return None
        if is_pax:
            longest = size.max()
            if not least or not 0 < size.min() <= longest < TAR_RECORD:
                return None
            if pax_matters(blocks[begin, :longest].tobytes()):
                return None
            continue
        found: list[bytes] = np.frombuffer(header[:, :_NAME].tobytes(), f"S{_NAME}").tolist()
        part = found[0].rpartition(b"/")[2].partition(b".")[2]
        suffix = b"." + part
        if not names:
            keys = [name.removesuffix(suffix) for name in found] if part else []
            together = b"".join(keys)
            if b"." in together or b"__" in together or b"\0" in together or not all(keys):
                return None
        if not part or b"\0" in part or [key + suffix for key in keys] != found:
            return None
        names.append(part.decode("utf-8", "surrogateescape"))
        begin = begin * TAR_RECORD
        starts.append(begin)
        stops.append(begin + size)
        if not least:
            if left.any():
                return None
            columns = (np.array(places).T.ravel().tolist() for places in (starts, stops))
            decoded = b"\0".join(keys).decode("utf-8", "surrogateescape").split("\0")
            return AlikeSamples(decoded, names, *columns)
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
