"""``.tar.idx`` files: where each sample of a tar begins.

N + 1 little-endian unsigned 64-bit integers: the first header of each sample, and the end of the last
member. Sample 0 is always taken to start at byte 0.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from energon_stream.arrays import Int64Array
from energon_stream.errors import IndexMismatchError, NotPreparedError, ObjectNotFoundError, RangeError
from energon_stream.storage import ByteRange, Store, StoreSpec

__all__ = [
    "OffsetWindow",
    "RowFile",
    "page_bounds",
    "decode_offsets",
    "encode_offsets",
    "index_path",
    "read_offsets",
]

_ENTRY = 8
_PAGE_ENTRIES = (64 << 10) // _ENTRY  # 64 KiB are hardly slower to get than one entry
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


def page_bounds(first: Int64Array, last: Int64Array, counts: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Entries that are read together: all of a small index, else whole blocks.

    Args:
        first: ``int64``, first entries wanted, each of an index of its own.
        last: ``int64``, last ones, inclusive.
        counts: ``int64``, samples of the tars; an index has one entry more.

    Returns:
        The first and the last (inclusive) entry to read of each.
    """
    small = (counts + 1) <= _PAGE_ENTRIES
    lower = np.where(small, 0, first // _PAGE_ENTRIES * _PAGE_ENTRIES)
    upper = np.where(small, counts, (last // _PAGE_ENTRIES + 1) * _PAGE_ENTRIES - 1)
    return lower, np.minimum(upper, counts)


def read_offsets(store: Store, shard_path: str, count: int, first: int, last: int) -> OffsetWindow:
    """Read entries of a tar's index; see :func:`page_bounds`.

    Args:
        store: The dataset's root.
        shard_path: Path of the tar.
        count: Number of samples that ``.info.json`` gives the tar.
        first: First entry wanted.
        last: Last entry wanted, inclusive; entry ``count`` is the end of the last sample.

    Returns:
        The entries.

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
    whole = first == 0 and last == count
    try:
        if whole:
            body = store.get(path)
        else:
            body = store.get_range(path, ByteRange(first * _ENTRY, (last + 1) * _ENTRY))
    except ObjectNotFoundError as error:
        raise NotPreparedError(
            "the tar has no index", where=where, hint="Run `energon-stream prepare`."
        ) from error
    except RangeError as error:
        raise IndexMismatchError(
            f"the index is too short for the {count} samples of .info.json", where=where, hint=_HINT
        ) from error
    size = len(body.data) if whole else body.total_size
    if size not in (None, total):
        raise IndexMismatchError(
            f"the index has {size} bytes, but .info.json says {count} samples, which take {total}",
            where=where,
            hint=_HINT,
        )
    return decode_offsets(body.data, first, where)


_PAGE_BYTES = 16 << 10  # a shuffled slice of samples reads one or two pages of a large file


@dataclass(frozen=True, slots=True)
class RowFile:
    """Rows of little-endian 64-bit integers after a header; picklable.

    Attributes:
        spec: Where the file lies.
        header: Bytes before the first row.
        width: Integers of a row.
        rows: Number of rows.
    """

    spec: StoreSpec
    header: int
    width: int
    rows: int

    @property
    def page_rows(self) -> int:
        """Rows that are read together."""
        return max(1, _PAGE_BYTES // (8 * self.width))

    def read_page(self, store: Store, page: int) -> Int64Array:
        """Read the rows from ``page * page_rows``.

        Returns:
            ``int64 [n, width]``; ``n`` is ``page_rows``, or what is left.

        Raises:
            IndexMismatchError: The file is shorter than it was.
        """
        first = page * self.page_rows
        last = min(first + self.page_rows, self.rows)
        size = 8 * self.width
        try:
            body = store.get_range("", ByteRange(self.header + first * size, self.header + last * size))
        except RangeError as error:
            raise IndexMismatchError(
                f"the index does not have the {self.rows} rows any more that it had when it was opened",
                where=self.spec.url,
                hint="Prepare again, and restart.",
            ) from error
        return np.frombuffer(body.data, dtype="<i8").astype(np.int64).reshape(-1, self.width)
