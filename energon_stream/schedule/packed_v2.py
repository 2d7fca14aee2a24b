"""Reader of packed cursors and columns in states of format version 2. Nothing writes them any more.

The bytes are the number of columns, for each column the number of bytes that its numbers take (0 if all are
0), and one raw deflate stream of the bytes, those of equal significance side by side. The columns were:
total, begin, group and bounds, of which begin and group are differences from a prediction in floating point.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from energon_stream.arrays import Int64Array
    from energon_stream.schedule.leaf_order import LeafSchedule


def is_packed_v2(data: bytes) -> bool:
    """Tell bytes of version 2, which begin with a small number, from a zlib stream."""
    return data[:1] < b"\x10"


def unpack_columns_v2(data: bytes, length: int) -> Int64Array:
    """Read columns of a known length, in the order of version 3: total, group, begin, bounds.

    Raises:
        ValueError: The bytes are no columns of that length. No more memory is used than such columns take.
    """
    widths = data[1 : 1 + data[0]] if data else b""
    if not 0 < len(widths) <= 5 or max(widths) > 8:
        raise ValueError(f"{len(data)} bytes are no columns")
    size = sum(widths) * length
    inflate = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        planes = inflate.decompress(data[1 + len(widths) :], size + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if len(planes) != size:
        raise ValueError(f"{len(planes)} bytes are not {sum(widths)} planes of {length}")
    rows = np.frombuffer(planes, dtype=np.uint8).reshape(-1, length)
    table = np.zeros((len(widths), length, 8), dtype=np.uint8)
    for number, width in enumerate(widths):
        before = sum(widths[:number])
        table[number, :, :width] = rows[before : before + width].T
    columns: Int64Array = table.view("<i8")[..., 0].astype(np.int64)
    if len(columns) > 1:  # all but the total are signed
        columns[1:] = (columns[1:] >> 1) ^ -(columns[1:] & 1)
        columns[[1, 2]] = columns[[2, 1]]
    return columns


def places_v2(
    leaves: Sequence[LeafSchedule], position: Int64Array, group: Int64Array, begin: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Return the number of the group and the offset in it for each leaf."""
    sizes = [
        leaf.slots_per_group * max(1.0, leaf.table.num_samples / max(1, len(leaf.table))) for leaf in leaves
    ]
    mean = np.array(sizes)
    number = group + np.floor(position / mean).astype(np.int64)
    return number, position - begin - np.rint(number * mean).astype(np.int64)
