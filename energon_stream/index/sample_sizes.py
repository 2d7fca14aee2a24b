"""The sizes of all samples of a dataset, at the end of ``index.sqlite``.

They are read with the other metadata, by one request, which saves a round trip before the first batch and a
request for the ``.tar.idx`` file of each shard. SQLite ignores bytes behind its last page, and a tool that
writes the database anew leaves the sizes out.

Behind the pages are the size of each sample in tar blocks of 512 bytes, in the order of ``.info.json``, the
width of a size in bytes, the number of samples, and two XXH3 hashes, of ``.info.json`` and of the sizes. If
they do not fit ``.info.json``, or are damaged, the ``.tar.idx`` files are used.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash

if TYPE_CHECKING:
    from energon_stream.arrays import Int64Array

Sizes: TypeAlias = "npt.NDArray[np.uint8] | npt.NDArray[np.uint16] | npt.NDArray[np.uint32]"
"""The size of each sample in blocks."""

MOST_BYTES = 1 << 16
"""Most bytes that are written, and read; they take hardly longer to arrive than one. 65,000 sizes of up to
130 kB fit."""

_BLOCK = 512
_FOOTER = struct.Struct("<QQQQ8s")  # width, samples, hash of the metadata, hash of the sizes, mark
_MARK = b"ES.size1"
_TYPES = {1: "u1", 2: "<u2", 4: "<u4"}  # by width


class SampleSizes:
    """Collects the sizes of a dataset's samples, one shard after another, in the order of ``.info.json``."""

    def __init__(self) -> None:
        self._shards: list[Int64Array] = []
        self._samples = 0

    def add(self, offsets: Sequence[int]) -> None:
        """Add a shard, given the content of its ``.tar.idx``."""
        self._samples += len(offsets) - 1
        if self._fits(1):
            bounds = np.array([0, *offsets[1:]], dtype=np.int64)
            self._shards.append(bounds[1:] - bounds[:-1])

    def encode(self, info: bytes) -> bytes | None:
        """Return the bytes to append; None if they would be too many, or sizes are not whole blocks.

        ``info`` is the content of ``.info.json``.
        """
        if not self._fits(1):
            return None
        blocks, rest = np.divmod(np.concatenate(self._shards), _BLOCK)
        width = next((width for width in _TYPES if blocks.max(initial=0) < 1 << 8 * width), None)
        if width is None or rest.any() or not self._fits(width):
            return None
        data = blocks.astype(_TYPES[width]).tobytes()
        about = width, len(blocks), xxhash.xxh3_64_intdigest(info), xxhash.xxh3_64_intdigest(data), _MARK
        return data + _FOOTER.pack(*about)

    def _fits(self, width: int) -> bool:
        return self._samples * width + _FOOTER.size <= MOST_BYTES


def decode_sizes(tail: memoryview, samples: int, info: memoryview) -> Sizes | None:
    """Return the sizes in blocks, given the last ``MOST_BYTES`` of the database.

    Return None if it has none, or they are damaged, or were made with another ``.info.json``.
    """
    length = appended_bytes(tail)
    if not length:
        return None
    width, count, metadata, content, _ = _FOOTER.unpack(tail[-_FOOTER.size :])
    body = tail[len(tail) - length : -_FOOTER.size]
    if count != samples:
        return None
    if metadata != xxhash.xxh3_64_intdigest(info) or content != xxhash.xxh3_64_intdigest(body):
        return None
    return np.frombuffer(body, dtype=_TYPES[width])


def appended_bytes(tail: memoryview) -> int:
    """Return how many of a database's last ``MOST_BYTES`` are behind its pages; 0 if it has no sizes."""
    if len(tail) < _FOOTER.size:
        return 0
    width, count, _, _, mark = _FOOTER.unpack(tail[-_FOOTER.size :])
    length = _FOOTER.size + count * width
    return length if mark == _MARK and width in _TYPES and length <= len(tail) else 0


def bounds_of(sizes: Sizes) -> Int64Array:
    """Return where each sample begins if all are in one object, and the end: ``int64 [samples + 1]``."""
    bounds = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=bounds[1:])
    return bounds * _BLOCK
