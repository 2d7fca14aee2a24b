"""Tables beside the index: ``.nv-meta/tables/NAME.parquet``, a row for each sample in the order of
``.info.json``.

:func:`add_table` checks rows against the index and writes them in that order, with the hash of
``.info.json``, so that a table of an earlier preparation is not used. :func:`open_tables` reads a few
columns by row groups.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from energon_stream.errors import ConfigError, EnergonStreamError, IndexMismatchError, MetadataError
from energon_stream.imports import LazyModule
from energon_stream.index.checksums import digest
from energon_stream.index.in_order import ordered_map
from energon_stream.index.metadata import INFO_JSON, META_FOLDER, parse_info
from energon_stream.index.sqlite_index import sqlite_file, temporary_folder
from energon_stream.index.store_file import StoreFile
from energon_stream.index.yaml_io import read_document
from energon_stream.storage import ListEntry, Store, StoreSpec
from energon_stream.urls import is_local, local_path

if TYPE_CHECKING:
    from types import ModuleType

    from energon_stream.arrays import Float64Array
    from energon_stream.index.expressions import Filter
    from energon_stream.selection import Bits

pa: ModuleType | Any = LazyModule("pyarrow", "parquet")
pc: ModuleType | Any = LazyModule("pyarrow.compute", "parquet")
pq: ModuleType | Any = LazyModule("pyarrow.parquet", "parquet")

TABLES_FOLDER = f"{META_FOLDER}/tables"
KEY = "__key__"
_MARK = b"energon_stream.table"
_GROUP_ROWS = 1 << 18  # a column of a group is about a megabyte, and one request; a multiple of 8
_READERS = 4  # row groups at a time: they bound the memory
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_NAMED = 3
_KEYS = "SELECT sample_key FROM samples ORDER BY tar_file_id, sample_index"
_ADD = "call add_table with a file that has a row for each sample"


@dataclass(frozen=True, slots=True)
class TableReport:
    """Result of :func:`add_table`.

    Attributes:
        path: Path of the table, relative to the dataset.
        rows: Number of rows, which is that of the samples.
        columns: Type of each column, as Arrow names it.

    Example:
        >>> TableReport(".nv-meta/tables/samples.parquet", 64, {"clip": "double"}).rows
        64
    """

    path: str
    rows: int
    columns: Mapping[str, str]


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
        storage_options: Credentials and the like for the file system of both.
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
        TableReport(path='.nv-meta/tables/samples.parquet', rows=64, columns={'clip': 'double'})
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"the name of the table is {name!r:.80}", hint="use letters, digits, '_', '-' and '.'"
        )
    spec, source = StoreSpec(os.fspath(path), storage_options), StoreSpec(os.fspath(table), storage_options)
    store, info = _info(spec)
    samples = sum(parse_info(info, f"{store.url}/{INFO_JSON}").values())
    rows = source.open()
    entry = ListEntry("", rows.head(""))
    target = f"{TABLES_FOLDER}/{name}.parquet"
    with _table_errors(rows.url):
        file = _open(source, rows, entry)
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
    for other in (found for found in _list(store) if found.path != target):
        twice = set(columns) & set(_open(spec, store, other).schema_arrow.names)
        if twice:
            raise ConfigError(
                f"the table {other.path} has a column {min(twice)!r}, too",
                where=store.url,
                hint=f"rename the column, or replace that table by --name {_name(other)}",
            )
    about = json.dumps({"version": 1, "info": f"{digest(info):016x}"}).encode()
    with temporary_folder(tmp_path) as folder, _table_errors(rows.url):
        local = os.path.join(folder, "table.parquet")
        kept = pa.schema([schema.field(column) for column in columns], {_MARK: about})
        texts = [field.name for field in kept if pa.types.is_string(field.type)]
        with pq.ParquetWriter(local, kept, compression="lz4", use_dictionary=texts) as writer:
            if KEY in schema.names:
                found = file.read(use_threads=False)
                order = _order(store, found.column(KEY), rows.url, folder)
                for first in range(0, samples, _GROUP_ROWS):
                    part = found.select(columns).take(order.slice(first, _GROUP_ROWS)).cast(kept)
                    writer.write_table(part, row_group_size=_GROUP_ROWS)
            else:
                _copy(file, writer, columns, kept)
        store.put_file(target, local, move=True)
    return TableReport(target, samples, {field.name: str(field.type) for field in kept})


def _info(spec: StoreSpec) -> tuple[Store, memoryview]:
    store = spec.open()
    return store, read_document(INFO_JSON, store).data


def _copy(file: Any, writer: Any, columns: Sequence[str], schema: Any) -> None:
    """Copy rows in groups of ``_GROUP_ROWS``."""
    waiting, count = [], 0
    for batch in file.iter_batches(_GROUP_ROWS, columns=list(columns), use_threads=False):
        waiting.append(batch.select(columns))
        count += batch.num_rows
        if count >= _GROUP_ROWS:
            table = pa.Table.from_batches(waiting).cast(schema)
            writer.write_table(table.slice(0, _GROUP_ROWS), row_group_size=_GROUP_ROWS)
            waiting, count = table.slice(_GROUP_ROWS).to_batches(), count - _GROUP_ROWS
    if count:
        writer.write_table(pa.Table.from_batches(waiting).cast(schema), row_group_size=_GROUP_ROWS)


def _order(store: Store, keys: Any, where: str, folder: str) -> Any:
    """Return the row of each sample, in the order of the index."""
    import sqlite3
    from contextlib import closing

    keys = keys.combine_chunks()
    if pc.count_distinct(keys).as_py() < len(keys):
        counted = pc.value_counts(keys)
        twice = counted.filter(pc.greater(counted.field("counts"), 1)).field("values")[:_NAMED].to_pylist()
        raise IndexMismatchError(f"{KEY} has values twice: {twice}", where=where, hint="keep one row of each")
    with (
        sqlite_file(store, folder) as path,
        closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as index,
    ):
        wanted = pa.array((key for (key,) in index.execute(_KEYS)), keys.type)
    order = pc.index_in(wanted, value_set=keys)
    if order.null_count:
        missing = wanted.filter(pc.is_null(order))[:_NAMED].to_pylist()
        raise IndexMismatchError(
            f"the table has no row for {order.null_count:,} samples, such as {missing}",
            where=where,
            hint=f"give it a row for each sample, whose {KEY} is the sample's key in index.sqlite",
        )
    return order


def _name(entry: ListEntry) -> str:
    return entry.path.rpartition("/")[2].removesuffix(".parquet")


def _list(store: Store) -> list[ListEntry]:
    return [entry for entry in store.list(TABLES_FOLDER) if entry.path.endswith(".parquet")]


def _open(spec: StoreSpec, store: Store, entry: ListEntry, metadata: Any = None) -> Any:
    if is_local(spec.url):
        path = os.path.join(local_path(store.url), entry.path) if entry.path else local_path(store.url)
        return pq.ParquetFile(path, metadata=metadata, memory_map=True, pre_buffer=False)
    file = StoreFile(store, entry.path, entry.meta.size, entry.meta.etag)
    return pq.ParquetFile(file, metadata=metadata, pre_buffer=False)


@contextmanager
def _table_errors(where: str) -> Iterator[None]:
    """Give Arrow's errors a name."""
    try:
        yield
    except EnergonStreamError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise MetadataError(
            f"the table cannot be read: {' '.join(str(error).split()):.200}",
            where=where,
            hint="a table is a Parquet file; write it again",
        ) from error


@dataclass(frozen=True)
class Tables:
    """The tables of a dataset. Use :func:`open_tables`.

    Attributes:
        spec: Location of the dataset.
        store: Its store.
        samples: Number of samples of the whole dataset.
        info: Hash of ``.info.json``.
        entries: The tables.
    """

    spec: StoreSpec
    store: Store
    samples: int
    info: int
    entries: tuple[ListEntry, ...]
    _files: dict[str, Any] = field(default_factory=dict, init=False)

    @property
    def versions(self) -> tuple[str, ...] | None:
        """Path, size and version of each table; None if the store reports no versions."""
        if any(entry.meta.etag is None for entry in self.entries):
            return None
        return tuple(f"{entry.path} {entry.meta.size} {entry.meta.etag}" for entry in self.entries)

    def groups(
        self, condition: Filter | None, without: str | None, weight: str | None
    ) -> Iterator[tuple[Bits, Float64Array | None]]:
        """Yield for each group of 2¹⁸ rows which of them pass, packed, and the weights of those.

        Args:
            condition: Rows that pass it are selected; None for all.
            without: Column of truth values; rows that are true are left out.
            weight: Column of the weights; None for none.

        Raises:
            ConfigError: A column does not exist, or has a type that does not fit; a weight is NaN or
            negative. IndexMismatchError: A table has other rows than the index has samples.
        """
        columns = [*(condition.columns if condition else ()), *(name for name in (without, weight) if name)]
        places = {column: self._place(column) for column in dict.fromkeys(columns)}
        self._evaluate(
            {c: pa.array([], self._type(c, e)) for c, e in places.items()}, condition, without, weight, 0
        )
        by_table: dict[ListEntry, list[str]] = {}
        for column, entry in places.items():
            by_table.setdefault(entry, []).append(column)
        metadata = {entry: self._file(entry).metadata for entry in by_table}

        def read(group: int) -> tuple[Bits, Float64Array | None]:
            values = {}
            for entry, names in by_table.items():
                with _table_errors(f"{self.store.url}/{entry.path}"):
                    file = _open(self.spec, self.store, entry, metadata[entry])
                    found = file.read_row_group(group, columns=names, use_threads=False)
                    values.update({name: found.column(name).combine_chunks() for name in names})
            return self._evaluate(values, condition, without, weight, group * _GROUP_ROWS)

        yield from ordered_map(read, range(-(-self.samples // _GROUP_ROWS)), _READERS)

    def column(self, name: str) -> Any:
        """Read a column as an array, one value for each sample. Raises what :meth:`groups` does."""
        entry = self._place(name)
        with _table_errors(f"{self.store.url}/{entry.path}"):
            return self._file(entry).read(columns=[name], use_threads=False).column(name).to_numpy()

    def _evaluate(
        self,
        values: Mapping[str, Any],
        condition: Filter | None,
        without: str | None,
        weight: str | None,
        first: int,
    ) -> tuple[Bits, Float64Array | None]:
        length = len(next(iter(values.values())))
        found = np.ones(length, dtype=np.bool_)
        if condition is not None:
            passing = condition.evaluate({name: values[name] for name in condition.columns})
            found = passing.fill_null(False).to_numpy(zero_copy_only=False)
        if without is not None:
            if not pa.types.is_boolean(values[without].type):
                raise self._unfit(without, values, "exclude", "true and false")
            found = found & ~values[without].fill_null(False).to_numpy(zero_copy_only=False)
        weights = None
        if weight is not None:
            kind = values[weight].type
            if not (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
                raise self._unfit(weight, values, "weight_by", "numbers")
            weights = values[weight].cast(pa.float64()).to_numpy(zero_copy_only=False)  # null becomes NaN
            wrong = np.flatnonzero(found & ~((weights >= 0) & np.isfinite(weights)))
            if len(wrong):
                raise ConfigError(
                    f"the weight of sample {first + int(wrong[0])} is {weights[wrong[0]]} in weight_by: {weight}",
                    where=self._where(weight),
                    hint=f"weights are numbers ≥ 0; leave such samples out by where: {weight} >= 0, or correct them",
                )
            weights = weights[found]
        return np.packbits(found, bitorder="little"), weights

    def _unfit(self, column: str, values: Mapping[str, Any], option: str, wanted: str) -> ConfigError:
        what = f"{option} names the column {column!r}, which is {values[column].type}"
        return ConfigError(what, where=self._where(column), hint=f"name a column of {wanted}")

    def _where(self, column: str) -> str:
        return f"{self.store.url}/{self._place(column).path}"

    def _type(self, column: str, entry: ListEntry) -> Any:
        return self._file(entry).schema_arrow.field(column).type

    def _place(self, column: str) -> ListEntry:
        """Return the table that has a column."""
        found = [entry for entry in self.entries if column in self._file(entry).schema_arrow.names]
        if len(found) == 1:
            return found[0]
        if found:
            raise MetadataError(
                f"the column {column!r} is in two tables",
                where=f"{self.store.url}/{TABLES_FOLDER}",
                hint=f"remove {found[0].path} or {found[1].path}, or add one of them again with another column",
            )
        known = [name for entry in self.entries for name in self._file(entry).schema_arrow.names]
        raise ConfigError(
            f"no table of the dataset has a column {column!r}",
            where=f"{self.store.url}/{TABLES_FOLDER}",
            hint=f"the tables have {', '.join(known)}" if known else "add a table with add_table",
        )

    def _file(self, entry: ListEntry) -> Any:
        """Open a table, and check that it is of this index."""
        if entry.path not in self._files:
            where = f"{self.store.url}/{entry.path}"
            with _table_errors(where):
                file = _open(self.spec, self.store, entry)
                mark = (file.schema_arrow.metadata or {}).get(_MARK)
                about = json.loads(mark) if mark else {}
            rows = file.metadata.num_rows
            if not mark:
                raise IndexMismatchError(
                    "nobody checked the rows of this table against the index",
                    where=where,
                    hint="put the file elsewhere, and add it with add_table",
                )
            if about.get("info") != f"{self.info:016x}":
                raise IndexMismatchError(
                    f"the table is older than the index: it has {rows:,} rows of another .info.json, and the index has "
                    f"{self.samples:,} samples",
                    where=where,
                    hint=f"the dataset was prepared again, or grew; {_ADD}",
                )
            groups = [
                file.metadata.row_group(number).num_rows for number in range(file.metadata.num_row_groups)
            ]
            if rows != self.samples or any(size != _GROUP_ROWS for size in groups[:-1]):
                raise IndexMismatchError(
                    f"the table has {rows:,} rows, and the index has {self.samples:,} samples",
                    where=where,
                    hint=_ADD,
                )
            self._files[entry.path] = file
        return self._files[entry.path]


def read_column(spec: StoreSpec, name: str) -> Any:
    """Read a column of the tables of a dataset. Raises what :meth:`Tables.groups` does."""
    store, info = _info(spec)
    samples = sum(parse_info(info, f"{store.url}/{INFO_JSON}").values())
    return open_tables(spec, samples, digest(info)).column(name)


def read_file_column(table: StoreSpec, name: str) -> Any:
    """Read a column of a Parquet file whose rows are in the order of the samples.

    Raises ConfigError if there is no such column, or the rows may be in another order.
    """
    store = table.open()
    with _table_errors(store.url):
        file = _open(table, store, ListEntry("", store.head("")))
        names = file.schema_arrow.names
        if name not in names:
            what = f"the table has no column {name!r}"
            raise ConfigError(what, where=store.url, hint=f"it has {', '.join(names)}")
        if KEY in names:
            what = f"rows of a table with a column {KEY} may be in any order"
            raise ConfigError(what, where=store.url, hint="use add_table, then its column without the file")
        return file.read(columns=[name], use_threads=False).column(name).to_numpy()


def open_tables(spec: StoreSpec, samples: int, info: int) -> Tables:
    """List the tables of a dataset of so many samples; ``info`` is the hash of ``.info.json``. One
    request."""
    store = spec.open()
    return Tables(spec, store, samples, info, tuple(_list(store)))
