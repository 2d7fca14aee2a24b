"""Index files of equal rows of integers, of which blocks are read as they are needed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from energon_stream.arrays import Int64Array
from energon_stream.errors import IndexMismatchError, RangeError
from energon_stream.storage import ByteRange, Store, StoreSpec

__all__ = ["RowFile"]

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

    def read_block(self, store: Store, block: int) -> Int64Array:
        """Read the rows from ``block * page_rows``.

        Returns:
            ``int64 [n, width]``; ``n`` is ``page_rows``, or what is left.

        Raises:
            IndexMismatchError: The file is shorter than it was.
        """
        first = block * self.page_rows
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
