"""Hashes of the names of samples, which tell bytes of another sample.

A ``.tar.idx`` file says where samples begin and not which they are, so an answer with other samples' bytes is
a valid tar. :mod:`energon_stream.index.sample_sizes` keeps 16 bits of the name of each sample's first part:
the upper half of a sum of 32-bit words, each times a number of its own, by two calls of numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash

from energon_stream.arrays import Int64Array
from energon_stream.errors import CorruptTarError
from energon_stream.tar.format import TAR_RECORD, sample_parts

Names: TypeAlias = "npt.NDArray[np.uint16]"
"""A hash for each sample."""

NAME_BYTES = 100  # last bytes of a name that count; a plain header has no more
_KIND = 156  # column of a header
_PAX = ord("x")
_FACTORS = (
    np.frombuffer(xxhash.xxh3_128_digest(b"names") * 7, "<u4")[:25] * np.arange(1, 51, 2, dtype=np.uint32)
) | 1


def hash_names(names: Sequence[str]) -> Names:
    """Return the hashes of full names of members.

    Example:
        >>> hash_names(["0001.jpg", "0002.jpg"]).dtype
        dtype('uint16')
    """
    encoded = [name.encode("utf-8", "surrogateescape")[-NAME_BYTES:] for name in names]
    return _hash(np.array(encoded, dtype=f"S{NAME_BYTES}").view(np.uint8).reshape(-1, NAME_BYTES))


def other_names(expected: Names, data: memoryview, starts: Int64Array, stops: Int64Array) -> dict[int, str]:
    """Find samples whose first part has another name than is expected; return these names by place.

    ``data`` has bytes of a tar: those of the samples lie from ``starts`` to ``stops``. Samples that cannot be
    parsed are not compared.
    """
    records = np.frombuffer(data, np.uint8, len(data) // TAR_RECORD * TAR_RECORD).reshape(-1, TAR_RECORD)
    at = starts >> 9
    if records[at[0], _KIND] == _PAX:  # the header follows after one record, as a rule
        at = np.minimum(at + 2, len(records) - 1)
    differing = (_hash(records[:, :NAME_BYTES][at]) != expected).nonzero()[0]
    return _parsed(differing, expected, data, starts, stops) if len(differing) else {}


def _hash(names: npt.NDArray[np.uint8]) -> Names:
    sums: npt.NDArray[np.uint32] = names.view("<u4") @ _FACTORS
    return (sums >> 16).astype(np.uint16)


def _parsed(
    places: Int64Array, expected: Names, data: memoryview, starts: Int64Array, stops: Int64Array
) -> dict[int, str]:
    """Compare the names of samples that are parsed, because a name may be elsewhere."""
    others = {}
    for place in places.tolist():
        try:
            key, parts, *_ = sample_parts(data, int(starts[place]), int(stops[place]))
        except CorruptTarError:  # which cutting reports
            continue
        name = f"{key}.{parts[0]}"
        if hash_names([name])[0] != expected[place]:
            others[place] = name
    return others
