"""Many samples of one block of a tar at once: the headers of all of them are read as arrays.

The inner loop of training. What it does not understand at sight (anything but plain ustar headers, and PAX
headers that say nothing about names and sizes) it leaves to :func:`energon_stream.index.tar_format.sample_parts`.
"""

from __future__ import annotations

import numpy as np

from energon_stream.index.tar_format import BLOCK, SampleParts, pax_matters, split_name
from energon_stream.rng import Int64Array

__all__ = ["split_samples"]

_HEADER = np.dtype(
    {
        "names": ["name", "size", "kind", "magic", "prefix"],
        "formats": ["S100", ("u1", 12), "S1", "S5", "u1"],
        "offsets": [0, 124, 156, 257, 345],
        "itemsize": BLOCK,
    }
)
_OCTAL = 8 ** np.arange(10, -1, -1, dtype=np.int64)
_TERMINATORS = (0, 0x20)
_MOST_HEADERS = 64  # of a sample; more are left to the general way


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
    inside = (starts % BLOCK == 0) & (stops % BLOCK == 0) & (starts < stops) & (stops <= len(headers) * BLOCK)
    rows = np.flatnonzero(inside)
    at, end = starts[rows] // BLOCK, stops[rows] // BLOCK
    parts: dict[int, SampleParts] = {}
    for _ in range(_MOST_HEADERS):
        if not len(rows):
            return found
        header = headers[at]
        digits = header["size"][:, :11] - np.uint8(0x30)
        size = digits.astype(np.int64) @ _OCTAL
        following = at + 1 + (size + BLOCK - 1) // BLOCK
        plain = (digits < 8).all(axis=1) & np.isin(header["size"][:, 11], _TERMINATORS)
        plain &= (header["magic"] == b"ustar") & (header["prefix"] == 0) & (following <= end)
        is_file = plain & (header["kind"] == b"0")
        is_pax = plain & (header["kind"] == b"x") & (size > 0) & (size < BLOCK)
        if is_pax.any():
            records = [data[(place + 1) * BLOCK : (place + 2) * BLOCK] for place in at[is_pax].tolist()]
            if pax_matters(b"".join(records)):
                is_pax[:] = False
        go_on = is_file | is_pax
        _add_members(parts, rows, header["name"], (at + 1) * BLOCK, size, is_file, go_on)
        finished = go_on & (following == end)
        for row in rows[
            finished & ~is_pax
        ].tolist():  # a PAX header announces a member: it cannot be the last
            found[row] = parts[row]
        rest = go_on & ~finished
        rows, at, end = rows[rest], following[rest], end[rest]
    return found


def _add_members(
    parts: dict[int, SampleParts],
    rows: Int64Array,
    names: np.ndarray[tuple[int], np.dtype[np.bytes_]],
    starts: Int64Array,
    sizes: Int64Array,
    is_file: np.ndarray[tuple[int], np.dtype[np.bool_]],
    go_on: np.ndarray[tuple[int], np.dtype[np.bool_]],
) -> None:
    """Add one member to each sample; what is odd about it is struck from ``go_on``."""
    text = b"\0".join(names[is_file].tolist()).decode("utf-8", "surrogateescape")
    split = text.split("\0") if text else []
    places = np.flatnonzero(is_file).tolist()
    if len(split) != len(places):  # bytes after the end of a name
        go_on[is_file] = False
        return
    folders = "/" in text or "__" in text
    columns = zip(
        places,
        rows[is_file].tolist(),
        split,
        starts[is_file].tolist(),
        (starts + sizes)[is_file].tolist(),
        strict=True,
    )
    for place, row, name, start, stop in columns:
        if folders:
            key, part = split_name(name) or ("", "")
        else:
            key, _, part = name.partition(".")
        known = parts.get(row)
        if not key or (not part and not name.endswith(".")):
            go_on[place] = False
        elif known is None:
            parts[row] = SampleParts(key, [part], [start], [stop])
        elif known.key == key:
            known.names.append(part)
            known.starts.append(start)
            known.stops.append(stop)
        else:
            go_on[place] = False
