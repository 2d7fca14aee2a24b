"""The sizes of all samples of a dataset, at the end of ``index.sqlite``.

They are read with the other metadata, which saves a round trip before the first batch and a request for the
``.tar.idx`` file of each shard. SQLite ignores bytes behind its last page, and a tool that writes the
database anew leaves them out. Then, and if they are damaged, the ``.tar.idx`` files are used.

Behind the pages are, if there is room, a hash of each sample's name in 16 bits and an XXH3 hash of these; the
size of each sample in tar blocks of 512 bytes, in the order of ``.info.json``, and a footer. Earlier versions
of this library read the sizes, and ignore the names.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash

from energon_stream.arrays import Int64Array
from energon_stream.index.sample_names import Names, hash_names

Sizes: TypeAlias = "npt.NDArray[np.uint8] | npt.NDArray[np.uint16] | npt.NDArray[np.uint32]"
"""The size of each sample in blocks."""

MOST_BYTES = 1 << 16  # as fast to read as one; 65,000 sizes of up to 130 kB fit

_BLOCK = 512
_FOOTER = struct.Struct("<QQQQ8s")  # width, samples, hash of the metadata, hash of the sizes, mark
_MARK = b"ES.size1"
_NAMES_FOOTER = struct.Struct("<Q8s")  # hash of the names, mark
_NAMES_MARK = b"ES.name1"
_NAME_WIDTH = 2
_TYPES = {1: "u1", 2: "<u2", 4: "<u4"}  # by width


class SampleSizes:
    """Collects the sizes of a dataset's samples, one shard after another, in the order of ``.info.json``."""

    def __init__(self) -> None:
        self._shards: list[Int64Array] = []
        self._names: list[Names] = []
        self._samples = 0

    def add(self, offsets: Sequence[int], names: Sequence[str] = ()) -> None:
        """Add a shard, given the content of its ``.tar.idx``, and the name of each sample's first part."""
        self._samples += len(offsets) - 1
        if self._fits(1 + _NAME_WIDTH, _NAMES_FOOTER.size):
            self._names.append(hash_names(names))
        if self._fits(1):
            bounds = np.array([0, *offsets[1:]], dtype=np.int64)
            self._shards.append(bounds[1:] - bounds[:-1])

    def encode(self, info: bytes, other: int = 0) -> bytes | None:
        """Return the bytes to append, given ``.info.json``; None if too many, or sizes are no blocks.

        ``other`` is the number of bytes that are written behind them.
        """
        if not self._fits(1, other):
            return None
        blocks, rest = np.divmod(np.concatenate(self._shards), _BLOCK)
        width = next((width for width in _TYPES if blocks.max(initial=0) < 1 << 8 * width), None)
        if width is None or rest.any() or not self._fits(width, other):
            return None
        data = blocks.astype(_TYPES[width]).tobytes()
        about = width, len(blocks), xxhash.xxh3_64_intdigest(info), xxhash.xxh3_64_intdigest(data), _MARK
        return self._encoded_names(width, other) + data + _FOOTER.pack(*about)

    def _encoded_names(self, width: int, other: int) -> bytes:
        """Return the hashes of the names; nothing if they would be too many, or are not known."""
        fits = self._fits(width + _NAME_WIDTH, _NAMES_FOOTER.size + other)
        if not fits or sum(map(len, self._names)) != self._samples:
            return b""
        data = np.concatenate(self._names).astype("<u2").tobytes()
        return data + _NAMES_FOOTER.pack(xxhash.xxh3_64_intdigest(data), _NAMES_MARK)

    def _fits(self, width: int, footer: int = 0) -> bool:
        return self._samples * width + footer + _FOOTER.size <= MOST_BYTES


def decode_sizes(tail: memoryview, samples: int, info: memoryview) -> Sizes | None:
    """Return the sizes in blocks; None if they are missing, damaged, or made with another ``.info.json``."""
    length = _size_bytes(tail)
    if not length:
        return None
    width, count, metadata, content, _ = _FOOTER.unpack(tail[-_FOOTER.size :])
    body = tail[len(tail) - length : -_FOOTER.size]
    if count != samples or metadata != xxhash.xxh3_64_intdigest(info):
        return None
    return None if content != xxhash.xxh3_64_intdigest(body) else np.frombuffer(body, dtype=_TYPES[width])


def decode_names(tail: memoryview, samples: int) -> Names | None:
    """Return the hashes of the names of samples whose sizes were decoded; None if missing or damaged."""
    content = _names_of(tail[: len(tail) - _size_bytes(tail)], samples)
    return None if content is None else np.frombuffer(content, dtype="<u2")


def _names_of(tail: memoryview, samples: int) -> memoryview | None:
    """Return the bytes of the names at the end of ``tail``; None if there are none, or they are damaged."""
    length = _NAMES_FOOTER.size + samples * _NAME_WIDTH
    if len(tail) < length:
        return None
    content, mark = _NAMES_FOOTER.unpack(tail[-_NAMES_FOOTER.size :])
    body = tail[len(tail) - length : -_NAMES_FOOTER.size]
    return body if mark == _NAMES_MARK and content == xxhash.xxh3_64_intdigest(body) else None


def appended_bytes(tail: memoryview) -> int:
    """Return how many of a database's last ``MOST_BYTES`` are behind its pages; 0 if it has no sizes."""
    length = _size_bytes(tail)
    if not length:
        return 0
    samples = _FOOTER.unpack(tail[-_FOOTER.size :])[1]
    names = _names_of(tail[:-length], samples)
    return length + (0 if names is None else len(names) + _NAMES_FOOTER.size)


def _size_bytes(tail: memoryview) -> int:
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


def block_bytes(sizes: Sizes) -> int:
    """Return the bytes of all samples, given their sizes in blocks."""
    return int(sizes.sum(dtype=np.int64)) * _BLOCK
