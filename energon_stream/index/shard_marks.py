"""Marks of shards, at the end of ``index.sqlite``: what tells a shard from another of equal name and count.

A mark is a hash in 32 bits of the samples' keys, of the names, places and sizes of their parts, and of the
first bytes of the tar. It is the same wherever a dataset is copied to, and whenever it is prepared again.
Marks lie behind the database's pages, and the names and sizes of :mod:`energon_stream.index.sample_sizes`, in
the order of ``.info.json``. Datasets of other programs, or of more than 16,000 shards, lack marks.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import msgpack
import numpy as np
import numpy.typing as npt
import xxhash

from energon_stream.index.sample_sizes import MOST_BYTES, appended_bytes

if TYPE_CHECKING:
    from energon_stream.tar.scan import ShardScan

Marks: TypeAlias = "npt.NDArray[np.uint32]"
"""A mark for each shard."""

_FOOTER = struct.Struct("<QQ8s")  # number of shards, hash of their paths and marks, mark of the format
_MARK = b"ES.shard"
_WIDTH = 4


def shard_mark(scan: ShardScan) -> int | None:
    """Return the mark of a shard; None if its first bytes are not known."""
    if scan.head is None:
        return None
    known = [scan.head, scan.keys, scan.offsets, scan.parts]
    return xxhash.xxh3_64_intdigest(msgpack.packb(known, unicode_errors="surrogatepass")) & 0xFFFFFFFF


def encode_marks(marks: Sequence[int | None], paths: Iterable[str]) -> bytes:
    """Return the bytes to append for shards of these paths; none if some mark is unknown, or too many."""
    found = [mark for mark in marks if mark is not None]
    if len(found) < len(marks) or len(marks) * _WIDTH + _FOOTER.size > MOST_BYTES:
        return b""
    data = np.array(found, dtype="<u4").tobytes()
    return data + _FOOTER.pack(len(found), _digest(data, paths), _MARK)


def decode_marks(tail: memoryview, paths: Sequence[str]) -> Marks | None:
    """Return the marks at the end of a database; None if they are missing, damaged, or of other shards."""
    if not 0 < (length := marks_bytes(tail)) <= len(tail):
        return None
    data = bytes(tail[-length : -_FOOTER.size])
    is_whole = _FOOTER.unpack(tail[-_FOOTER.size :])[:2] == (len(paths), _digest(data, paths))
    return np.frombuffer(data, dtype="<u4") if is_whole else None


def marks_bytes(tail: memoryview) -> int:
    """Return how many bytes the marks at the end of a database take, or 0, given some of its last bytes."""
    if len(tail) < _FOOTER.size:
        return 0
    count, _, mark = _FOOTER.unpack(tail[-_FOOTER.size :])
    length = _FOOTER.size + count * _WIDTH
    return int(length) if mark == _MARK and length <= MOST_BYTES else 0


def trailer_bytes(tail: memoryview) -> int:
    """Return how many of a database's last ``MOST_BYTES`` are behind its pages: names, sizes and marks."""
    length = marks_bytes(tail)
    return length + appended_bytes(tail[: len(tail) - length])


def _digest(data: bytes, paths: Iterable[str]) -> int:
    return xxhash.xxh3_64_intdigest(data + "\0".join(paths).encode("utf-8", "surrogateescape"))
