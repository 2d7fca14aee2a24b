"""``index.sqlite``: locations of all samples and parts, for lookups by key or number.

The schema is Megatron-Energon's. Streaming does not need this file; random access does.
"""

from __future__ import annotations

import itertools
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from energon_stream.errors import DuplicateKeyError, NotPreparedError, ObjectNotFoundError
from energon_stream.index.guarded_sqlite import indexed_name, name_of
from energon_stream.index.info_files import META_FOLDER
from energon_stream.storage.in_order import stream_object
from energon_stream.temporary_folders import temporary_folder
from energon_stream.urls import local_path

if TYPE_CHECKING:
    from energon_stream.storage import Store
    from energon_stream.tar.scan import ShardScan

INDEX_SQLITE = f"{META_FOLDER}/index.sqlite"

SAMPLE_TABLES = """
CREATE TABLE samples (
  tar_file_id INTEGER NOT NULL, sample_key TEXT NOT NULL UNIQUE, sample_index INTEGER NOT NULL,
  byte_offset INTEGER, byte_size INTEGER);
CREATE TABLE sample_parts (
  tar_file_id INTEGER, sample_index INTEGER, part_name TEXT,
  content_byte_offset INTEGER, content_byte_size INTEGER);
"""
SAMPLE_INDICES = """
CREATE INDEX idx_samples_by_tar_and_idx ON samples(tar_file_id, sample_index);
CREATE INDEX idx_sample_parts_seq ON sample_parts(tar_file_id, sample_index, content_byte_offset);
CREATE INDEX idx_sample_parts_full ON sample_parts(
  tar_file_id, sample_index, part_name, content_byte_offset, content_byte_size);
"""


class SqliteWriter:
    """Writes an index to a local path. It is complete when the ``with`` block ends without an error."""

    def __init__(self, path: str, shards: list[str]) -> None:
        self._shards = shards  # their positions are the ``tar_file_id``
        # The open file, for further tables.
        self.database: sqlite3.Connection = sqlite3.connect(path, isolation_level=None)
        # Nobody reads the file before it is complete, so it needs no journal and no syncing.
        self.database.executescript(
            "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; BEGIN;" + SAMPLE_TABLES
        )

    def add(self, tar_id: int, scan: ShardScan) -> None:
        """Add the samples of a shard. Raises DuplicateKeyError if the index has a sample of the same key."""
        spans = zip(scan.keys, itertools.pairwise(scan.offsets), strict=True)
        rows = [
            (tar_id, indexed_name(key), number, start, end - start)
            for number, (key, (start, end)) in enumerate(spans)
        ]
        try:
            self.database.executemany("INSERT INTO samples VALUES (?,?,?,?,?)", rows)
        except sqlite3.IntegrityError as error:
            raise self._duplicate(tar_id, scan) from error
        self.database.executemany(
            "INSERT INTO sample_parts VALUES (?,?,?,?,?)",
            ((tar_id, number, indexed_name(name), *place) for number, name, *place in scan.parts),
        )

    def _duplicate(self, tar_id: int, scan: ShardScan) -> DuplicateKeyError:
        for index, key in enumerate(scan.keys):
            row = self.database.execute(
                "SELECT tar_file_id, sample_index FROM samples WHERE sample_key = ?", (indexed_name(key),)
            ).fetchone()
            # The table has the rows of this shard up to the duplicate, so the row may be this sample's own.
            if row not in (None, (tar_id, index)):
                first = f"sample {row[1]} of {self._shards[row[0]]}"
                error = duplicate_key(key, first, f"sample {index} of {scan.path}")
                if row[0] == tar_id:
                    return DuplicateKeyError(error.what, hint=_NOT_ADJACENT)
                mine = {name for sample, name, *_ in scan.parts if sample == index}
                return (
                    DuplicateKeyError(error.what, hint=_IN_TWO)
                    if mine.isdisjoint(self._parts(*row))
                    else error
                )
        return DuplicateKeyError("a sample key appears twice", where=scan.path)

    def _parts(self, tar_id: int, sample: int) -> list[str]:
        query = "SELECT part_name FROM sample_parts WHERE tar_file_id = ? AND sample_index = ?"
        return [name_of(name) for (name,) in self.database.execute(query, (tar_id, sample))]

    def __enter__(self) -> SqliteWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        with closing(self.database):
            if kind is None:
                self.database.executescript(SAMPLE_INDICES)  # commits the rows first


_NOT_ADJACENT = (
    "the parts of a sample must follow each other: `energon-stream repair` writes a dataset in which they do"
)
_IN_TWO = (
    "they have different parts: if they are one sample, write all its parts into one tar, one after another"
)


def duplicate_key(key: str, first: str, second: str) -> DuplicateKeyError:
    """Return the error for a key of two samples, which are named by number and shard."""
    return DuplicateKeyError(
        f"the sample key {key!r} appears twice: {first} and {second}",
        hint="give each sample of the dataset a key of its own, or pass fix_duplicates=True",
    )


@contextmanager
def sqlite_file(store: Store, tmp_path: str | os.PathLike[str] | None = None) -> Iterator[str]:
    """Yield the local path of a dataset's index. A remote one is downloaded to ``tmp_path`` for the block."""
    with temporary_folder(tmp_path) as folder:
        try:
            if store.is_local:
                store.head(INDEX_SQLITE)
                path = os.path.join(local_path(store.url), INDEX_SQLITE)
            else:
                path = os.path.join(folder, "index.sqlite")
                with open(path, "wb") as file:
                    file.writelines(stream_object(store, INDEX_SQLITE))
        except ObjectNotFoundError as error:
            raise NotPreparedError(
                f"{INDEX_SQLITE} not found", where=store.url, hint="run `energon-stream prepare`"
            ) from error
        yield path
