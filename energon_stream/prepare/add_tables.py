"""Writes tables beside the index: :func:`add_table`, :func:`add_media_table`, :func:`remove_table`.

Rows are checked against the index once, here, and written in its order; :mod:`energon_stream.tables.reading`
reads them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from energon_stream.errors import ConfigError, IndexMismatchError
from energon_stream.imports import LazyModule
from energon_stream.index.checksums import digest
from energon_stream.index.guarded_sqlite import IndexConnection, connect_local, damaged_index
from energon_stream.index.info_files import INFO_JSON, parse_info
from energon_stream.index.sqlite_index import INDEX_SQLITE, sqlite_file
from energon_stream.index.yaml_io import read_document
from energon_stream.media.metadata import deserialize_media_metadata, media_fields
from energon_stream.storage import ListEntry, Store, StoreSpec
from energon_stream.tables.reading import (
    GROUP_ROWS,
    KEY,
    TABLE_MARK,
    TABLES_FOLDER,
    list_files,
    open_file,
    table_errors,
)
from energon_stream.temporary_folders import temporary_folder
from energon_stream.urls import is_local

pa: Any = LazyModule("pyarrow", "parquet")
pc: Any = LazyModule("pyarrow.compute", "parquet")
pq: Any = LazyModule("pyarrow.parquet", "parquet")

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_NAMED = 3
_KEYS = "SELECT sample_key FROM samples ORDER BY tar_file_id, sample_index"
_MEDIA = """
SELECT {} FROM samples JOIN sample_parts USING (tar_file_id, sample_index)
JOIN media_metadata ON entry_key = sample_key || '.' || part_name ORDER BY {}
"""


@dataclass(frozen=True, slots=True)
class TableReport:
    """A table of a dataset: result of :func:`add_table`, :func:`add_media_table` and :func:`list_tables`.

    Attributes:
        path: Path of the table, relative to the dataset.
        rows: Number of rows, which is that of the samples.
        columns: Type of each column, as Arrow names it.
        fits: Whether the rows were checked against the present index. Views refuse a table that does not fit.

    Example:
        >>> TableReport(".nv-meta/tables/samples.parquet", 64, {"clip": "double"}).rows
        64
    """

    path: str
    rows: int
    columns: Mapping[str, str]
    fits: bool = True

    @property
    def name(self) -> str:
        """Name of the table."""
        return self.path.rpartition("/")[2].removesuffix(".parquet")


def add_table(
    path: str | os.PathLike[str],
    table: str | os.PathLike[str],
    *,
    name: str = "samples",
    storage_options: Mapping[str, Any] | None = None,
    tmp_path: str | os.PathLike[str] | None = None,
) -> TableReport:
    """Put a table of values beside the index of a prepared dataset, for views.

    A column ``__key__`` names the sample of each row, and rows may be in any order; then all rows are held
    in memory at a time. Without it, rows must be in the order of the index: shard by shard as in
    ``.info.json``. Needs the extra ``parquet``.

    Args:
        path: Folder or URL of the dataset.
        table: Parquet file, local or any fsspec URL, with a row for each sample of all split parts.
        name: Name of the table; one of that name is replaced.
        storage_options: Options of both file systems, such as credentials; not used for a local table.
        tmp_path: Local folder for the table until it is uploaded; None for the system's.

    Raises:
        ConfigError: The name is no name of a file, or another table has a column of the same name.
        IndexMismatchError: The table has other rows than the index has samples.
        MissingPackageError: The extra ``parquet`` is not installed.
        EnergonStreamError: One of the two cannot be read, or the dataset cannot be written.

    Example:
        >>> import pyarrow, pyarrow.parquet
        >>> from energon_stream import add_table
        >>> pyarrow.parquet.write_table(pyarrow.table({"clip": [n / 64 for n in range(64)]}), "clip.parquet")
        >>> add_table("captions", "clip.parquet")
        TableReport(path='.nv-meta/tables/samples.parquet', rows=64, columns={'clip': 'double'}, fits=True)
    """
    target = _target(name)
    spec, place = StoreSpec(os.fspath(path), storage_options), os.fspath(table)
    source = StoreSpec(place, None if is_local(place) else storage_options)
    store, info, counts = _info(spec)
    rows, samples = source.open(), sum(counts)
    entry = ListEntry("", rows.head(""))
    with table_errors(rows.url):
        file = open_file(source, rows, entry)
        schema = file.schema_arrow
        columns = [column for column in schema.names if column != KEY]
    if file.metadata.num_rows != samples:
        raise IndexMismatchError(
            f"the table has {file.metadata.num_rows:,} rows, and the index has {samples:,} samples",
            where=rows.url,
            hint="give the table one row for each sample of all split parts",
        )
    if not columns or len(set(schema.names)) < len(schema.names):
        raise ConfigError(
            f"the table has the columns {schema.names}", where=rows.url, hint="name each column once"
        )
    kept = pa.schema([schema.field(column) for column in columns])
    with temporary_folder(tmp_path) as folder, table_errors(rows.url):
        parts = _copied(file, kept)
        if KEY in schema.names:
            found = file.read(use_threads=False)
            order = _order(store, found.column(KEY), rows.url, folder)
            parts = (
                found.select(columns).take(order.slice(first, GROUP_ROWS))
                for first in range(0, samples, GROUP_ROWS)
            )
        return _write(spec, store, info, target, kept, parts, folder)


def add_media_table(
    path: str | os.PathLike[str],
    *,
    name: str = "media",
    storage_options: Mapping[str, Any] | None = None,
    tmp_path: str | os.PathLike[str] | None = None,
) -> TableReport:
    """Make a table of the media metadata in the index, so that views can choose by size and length.

    A column is named after the part and the field: ``jpg_width``, ``mp4_video_duration``. Signs that no name
    has become ``_``. Samples without such a part have null. Needs the extra ``parquet``.

    Args:
        path: Folder or URL of a dataset that was prepared with media metadata.
        name: Name of the table; one of that name is replaced.
        storage_options: Options of its file system, such as credentials.
        tmp_path: Local folder for the table until it is uploaded; None for the system's.

    Raises:
        ConfigError: The index has no media metadata, the name is no name of a file, or another table has a
            column of the same name.
        MissingPackageError: The extra ``parquet`` is not installed.
        EnergonStreamError: The index cannot be read, or the dataset cannot be written.

    Example:
        >>> from energon_stream import add_media_table
        >>> from energon_stream.prepare.media_headers import MediaFilter
        >>> from energon_stream.prepare.media_tables import prepare_media
        >>> report = prepare_media("captions", MediaFilter("EXTENSION"))
        >>> add_media_table("captions").columns["jpg_width"]
        'int64'
    """
    target = _target(name)
    spec = StoreSpec(os.fspath(path), storage_options)
    store, info, counts = _info(spec)
    with (
        temporary_folder(tmp_path) as folder,
        sqlite_file(store, folder) as file,
        closing(connect_local(file, where := f"{store.url}/{INDEX_SQLITE}")) as index,
    ):
        of_parts = _MEDIA.format("DISTINCT part_name, metadata_type", "1, 2")
        kinds = [*index.select(of_parts)] if index.has_table("media_metadata") else []
        if not kinds:
            raise ConfigError(
                "the index has no media metadata",
                where=store.url,
                hint=f"run `energon-stream prepare-media {store.url} --media-metadata-by-extension`",
            )
        types = {"int": pa.int64(), "float": pa.float64(), "str": pa.string()}
        schema = pa.schema(
            [
                (_column(part, field), types[annotation.split()[0]])
                for part, kind in kinds
                for field, annotation in media_fields(kind).items()
            ]
        )
        if len(set(schema.names)) < len(schema.names):
            raise ConfigError(
                f"parts have names that differ in signs only: {', '.join(part for part, _ in kinds)}",
                where=store.url,
                hint="make a table of your own, and add it with add_table",
            )
        with table_errors(store.url):
            return _write(
                spec, store, info, target, schema, _media_rows(index, counts, schema, where), folder
            )


def list_tables(
    path: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None
) -> tuple[TableReport, ...]:
    """List the tables of a prepared dataset, and say which of them fit its index.

    Args:
        path: Folder or URL of the dataset.
        storage_options: Options of its file system, such as credentials.

    Raises:
        MissingPackageError: The extra ``parquet`` is not installed.
        MetadataError: A table cannot be read.
        EnergonStreamError: The dataset cannot be read.

    Example:
        >>> from energon_stream import list_tables
        >>> list_tables("captions")
        ()
    """
    spec = StoreSpec(os.fspath(path), storage_options)
    store, info, counts = _info(spec)
    found = []
    for entry in list_files(store):
        with table_errors(f"{store.url}/{entry.path}"):
            file = open_file(spec, store, entry)
            rows, columns = file.metadata.num_rows, file.schema_arrow
        fits = rows == sum(counts) and (columns.metadata or {}).get(TABLE_MARK) == _mark(info)
        found.append(TableReport(entry.path, rows, _types(columns), fits))
    return tuple(found)


def remove_table(
    path: str | os.PathLike[str], name: str, *, storage_options: Mapping[str, Any] | None = None
) -> None:
    """Remove a table of a prepared dataset.

    Args:
        path: Folder or URL of the dataset.
        name: Name of the table.
        storage_options: Options of its file system, such as credentials.

    Raises:
        ConfigError: The dataset has no such table.
        EnergonStreamError: The dataset cannot be read or written.

    Example:
        >>> import pyarrow, pyarrow.parquet
        >>> from energon_stream import add_table, list_tables, remove_table
        >>> pyarrow.parquet.write_table(pyarrow.table({"clip": [n / 64 for n in range(64)]}), "clip.parquet")
        >>> name = add_table("captions", "clip.parquet").name
        >>> remove_table("captions", name)
        >>> list_tables("captions")
        ()
    """
    target, store = _target(name), StoreSpec(os.fspath(path), storage_options).open()
    known = [entry.path for entry in list_files(store)]
    if target not in known:
        names = ", ".join(each.rpartition("/")[2].removesuffix(".parquet") for each in known)
        raise ConfigError(
            f"there is no table {name!r}",
            where=f"{store.url}/{TABLES_FOLDER}",
            hint=f"the tables are {names}" if known else "the dataset has no tables",
        )
    store.delete(target)


def _target(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"the name of the table is {name!r:.80}", hint="use letters, digits, '_', '-' and '.'"
        )
    return f"{TABLES_FOLDER}/{name}.parquet"


def _info(spec: StoreSpec) -> tuple[Store, memoryview, list[int]]:
    """Return a dataset's store, the content of ``.info.json``, and the samples of each shard."""
    store = spec.open()
    info = read_document(INFO_JSON, store).data
    return store, info, list(parse_info(info, f"{store.url}/{INFO_JSON}").values())


def _mark(info: memoryview) -> bytes:
    return json.dumps({"version": 1, "info": f"{digest(info):016x}"}).encode()


def _types(schema: Any) -> dict[str, str]:
    return {field.name: str(field.type) for field in schema}


def _write(
    spec: StoreSpec,
    store: Store,
    info: memoryview,
    target: str,
    schema: Any,
    parts: Iterable[Any],
    folder: str,
) -> TableReport:
    """Write a table of parts with ``GROUP_ROWS`` rows each, but for the last."""
    for other in (found for found in list_files(store) if found.path != target):
        twice = set(schema.names) & set(open_file(spec, store, other).schema_arrow.names)
        if twice:
            name = other.path.rpartition("/")[2].removesuffix(".parquet")
            raise ConfigError(
                f"the table {other.path} has a column {min(twice)!r}, too",
                where=store.url,
                hint=f"rename the column, or replace that table by name={name}",
            )
    local, rows = os.path.join(folder, "table.parquet"), 0
    kept = schema.with_metadata({TABLE_MARK: _mark(info)})
    texts = [field.name for field in kept if pa.types.is_string(field.type)]
    with pq.ParquetWriter(local, kept, compression="lz4", use_dictionary=texts) as writer:
        for part in parts:
            writer.write_table(part.cast(kept), row_group_size=GROUP_ROWS)
            rows += part.num_rows
    store.put_file(target, local, move=True)
    return TableReport(target, rows, _types(kept))


def _copied(file: Any, schema: Any) -> Iterator[Any]:
    """Yield the rows of a file in groups of ``GROUP_ROWS``."""
    waiting, count = [], 0
    for batch in file.iter_batches(GROUP_ROWS, columns=schema.names, use_threads=False):
        waiting.append(batch.select(schema.names))
        count += batch.num_rows
        if count >= GROUP_ROWS:
            table = pa.Table.from_batches(waiting)
            yield table.slice(0, GROUP_ROWS)
            waiting, count = table.slice(GROUP_ROWS).to_batches(), count - GROUP_ROWS
    if count:
        yield pa.Table.from_batches(waiting)


def _column(part: str, field: str) -> str:
    return re.sub(r"\W", "_", f"{part}_{field}")


def _media_rows(index: IndexConnection, counts: Sequence[int], schema: Any, where: str) -> Iterator[Any]:
    """Yield the media metadata of all samples in groups of ``GROUP_ROWS``."""
    starts = [0, *accumulate(counts)]
    wanted = "tar_file_id, sample_index, part_name, metadata_type, metadata_json"
    rows = index.select(_MEDIA.format(wanted, "1, 2"))
    row = next(rows, None)
    for first in range(0, starts[-1], GROUP_ROWS):
        length = min(GROUP_ROWS, starts[-1] - first)
        values: dict[str, list[Any]] = {name: [None] * length for name in schema.names}
        while row is not None:
            if row[0] >= len(counts) or row[1] >= counts[row[0]]:
                raise damaged_index(where, f"it has sample {row[1]} of tar {row[0]}")
            number = starts[row[0]] + row[1] - first
            if number >= length:
                break
            for field, value in deserialize_media_metadata(*row[3:]).to_dict().items():
                values[_column(row[2], field)][number] = value
            row = next(rows, None)
        yield pa.table(values, schema=schema)


def _order(store: Store, keys: Any, where: str, folder: str) -> Any:
    """Return the row of each sample, in the order of the index."""
    keys = keys.combine_chunks()
    if pc.count_distinct(keys).as_py() < len(keys):
        counted = pc.value_counts(keys)
        twice = counted.filter(pc.greater(counted.field("counts"), 1)).field("values")[:_NAMED].to_pylist()
        raise IndexMismatchError(f"{KEY} has values twice: {twice}", where=where, hint="keep one row of each")
    with (
        sqlite_file(store, folder) as path,
        closing(connect_local(path, f"{store.url}/{INDEX_SQLITE}")) as index,
    ):
        wanted = pa.array((key for (key,) in index.select(_KEYS)), keys.type)
    order = pc.index_in(wanted, value_set=keys)
    if order.null_count:
        missing = wanted.filter(pc.is_null(order))[:_NAMED].to_pylist()
        raise IndexMismatchError(
            f"the table has no row for {order.null_count:,} samples, such as {missing}",
            where=where,
            hint=f"give it a row for each sample, whose {KEY} is the sample's key in index.sqlite",
        )
    return order
