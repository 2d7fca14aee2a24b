"""Parser of many samples at once: reads the headers of all samples in some bytes of a tar as arrays.

This is the inner loop of training. It handles samples with the same parts, plain ustar headers, and PAX
headers that do not change names and sizes. All other samples, and those with a wrong header checksum, go to
:func:`energon_stream.tar.format.sample_parts`, one by one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from energon_stream.arrays import Int64Array
from energon_stream.tar.format import TAR_RECORD, pax_matters

_OCTAL = 8 ** np.arange(10, -1, -1, dtype=np.int64)
_NAME, _KIND, _PREFIX = 100, 156, 345  # columns of a header
_CHECKED = np.array([*range(124, 135), _KIND, *range(257, 262), _PREFIX])
_FILE, _PAX = (np.frombuffer(b"0" * 11 + kind + b"ustar\0", np.uint8) for kind in (b"0", b"x"))
_MAY_DIFFER = np.array([7] * 11 + [0] * 7, dtype=np.uint8)  # octal digits differ in the lowest three bits
_SUM = np.ones(_PREFIX + 1, dtype=np.float32)
_SUM[148:156] = [*(-(8 ** np.arange(5, -1, -1))), 0, 0]
_SUMMED = -8 * ord(" ") - ord("0") * sum(8**place for place in range(6))
"""Product of a header and ``_SUM`` if the checksum is right: the sum of all bytes without the checksum field,
less the number in that field. The bytes after ``_SUM`` mean nothing here, and are usually 0. Floats of 32
bits are exact, because no sum reaches 2 ** 24."""
FEW = 24  # for fewer samples, parsing each by itself is faster than arrays
_MOST_HEADERS = 64  # of a sample


@dataclass(frozen=True, slots=True, eq=False)
class AlikeSamples:
    """Samples that all have the same parts, in columns. No object is made per sample."""

    keys: list[str]  # key of each sample
    names: list[str]  # part names of all samples
    starts: list[int]  # first byte of each part, sample after sample
    stops: list[int]  # one past the last byte of each part


def split_samples(data: memoryview, starts: Int64Array, stops: Int64Array) -> AlikeSamples | None:
    """Find the parts of samples that all have the same parts in the same order.

    ``data`` has bytes of a tar, ``starts`` and ``stops`` the first bytes of each sample and of the next one.
    Return None if the samples are few, differ in their parts, or have other headers than plain ones. With
    some dozens of samples per call, the number of calls of numpy decides the speed. So there are few.
    """
    whole = len(data) // TAR_RECORD * TAR_RECORD
    if len(starts) < FEW:
        return None
    if not (((starts | stops) % TAR_RECORD == 0) & (starts < stops) & (stops <= whole)).all():
        return None
    records = np.frombuffer(data, np.uint8, count=whole).reshape(-1, TAR_RECORD)
    headers = records[:, : _PREFIX + 1]
    at, end = starts // TAR_RECORD, stops // TAR_RECORD
    keys: list[bytes] = []
    names: list[str] = []
    first_bytes, last_bytes = [], []
    for _ in range(_MOST_HEADERS):
        header = headers[at]
        is_pax = header[0, _KIND] == _PAX[11]
        differs = header[:, _CHECKED] ^ (_PAX if is_pax else _FILE)
        if np.count_nonzero(differs > _MAY_DIFFER):
            return None
        if np.count_nonzero(header.astype(np.float32) @ _SUM != _SUMMED):
            return None  # the checksum is wrong, or is written in an unusual form
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
            if pax_matters(records[begin, :longest].tobytes()):
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
        first_bytes.append(begin)
        last_bytes.append(begin + size)
        if not least:
            if left.any():
                return None
            columns = (np.array(places).T.ravel().tolist() for places in (first_bytes, last_bytes))
            decoded = b"\0".join(keys).decode("utf-8", "surrogateescape").split("\0")
            return AlikeSamples(decoded, names, *columns)
    return None
