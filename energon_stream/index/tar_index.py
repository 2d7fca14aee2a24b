"""``.tar.idx`` files: where each sample of a tar begins.

N + 1 little-endian unsigned 64-bit integers: the first header of each sample, and the end of the last
member. Sample 0 is always taken to start at byte 0.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from energon_stream.errors import IndexMismatchError, NotPreparedError, ObjectNotFoundError, RangeError
from energon_stream.rng import Int64Array
from energon_stream.storage import Body, ByteRange, Store

__all__ = ["OffsetWindow", "decode_offsets", "encode_offsets", "index_path", "read_offsets"]

_ENTRY = 8
_WHOLE_FILE = 64 << 10  # bytes up to which the whole index is read
_BLOCK_ENTRIES = _WHOLE_FILE // _ENTRY
_HINT = "The tar was changed after it was indexed; run `energon-stream prepare` again."


@dataclass(frozen=True, slots=True)
class OffsetWindow:
    """Neighbouring entries of a tar's index.

    Attributes:
        first: Number of the first entry.
        offsets: ``int64`` array of byte offsets; ``offsets[i - first]`` is where sample ``i`` begins.
    """

    first: int
    offsets: Int64Array

    def covers(self, first: int, last: int) -> bool:
        """Whether entries ``first`` to ``last`` (inclusive) are here."""
        return self.first <= first and last < self.first + len(self.offsets)


def index_path(shard_path: str) -> str:
    """Path of a tar's index: the last suffix becomes ``.tar.idx``."""
    return posixpath.splitext(shard_path)[0] + ".tar.idx"


def encode_offsets(offsets: Sequence[int] | Int64Array) -> bytes:
    """Content of a ``.tar.idx`` file."""
    return np.asarray(offsets, dtype="<u8").tobytes()


def decode_offsets(data: memoryview | bytes, first: int, where: str) -> OffsetWindow:
    """Read entries of an index.

    Args:
        data: The entries' bytes.
        first: Number of the first of them.
        where: URL of the index, for messages.

    Raises:
        IndexMismatchError: The offsets do not grow, or the bytes are no whole entries.
    """
    if len(data) % _ENTRY:
        raise IndexMismatchError(
            f"the index has {len(data)} bytes, not whole entries", where=where, hint=_HINT
        )
    offsets = np.frombuffer(data, dtype="<u8").astype(np.int64)
    if first == 0 and len(offsets):
        offsets[0] = 0
    wrong = np.flatnonzero(np.diff(offsets) <= 0)
    if len(wrong) or (len(offsets) and offsets[0] < 0):
        at = first + (int(wrong[0]) + 1 if len(wrong) else 0)
        raise IndexMismatchError(
            f"entry {at} of the index does not lie after its predecessor", where=where, hint=_HINT
        )
    return OffsetWindow(first, offsets)


def read_offsets(store: Store, shard_path: str, count: int, first: int, last: int) -> OffsetWindow:
    """Read entries of a tar's index: all of a small one, else whole blocks around the wanted ones.

    Args:
        store: The dataset's root.
        shard_path: Path of the tar.
        count: Number of samples that ``.info.json`` gives the tar.
        first: First entry wanted.
        last: Last entry wanted, inclusive; entry ``count`` is the end of the last sample.

    Returns:
        At least the entries asked for; cache them all.

    Raises:
        NotPreparedError: There is no index.
        IndexMismatchError: The index is not that of ``count`` samples, or damaged.
    """
    path, total = index_path(shard_path), (count + 1) * _ENTRY
    where = f"{store.url}/{path}"
    if not 0 <= first <= last <= count:
        raise IndexMismatchError(
            f"entries {first} to {last} are asked for, .info.json says {count} samples",
            where=where,
            hint=_HINT,
        )
    base = 0
    try:
        if total <= _WHOLE_FILE:
            body = store.get(path)
        else:
            base = first // _BLOCK_ENTRIES * _BLOCK_ENTRIES
            end = min(count + 1, (last // _BLOCK_ENTRIES + 1) * _BLOCK_ENTRIES)
            body = store.get_range(path, ByteRange(base * _ENTRY, end * _ENTRY))
    except ObjectNotFoundError as error:
        raise NotPreparedError(
            "the tar has no index", where=where, hint="Run `energon-stream prepare`."
        ) from error
    except RangeError as error:
        raise IndexMismatchError(
            f"the index is too short for the {count} samples of .info.json", where=where, hint=_HINT
        ) from error
    _check_size(body, count, total, where)
    return decode_offsets(body.data, base, where)


def _check_size(body: Body, count: int, total: int, where: str) -> None:
    size = len(body.data) if total <= _WHOLE_FILE else body.total_size
    if size not in (None, total):
        raise IndexMismatchError(
            f"the index has {size} bytes, but .info.json says {count} samples, which take {total}",
            where=where,
            hint=_HINT,
        )
