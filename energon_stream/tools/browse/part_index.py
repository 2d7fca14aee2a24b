"""Asks ``index.sqlite`` about single samples: the places of their parts, and which has a key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from energon_stream.errors import ObjectNotFoundError
from energon_stream.index.database import index_database

if TYPE_CHECKING:
    from energon_stream.index.database import IndexDatabase
    from energon_stream.storage import StoreSpec

_HAS_PARTS = "SELECT 1 FROM sqlite_master WHERE name = 'sample_parts'"
_PARTS = """
SELECT sample_key, part_name, content_byte_offset, content_byte_size
FROM samples JOIN sample_parts USING (tar_file_id, sample_index)
WHERE tar_file_id = ? AND sample_index = ? ORDER BY content_byte_offset
"""
_KEYS = """
SELECT sample_key, tar_file_id, sample_index FROM samples
WHERE sample_key >= ? AND sample_key < ? ORDER BY sample_key LIMIT ?
"""
_LAST = "\U0010ffff"


@dataclass(frozen=True, slots=True)
class IndexedSample:
    """A sample that the index has."""

    key: str
    shard_id: int  # number of the shard in the index
    number: int  # number of the sample in its shard


class PartIndex:
    """The ``index.sqlite`` of one dataset."""

    def __init__(self, database: IndexDatabase) -> None:
        self._database = database
        self.has_parts: bool = bool(database.checked_rows(_HAS_PARTS, ()))

    @classmethod
    def open(cls, spec: StoreSpec) -> PartIndex | None:
        """Open the index of a dataset; None if it has none."""
        try:
            return cls(index_database(spec))
        except ObjectNotFoundError:
            return None

    def parts(self, shard_id: int, number: int) -> tuple[str, list[tuple[str, int, int]]] | None:
        """Return a sample's key, and name, first byte and size of its parts; None if it has none.

        Raises MetadataError if the index says something impossible.
        """
        rows = self._database.checked_rows(_PARTS, (shard_id, number))
        for row in rows:
            self._check(row, (str, str, int, int), min(row[2:], default=0) if _are_ints(row[2:]) else 0)
        return (rows[0][0], [(name, start, size) for _, name, start, size in rows]) if rows else None

    def find(self, key: str, most: int) -> list[IndexedSample]:
        """Return the samples whose keys begin with a text, sorted by key, at most ``most`` of them.

        Raises MetadataError if the index says something impossible.
        """
        try:
            rows = self._database.checked_rows(_KEYS, (key, key + _LAST, most))
        except UnicodeEncodeError:  # no key has such characters
            return []
        for row in rows:
            self._check(row, (str, int, int), 0)
        return [IndexedSample(*row) for row in rows]

    def _check(self, row: Sequence[Any], types: tuple[type, ...], least: int) -> None:
        if tuple(map(type, row)) != types or least < 0:
            raise self._database.damaged(f"a row is {row!r:.120}")


def _are_ints(values: Sequence[Any]) -> bool:
    return all(type(value) is int for value in values)
