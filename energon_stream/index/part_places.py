"""Places of the parts of samples, read from ``index.sqlite``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from energon_stream.tar.format import TAR_RECORD

if TYPE_CHECKING:
    from energon_stream.arrays import Int64Array
    from energon_stream.index.database import IndexDatabase

_PLACES = """
SELECT sample_index, content_byte_offset, content_byte_size, part_name FROM sample_parts
WHERE tar_file_id = ?
"""
# The first and the last page of a shard have an open end. So they return the rows of the shard whose
# sample_index is no integer: SQLite sorts these before or after all integers.
_FROM, _BELOW, _AT_MOST = " AND sample_index >= ?", " AND sample_index < ?", f" LIMIT {1 << 20}"


@dataclass(frozen=True, slots=True, eq=False)
class PartPlaces:
    """Places of all known parts of neighbouring samples, in the order of the tar."""

    samples: Int64Array  # ``int64``, sample of each part, from 0
    starts: Int64Array  # ``int64``, first byte of each part's content
    sizes: Int64Array  # ``int64``, its length
    wanted: npt.NDArray[np.bool_]  # whether a part is wanted
    begin: int  # first byte of the first part's header

    @property
    def gaps(self) -> Int64Array:
        """Bytes between each part's content and what is before it: its headers, if no part is missing."""
        gaps: Int64Array = self.starts - np.concatenate([[self.begin], self.ends[:-1]])
        return gaps

    @property
    def ends(self) -> Int64Array:
        """One past the last byte of each part, padding included."""
        return np.add(self.starts, -(-self.sizes // TAR_RECORD) * TAR_RECORD)

    @property
    def known(self) -> Int64Array:
        """Number of wanted parts of each sample, ``int64``."""
        return np.bincount(self.samples[self.wanted], minlength=int(self.samples[-1]) + 1)

    def lie_within(self, starts: Int64Array, stops: Int64Array) -> bool:
        """Return True if all parts are in their samples, whose first and last bytes are given."""
        first, last = starts[self.samples], stops[self.samples]
        return bool(((first <= self.starts - TAR_RECORD) & (self.ends <= last)).all())


def read_part_places(
    database: IndexDatabase,
    tar_file_id: int,
    samples: tuple[int, int],
    *,
    is_last: bool,
    wants: Callable[[str], bool],
) -> tuple[PartPlaces, int | None]:
    """Read the places of the parts of samples ``[first, stop)`` of a shard, up to its end if ``is_last``.

    Returns the places, and the bytes between these parts and the next one; None at the end of the shard.
    """
    before, stop = samples
    query, values = _PLACES, [tar_file_id]
    if before:
        # The end of the sample before them is the first header's place.
        query, values = query + _FROM, [*values, before - 1]
    if not is_last:
        query, values = query + _BELOW, [*values, stop + 1]
    rows = database.rows(query + _AT_MOST, tuple(values))
    numbers = np.array([row[:3] for row in rows])
    if not rows:
        raise ValueError("there are no samples")
    wanted = np.array([wants(row[3]) for row in rows], dtype=bool)
    order = np.argsort(numbers[:, 1], kind="stable")
    found, starts, sizes = numbers[order].T
    mine, later = (found >= before) & (found < stop), found >= stop
    if not mine.any() or found[mine][-1] != stop - 1 or later.any() == is_last:
        raise ValueError(f"there are not {stop - before} samples")
    earlier = np.flatnonzero(found < before)
    begin = -(-int((starts + sizes)[earlier].max()) // TAR_RECORD) * TAR_RECORD if len(earlier) else 0
    places = PartPlaces(found[mine] - before, starts[mine], sizes[mine], wanted[order][mine], begin)
    return places, None if is_last else int(starts[later].min() - places.ends[-1])
