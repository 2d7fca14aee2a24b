"""Many samples of one block of a tar at once: the headers of all of them are read as arrays.

The inner loop of training. What it does not understand at sight (anything but plain ustar headers, and PAX
headers that say nothing about names and sizes) it leaves to :func:`energon_stream.index.tar_format.sample_parts`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from energon_stream.index.tar_format import BLOCK, SampleParts, pax_matters, split_name
from energon_stream.rng import Int64Array

__all__ = ["AlikeSamples", "split_samples"]

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
_ZERO, _SPACE = 0x30, 0x20
_ZEROS = _ZERO * int(_OCTAL.sum())
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
        keys: Key of each sample, encoded.
        names: Part names of all.
        starts: First bytes, sample after sample.
        stops: One past the last bytes.
    """

    keys: list[bytes]
    names: list[str]
    starts: list[int]
    stops: list[int]

    def __getitem__(self, number: int) -> SampleParts:
        """The parts of a sample."""
        width = len(self.names)
        first = number * width
        last = first + width
        key = self.keys[number].decode("utf-8", "surrogateescape")
        return SampleParts(key, self.names, self.starts[first:last], self.stops[first:last])


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
    headers = np.frombuffer(data, _HEADER, count=len(data) // BLOCK)
    aligned = (starts % BLOCK == 0) & (stops % BLOCK == 0)
    rows = np.flatnonzero(aligned & (starts < stops) & (stops <= len(headers) * BLOCK))
    at, end = starts[rows] // BLOCK, stops[rows] // BLOCK
    if len(rows) == len(starts) > 0:
        alike = _split_alike(data, headers, at, end)
        if alike is not None:
            return alike
    found: list[SampleParts | None] = [None] * len(starts)
    for row, parts in zip(rows.tolist(), _split_any(data, headers, at, end), strict=True):
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
) -> AlikeSamples | None:
    """Parts of samples that all have the same parts in the same order, as is usual; None for others.

    A block holds some dozens of samples, so the calls of numpy are what costs: there are few.
    """
    keys: list[bytes] = []
    names: list[str] = []
    starts, stops = [], []
    for _ in range(_MOST_HEADERS):
        header = headers[at]
        kind, digits = header["kind"], header["size"][:, :11]
        is_pax = kind[0] == b"x"
        if (kind != (b"x" if is_pax else b"0")).any() or (header["magic"] != b"ustar").any():
            return None
        if header["prefix"].any() or digits.min() < _ZERO or digits.max() > _ZERO + 7:
            return None
        size = digits @ _OCTAL - _ZEROS
        begin = (at + 1) * BLOCK
        at = at + 1 + (size + BLOCK - 1) // BLOCK
        left = end - at
        if left.min() < 0:
            return None
        if is_pax:
            records = [data[first : first + BLOCK] for first in begin.tolist()]
            if not left.all() or not 0 < size.min() <= size.max() < BLOCK or pax_matters(b"".join(records)):
                return None
            continue
        found: list[bytes] = header["name"].tolist()
        part = found[0].rpartition(b"/")[2].partition(b".")[2]
        if not names:
            keys = [name[: -len(part) - 1] for name in found] if part else []
            together = b"".join(keys)
            if b"." in together or b"__" in together or b"\0" in together or not all(keys):
                return None
        suffix = b"." + part
        if not part or b"\0" in part or [key + suffix for key in keys] != found:
            return None
        names.append(part.decode("utf-8", "surrogateescape"))
        starts.append(begin)
        stops.append(begin + size)
        if not left.any():
            columns = (np.stack(places, axis=1).ravel().tolist() for places in (starts, stops))
            return AlikeSamples(keys, names, *columns)
        if not left.all():
            return None
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
