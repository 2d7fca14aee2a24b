"""``index.sqlite`` and join indices, under Megatron-Energon's names."""

from __future__ import annotations

import posixpath
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from energon_stream.errors import ConfigError, DuplicateKeyError, IndexMismatchError
from energon_stream.imports import LazyModule
from energon_stream.index.guarded_sqlite import connect_local
from energon_stream.index.remote_sqlite import RemoteDatabase, RemoteFile
from energon_stream.index.sqlite_index import SAMPLE_INDICES, SAMPLE_TABLES
from energon_stream.media.file_store import unknown_name
from energon_stream.prepare.media_tables import MEDIA_TABLES
from energon_stream.storage import StoreSpec

if TYPE_CHECKING:
    from energon_stream.compat.epath import EPath

torch: Any = LazyModule("torch")


class Closing:
    """Base of what is used in a ``with`` block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release what is held."""


@dataclass(kw_only=True, slots=True)
class ITarSamplePointer:
    """Place of a sample: number of its tar, first byte, and size."""

    tar_file_id: int
    byte_offset: int
    byte_size: int


@dataclass(kw_only=True, slots=True)
class ITarRawSamplePartPointer:
    """Place of a part's bytes: number of the tar, first byte, and size."""

    tar_file_id: int
    raw_byte_offset: int
    raw_byte_size: int


_PART = "sample_key || '.' || part_name, content_byte_size, tar_file_id"


class SqliteIndexReader(Closing):
    """An ``index.sqlite``. A remote one is read in ranges."""

    def __init__(self, sqlite_path: EPath) -> None:
        self.sqlite_path = sqlite_path
        if sqlite_path.is_local():
            self._connection = connect_local(str(sqlite_path.local_path()), str(sqlite_path))
        else:
            folder, name = posixpath.split(sqlite_path.url)
            remote = RemoteDatabase(RemoteFile(StoreSpec(folder).open(), name))
            self._connection = remote.connect(str(sqlite_path))

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _one(self, name: str, query: str, *values: Any) -> Any:
        for row in self._connection.select(query, *values):
            return row
        raise unknown_name(name, str(self.sqlite_path))

    def db_has_sample_parts(self) -> bool:
        """Return True if the index has the places of parts."""
        return self._connection.has_table("sample_parts")

    def db_has_media_metadata(self) -> bool:
        """Return True if the index has media metadata."""
        return self._connection.has_table("media_metadata")

    def get_sample_count(self) -> int:
        """Return the number of samples."""
        return int(next(self._connection.select("SELECT count(1) FROM samples"))[0])

    def get_total_size(self) -> int:
        """Return the size of all samples in bytes, with the headers of their members."""
        return int(next(self._connection.select("SELECT coalesce(sum(byte_size), 0) FROM samples"))[0])

    def list_all_samples(self) -> Iterator[tuple[str, int, int]]:
        """Iterate over key, size and number of the tar of all samples."""
        return self._connection.select(
            "SELECT sample_key, byte_size, tar_file_id FROM samples ORDER BY rowid"
        )

    def list_all_sample_parts(self) -> Iterator[tuple[str, int, int]]:
        """Iterate over name, size and number of the tar of all parts."""
        return self._connection.select(
            f"SELECT {_PART} FROM sample_parts JOIN samples USING (tar_file_id, sample_index) "
            "ORDER BY tar_file_id, sample_index, content_byte_offset"
        )

    def list_sample_parts(self, sample_key: str) -> Iterator[tuple[str, int, int]]:
        """Iterate over name, size and number of the tar of a sample's parts."""
        return self._connection.select(
            "SELECT part_name, content_byte_size, tar_file_id FROM samples JOIN sample_parts "
            "USING (tar_file_id, sample_index) WHERE sample_key = ? ORDER BY content_byte_offset",
            sample_key,
        )

    def get_sample_pointer_by_key(self, key: str) -> ITarSamplePointer:
        """Return the place of a sample. Raises FieldError if there is none."""
        query = "SELECT tar_file_id, byte_offset, byte_size FROM samples WHERE sample_key = ?"
        tar, offset, size = self._one(key, query, key)
        return ITarSamplePointer(tar_file_id=tar, byte_offset=offset, byte_size=size)

    def get_sample_part(self, key: str, part_name: str) -> ITarRawSamplePartPointer:
        """Return the place of a part's bytes. Raises FieldError if there is none."""
        tar, offset, size = self._one(
            f"{key}.{part_name}",
            "SELECT tar_file_id, content_byte_offset, content_byte_size FROM samples JOIN sample_parts "
            "USING (tar_file_id, sample_index) WHERE sample_key = ? AND part_name = ?",
            key,
            part_name,
        )
        return ITarRawSamplePartPointer(tar_file_id=tar, raw_byte_offset=offset, raw_byte_size=size)

    def get_media_metadata(self, entry_key: str) -> tuple[str, str] | None:
        """Return kind and JSON text of a file's media metadata; None if the index does not know the file."""
        query = "SELECT metadata_type, metadata_json FROM media_metadata WHERE entry_key = ?"
        return next(self._connection.select(query, entry_key), None)


@dataclass(kw_only=True, slots=True)
class IndexSample:
    """A row of the table of samples."""

    tar_file_id: int
    sample_key: str
    sample_index: int
    byte_offset: int
    byte_size: int


@dataclass(kw_only=True, slots=True)
class IndexSamplePart:
    """A row of the table of parts."""

    tar_file_id: int
    sample_index: int
    part_name: str
    content_byte_offset: int
    content_byte_size: int


@dataclass(kw_only=True, slots=True)
class IndexMediaMetadata:
    """A row of the table of media metadata."""

    entry_key: str
    metadata_type: str
    metadata_json: str


class SqliteIndexWriter(Closing):
    """Writes a local ``index.sqlite``. Without ``reset_tables``, it adds to the tables that are there.

    Raises ConfigError if the path is remote.

    Example:
        >>> from energon_stream.compat.epath import EPath
        >>> with SqliteIndexWriter(EPath("new.sqlite")) as index:
        ...     index.append_samples(
        ...         [IndexSample(tar_file_id=0, sample_key="a", sample_index=0, byte_offset=0, byte_size=9)]
        ...     )
        >>> SqliteIndexReader(EPath("new.sqlite")).get_sample_count()
        1
    """

    def __init__(
        self,
        sqlite_path: EPath,
        *,
        enable_sample_tables: bool = True,
        enable_media_metadata: bool = False,
        reset_tables: bool = True,
    ) -> None:
        if not sqlite_path.is_local():
            hint = "write it to local disk, and copy it: EPath.copy()"
            raise ConfigError("an index can be written locally only", where=str(sqlite_path), hint=hint)
        self._samples, self._reset = enable_sample_tables, reset_tables
        path = sqlite_path.local_path()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._database = sqlite3.connect(path)
        if enable_sample_tables:
            self._make(("samples", "sample_parts"), SAMPLE_TABLES)
        if enable_media_metadata:
            self._make(("media_metadata", "media_filters"), MEDIA_TABLES)

    def _make(self, tables: Sequence[str], script: str) -> None:
        if self._reset:
            for table in tables:
                self._database.execute(f"DROP TABLE IF EXISTS {table}")
        have = self._database.execute("SELECT name FROM sqlite_master").fetchall()
        if (tables[0],) not in have:
            self._database.executescript(script)

    def _append(self, table: str, rows: Sequence[Any]) -> None:
        if rows:
            marks = ", ".join("?" * len(astuple(rows[0])))
            self._database.executemany(f"INSERT INTO {table} VALUES ({marks})", map(astuple, rows))

    def append_samples(self, rows: Sequence[IndexSample]) -> None:
        """Add samples. Raises DuplicateKeyError if two share a key."""
        try:
            self._append("samples", rows)
        except sqlite3.IntegrityError as error:
            keys = [row.sample_key for row in rows]
            raise DuplicateKeyError("a sample key appears twice", where=f"{keys[0]} … {keys[-1]}") from error

    def append_parts(self, rows: Sequence[IndexSamplePart]) -> None:
        """Add parts."""
        self._append("sample_parts", rows)

    def append_media_metadata_batch(self, rows: Sequence[IndexMediaMetadata]) -> None:
        """Add media metadata; it replaces that of the same files."""
        self._append("media_metadata", rows)

    def append_media_filter(self, *, strategy: str, patterns: str | None) -> None:
        """Add a media filter."""
        values = (strategy, patterns)
        self._database.execute(
            "INSERT OR IGNORE INTO media_filters (strategy, patterns) VALUES (?, ?)", values
        )

    def close(self) -> None:
        """Write what was added, and close the file."""
        with closing(self._database):
            self._database.commit()
            if self._samples and self._reset:
                self._database.executescript(SAMPLE_INDICES)


_MAGIC = b"JIDX0001"
_HEADER = 16


class JoinIndexReader(Closing):
    """The index of a join, for all its datasets or those of one ``column``. It is read whole.

    Raises IndexMismatchError if the file is not such an index.
    """

    def __init__(self, join_index_path: EPath, column: int | None = None) -> None:
        data = join_index_path.read_bytes()
        columns = int.from_bytes(data[8:_HEADER], "little")
        if data[:8] != _MAGIC or not columns or (len(data) - _HEADER) % (24 * columns):
            raise IndexMismatchError("the file is not the index of a join", where=str(join_index_path))
        rows = np.frombuffer(data, dtype="<i8", offset=_HEADER).reshape(-1, columns, 3)
        self._rows = rows if column is None else rows[:, column : column + 1]
        self._row = 0

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, idx: int) -> list[tuple[int, int, int]]:
        return [tuple(place) for place in self._rows[idx].tolist()]

    def __iter__(self) -> Iterator[list[tuple[int, int, int]]]:
        return self

    def __next__(self) -> list[tuple[int, int, int]]:
        if self._row >= len(self):
            raise StopIteration
        self._row += 1
        return self[self._row - 1]

    def tell_row(self) -> int:
        """Return the number of the row that comes next."""
        return self._row

    def get_as_tensor(self) -> Any:
        """Return all rows as an integer tensor of shape ``[rows, datasets, 3]``."""
        return torch.from_numpy(self._rows.astype(np.int64))
