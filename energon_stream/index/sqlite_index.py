"""``index.sqlite``: where every sample and every part lies, by key and by number.

The schema is Megatron-Energon's. Training does not need this file; random access does.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from types import TracebackType

from energon_stream.errors import DuplicateKeyError, MetadataError, NotPreparedError, ObjectNotFoundError
from energon_stream.index.in_order import stream_object
from energon_stream.index.metadata import META_FOLDER
from energon_stream.index.scan import ShardScan
from energon_stream.storage import Store, local_path

__all__ = ["INDEX_SQLITE", "SampleLocation", "SqliteIndex", "SqliteWriter", "open_sqlite", "sqlite_file"]

INDEX_SQLITE = f"{META_FOLDER}/index.sqlite"

_TABLES = """
CREATE TABLE samples (
  tar_file_id INTEGER NOT NULL, sample_key TEXT NOT NULL UNIQUE, sample_index INTEGER NOT NULL,
  byte_offset INTEGER, byte_size INTEGER);
CREATE TABLE sample_parts (
  tar_file_id INTEGER, sample_index INTEGER, part_name TEXT,
  content_byte_offset INTEGER, content_byte_size INTEGER);
"""
_INDICES = """
CREATE INDEX idx_samples_by_tar_and_idx ON samples(tar_file_id, sample_index);
CREATE INDEX idx_sample_parts_seq ON sample_parts(tar_file_id, sample_index, content_byte_offset);
CREATE INDEX idx_sample_parts_full ON sample_parts(
  tar_file_id, sample_index, part_name, content_byte_offset, content_byte_size);
"""


class SqliteWriter:
    """Builds the file at a local path; complete when its ``with`` block ends without an error.

    Args:
        path: File to create.
        shards: Shard paths; a shard's position is its ``tar_file_id``.
    """

    def __init__(self, path: str, shards: list[str]) -> None:
        self._shards = shards
        self._database = sqlite3.connect(path, isolation_level=None)
        # The file is nothing until it is complete, so it needs no protection while it is built.
        self._database.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; BEGIN;" + _TABLES)

    @property
    def database(self) -> sqlite3.Connection:
        """The file while it is built, for further tables."""
        return self._database

    def add(self, tar_id: int, scan: ShardScan) -> None:
        """Add the samples of a shard.

        Raises:
            DuplicateKeyError: A key is there already.
        """
        starts, ends = scan.offsets[:-1], scan.offsets[1:]
        rows = [
            (tar_id, key, index, start, end - start)
            for index, (key, start, end) in enumerate(zip(scan.keys, starts, ends, strict=True))
        ]
        try:
            self._database.executemany("INSERT INTO samples VALUES (?,?,?,?,?)", rows)
        except sqlite3.IntegrityError as error:
            raise self._duplicate(scan) from error
        self._database.executemany(
            "INSERT INTO sample_parts VALUES (?,?,?,?,?)", ((tar_id, *part) for part in scan.parts)
        )

    def _duplicate(self, scan: ShardScan) -> DuplicateKeyError:
        seen: dict[str, int] = {}
        for index, key in enumerate(scan.keys):
            # Rows of this shard before the offending one are in the table already, so ask both.
            row = self._database.execute(
                "SELECT tar_file_id, sample_index FROM samples WHERE sample_key = ?", (key,)
            ).fetchone()
            other = None if row is None else (self._shards[row[0]], row[1])
            if key in seen:
                other = (scan.path, seen[key])
            if other is not None and other != (scan.path, index):
                return DuplicateKeyError(
                    f"the sample key {key!r} appears twice: sample {other[1]} of {other[0]} "
                    f"and sample {index} of {scan.path}",
                    hint="Give every sample of the dataset a key of its own.",
                )
            seen[key] = index
        return DuplicateKeyError("a sample key appears twice", where=scan.path)

    def __enter__(self) -> SqliteWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with closing(self._database):
            if kind is None:
                self._database.executescript(_INDICES)  # commits the rows first


@dataclass(frozen=True, slots=True)
class SampleLocation:
    """Where a sample lies.

    Attributes:
        tar_id: Position of its shard in ``.info.json``.
        index: Number within the shard.
        key: Sample key.
        offset: First byte in the tar.
        size: Length in bytes.
    """

    tar_id: int
    index: int
    key: str
    offset: int
    size: int


class SqliteIndex:
    """Looks up samples and parts; made by :func:`open_sqlite`."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def find(self, key: str) -> SampleLocation | None:
        """The sample of a key, None if there is none."""
        return self._sample("sample_key = ?", key)

    def sample(self, tar_id: int, index: int) -> SampleLocation | None:
        """Sample number ``index`` of a shard, None beyond its end."""
        return self._sample("tar_file_id = ? AND sample_index = ?", tar_id, index)

    def _sample(self, condition: str, *values: int | str) -> SampleLocation | None:
        row = self._database.execute(
            "SELECT tar_file_id, sample_index, sample_key, byte_offset, byte_size "
            f"FROM samples WHERE {condition}",
            values,
        ).fetchone()
        return None if row is None else SampleLocation(*row)

    def parts(self, tar_id: int, index: int) -> dict[str, tuple[int, int]]:
        """Parts of a sample: name to (first payload byte in the tar, size), in tar order."""
        rows = self._database.execute(
            "SELECT part_name, content_byte_offset, content_byte_size FROM sample_parts "
            "WHERE tar_file_id = ? AND sample_index = ? ORDER BY content_byte_offset",
            (tar_id, index),
        )
        return {name: (offset, size) for name, offset, size in rows}


@contextmanager
def sqlite_file(store: Store) -> Iterator[str]:
    """A dataset's index as a local file for the length of the block; a remote one is downloaded.

    Raises:
        NotPreparedError: The dataset has none.
    """
    with tempfile.TemporaryDirectory(prefix="energon-index-") as folder:
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
                "the dataset has no index.sqlite", where=store.url, hint="Run `energon-stream prepare`."
            ) from error
        yield path


@contextmanager
def open_sqlite(store: Store) -> Iterator[SqliteIndex]:
    """Open a dataset's index for the length of the block; a remote one is downloaded to a temporary file.

    Raises:
        NotPreparedError: The dataset has none.
        MetadataError: It is no SQLite database of this schema.
    """
    with (
        sqlite_file(store) as path,
        closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as database,
    ):
        try:
            database.execute("SELECT 1 FROM samples, sample_parts LIMIT 1")
        except sqlite3.DatabaseError as error:
            raise MetadataError(
                f"this is no usable index: {error}", where=f"{store.url}/{INDEX_SQLITE}"
            ) from error
        yield SqliteIndex(database)
