"""Index files: integers that say where samples begin, read in pages.

A ``.tar.idx`` file holds N + 1 little-endian unsigned 64-bit integers: the first header of each sample, and
the end of the last member. Sample 0 is always taken to start at byte 0.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from energon_stream.arrays import Int64Array
from energon_stream.cache.cached_store import read_again
from energon_stream.errors import IndexMismatchError, NotPreparedError, ObjectNotFoundError, RangeError
from energon_stream.storage import Body, ByteRange, Store, StoreSpec

ENTRY_BYTES = 8
PAGE_SAMPLES = (64 << 10) // ENTRY_BYTES  # reading 64 KiB takes hardly longer than reading one entry
ROW_PAGE_BYTES = 16 << 10  # a shuffled slice of samples reads one or two pages of a large file


def page_rows(width: int = 1) -> int:
    """Return the number of rows in a page of a large file."""
    return max(1, ROW_PAGE_BYTES // (ENTRY_BYTES * width))


def index_path(shard_path: str) -> str:
    """Return the path of a tar's index."""
    return posixpath.splitext(shard_path)[0] + ".tar.idx"


def encode_offsets(offsets: Sequence[int] | Int64Array) -> bytes:
    """Return the content of a ``.tar.idx`` file."""
    return np.asarray(offsets, dtype="<u8").tobytes()


def decode_offsets(data: memoryview | bytes, first: int, where: str) -> Int64Array:
    """Decode entries of an index, the first of which has a number, or raise IndexMismatchError."""
    if len(data) % ENTRY_BYTES:
        raise _mismatch(f"the index has {len(data)} bytes, not a multiple of {ENTRY_BYTES}", where)
    offsets = np.frombuffer(data, dtype="<u8").astype(np.int64)
    if first == 0 and len(offsets):
        offsets[0] = 0
    wrong = np.flatnonzero(np.diff(offsets) <= 0)
    if len(wrong) or (len(offsets) and offsets[0] < 0):
        at = first + (int(wrong[0]) + 1 if len(wrong) else 0)
        raise _mismatch(f"entry {at} of the index does not lie after the entry before", where)
    return offsets


def _mismatch(what: str, where: str) -> IndexMismatchError:
    hint = "the tar was changed after it was indexed; run `energon-stream prepare` again"
    return IndexMismatchError(what, where=where, hint=hint)


def read_offsets(store: Store, shard_path: str, count: int, first: int, last: int) -> Int64Array:
    """Read entries ``first`` to ``last``, inclusive; entry ``count`` is the end of the last sample.

    Raises NotPreparedError if the tar has no index, and IndexMismatchError if the index is damaged, or has
    another number of samples.
    """
    path = index_path(shard_path)
    if not 0 <= first <= last <= count:
        raise _mismatch(
            f"entries {first} to {last} do not exist: .info.json has {count} samples for the tar",
            f"{store.url}/{path}",
        )
    return read_again(store, [path], lambda: _read_entries(store, path, count, first, last))


def _read_entries(store: Store, path: str, count: int, first: int, last: int) -> Int64Array:
    where, total = f"{store.url}/{path}", (count + 1) * ENTRY_BYTES
    try:
        body = store.get_range(path, ByteRange(first * ENTRY_BYTES, (last + 1) * ENTRY_BYTES))
    except ObjectNotFoundError as error:
        raise NotPreparedError(
            "the tar has no index", where=where, hint="run `energon-stream prepare`"
        ) from error
    except RangeError as error:
        raise _mismatch(f"the index is too short for the {count} samples of .info.json", where) from error
    if body.total_size not in (None, total):
        raise _mismatch(
            f"the index has {body.total_size} bytes, but the {count} samples of .info.json take {total}",
            where,
        )
    return decode_offsets(body.data, first, where)


@dataclass(frozen=True, slots=True)
class RowFile:
    """A file of rows of little-endian 64-bit integers after a header. A picklable value."""

    spec: StoreSpec  # location of the file
    header: int  # bytes before the first row
    width: int  # integers in a row
    rows: int  # number of rows
    ascends: bool = False  # whether each row of one integer is larger than the one before

    @property
    def page_rows(self) -> int:
        """Number of rows in a page; the last page may have fewer."""
        return page_rows(self.width)

    def read(self, store: Store, first: int, last: int) -> Int64Array:
        """Read rows ``[first, last)``, as ``int64 [n, width]``.

        Raises IndexMismatchError beyond the end, and for rows that cannot be right.
        """
        header, width, ascends = self.header, self.width, self.ascends
        return read_rows(store, "", first, last, self.rows, header=header, width=width, ascends=ascends)


def size_of(store: Store, path: str, body: Body) -> int:
    """Return the size of an object, given an answer about it."""
    return store.head(path).size if body.total_size is None else body.total_size


def read_rows(
    store: Store,
    path: str,
    first: int,
    last: int,
    rows: int,
    *,
    header: int = 0,
    width: int = 1,
    dtype: str = "<i8",
    ascends: bool = False,
    whole: int | None = None,
) -> Int64Array:
    """Read rows ``[first, last)`` of ``rows`` in a file, as :meth:`RowFile.read` does.

    ``whole`` is the size that the file had when it was opened.
    """
    size, where = np.dtype(dtype).itemsize * width, f"{store.url}/{path}".rstrip("/")

    def read() -> Int64Array:
        try:
            body = store.get_range(path, ByteRange(header + first * size, header + last * size))
        except RangeError as error:
            raise IndexMismatchError(
                f"the index is shorter than the {rows} rows that it had when it was opened",
                where=where,
                hint="prepare the data again, and restart the job",
            ) from error
        if whole is not None and (now := size_of(store, path, body)) != whole:
            raise IndexMismatchError(
                f"the index has {now} bytes, and had {whole} when it was opened",
                where=where,
                hint="run `energon-stream prepare` again, and restart the job",
            )
        found = np.frombuffer(body.data, dtype=dtype).astype(np.int64).reshape(-1, width)
        if ascends and (found[0] < 0 or (np.diff(found, axis=0) <= 0).any()):
            raise IndexMismatchError(
                f"rows {first} to {last} of the index do not ascend",
                where=where,
                hint="the index is damaged; run `energon-stream prepare` again",
            )
        return found

    return read_again(store, [path], read)
