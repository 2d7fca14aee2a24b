"""Tables beside the index: ``.nv-meta/tables/NAME.parquet``, a row for each sample in the order of
``.info.json``.

:mod:`energon_stream.prepare.add_tables` checks rows against the index and writes them in that order, with the
hash of ``.info.json``, so that a table of an earlier preparation is not used. :func:`open_tables` reads a few
columns by row groups.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from energon_stream.errors import (
    ConfigError,
    EnergonStreamError,
    IndexMismatchError,
    LimitError,
    MetadataError,
)
from energon_stream.imports import LazyModule
from energon_stream.index.checksums import digest
from energon_stream.index.info_files import INFO_JSON, META_FOLDER, parse_info
from energon_stream.index.yaml_io import read_document
from energon_stream.limits import Limits
from energon_stream.media.seekable import StoreFile
from energon_stream.storage import ListEntry, Store, StoreSpec
from energon_stream.storage.in_order import ordered_map
from energon_stream.urls import is_local, local_path

if TYPE_CHECKING:
    from energon_stream.arrays import Float64Array
    from energon_stream.selection import Bits
    from energon_stream.tables.expressions import Expression

pa: Any = LazyModule("pyarrow", "parquet")
pc: Any = LazyModule("pyarrow.compute", "parquet")
pq: Any = LazyModule("pyarrow.parquet", "parquet")

KEY = "__key__"  # column of a table that names the samples of its rows
TABLES_FOLDER = f"{META_FOLDER}/tables"
TABLE_MARK = b"energon_stream.table"  # key of the file's metadata that says of which index the rows are
GROUP_ROWS = 1 << 18  # rows of a group, of which a column is a request of about a megabyte; a multiple of 8
_READERS = 4  # row groups at a time: they bound the memory
_ADD = "call add_table with a file that has a row for each sample"


def list_files(store: Store) -> list[ListEntry]:
    """List the tables of a dataset."""
    return [entry for entry in store.list(TABLES_FOLDER) if entry.path.endswith(".parquet")]


def open_file(
    spec: StoreSpec, store: Store, entry: ListEntry, metadata: Any = None, coded: Any = None
) -> Any:
    """Open a Parquet file of a store, as pyarrow has it. The columns ``coded`` are read as dictionaries."""
    options = {"metadata": metadata, "pre_buffer": False, "read_dictionary": coded}
    if is_local(spec.url):
        path = os.path.join(local_path(store.url), entry.path) if entry.path else local_path(store.url)
        return pq.ParquetFile(path, memory_map=True, **options)
    file = StoreFile(store, entry.path, entry.meta.size, entry.meta.etag)
    return pq.ParquetFile(file, **options)


@contextmanager
def table_errors(where: str) -> Iterator[None]:
    """Give Arrow's errors a name."""
    try:
        yield
    except EnergonStreamError:
        raise
    except (pa.ArrowException, OSError, ValueError, RecursionError) as error:
        raise MetadataError(
            f"the table cannot be read: {' '.join(str(error).split()):.200}",
            where=where,
            hint="a table is a Parquet file; write it again",
        ) from error


class _Ended(io.RawIOBase):
    """A file that ends wherever it is read, and knows whether it was."""

    def __init__(self, size: int) -> None:
        self.size, self.was_read = size, False

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        self.was_read = True
        return b""

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self.size if whence == io.SEEK_END else offset

    def tell(self) -> int:
        return self.size


def chunks_of(footer: Any, group: int, numbers: Sequence[int], size: int) -> list[Any]:
    """Return what the footer says of column chunks in a row group of a file with ``size`` bytes.

    Where it contradicts itself about a chunk, pyarrow ends the process as soon as the chunk is looked at. As
    it begins to read, it raises an error instead, for any of them: that comes first.
    """
    ended = _Ended(size)
    try:
        file = pq.ParquetFile(pa.PythonFile(ended, mode="r"), metadata=footer, pre_buffer=True)
        file.reader.read_row_group(group, column_indices=numbers, use_threads=False)
    except OSError:
        if not ended.was_read:
            raise
    row_group = footer.row_group(group)
    return [row_group.column(number) for number in numbers]


@dataclass(frozen=True)
class Tables:
    """The tables of a dataset. Use :func:`open_tables`."""

    spec: StoreSpec
    store: Store
    samples: int  # number of samples of the whole dataset
    info: int  # hash of ``.info.json``
    entries: tuple[ListEntry, ...]  # the tables
    limits: Limits
    _files: dict[str, Any] = field(default_factory=dict, init=False)

    @property
    def versions(self) -> tuple[str, ...] | None:
        """Path, size and version of each table; None if the store reports no versions."""
        if any(entry.meta.etag is None for entry in self.entries):
            return None
        return tuple(f"{entry.path} {entry.meta.size} {entry.meta.etag}" for entry in self.entries)

    def groups(
        self, condition: Expression | None, without: str | None, weight: str | None
    ) -> Iterator[tuple[Bits, Float64Array | None]]:
        """Yield for each group of rows which of them pass the condition, packed, and the weights of those.

        Rows that are true in the column ``without`` are left out, too. Raises ConfigError if a column does
        not exist or does not fit, or a weight is NaN or negative, and IndexMismatchError if a table has other
        rows than the index has samples.
        """
        columns = [*(condition.names if condition else ()), *(name for name in (without, weight) if name)]
        places = {column: self._place(column) for column in dict.fromkeys(columns)}
        types = {c: self._file(entry).schema_arrow.field(c).type for c, entry in places.items()}
        none = {column: pa.array([], kind) for column, kind in types.items()}
        self._evaluate(none, condition, without, weight, 0)  # raises for a type that does not fit
        by_table: dict[ListEntry, list[str]] = {}
        for column, entry in places.items():
            by_table.setdefault(entry, []).append(column)

        def read(group: int) -> tuple[Bits, Float64Array | None]:
            values = {}
            for entry, names in by_table.items():
                values.update(self._read(entry, group, names))
            return self._evaluate(values, condition, without, weight, group * GROUP_ROWS)

        yield from ordered_map(read, self._groups, _READERS)

    @property
    def _groups(self) -> range:
        return range(-(-self.samples // GROUP_ROWS))

    def _read(self, entry: ListEntry, group: int, names: Sequence[str]) -> dict[str, Any]:
        """Return columns of a group of rows as arrays, none of them coded by a dictionary.

        Raises LimitError if they take more memory than ``table_bytes``.
        """
        where = f"{self.store.url}/{entry.path}"
        of = self._file(entry)
        schema = of.schema_arrow
        coded = [name for name in names if _is_text(schema.field(name).type)]
        with table_errors(where):
            chunks = chunks_of(of.metadata, group, range(of.metadata.num_columns), entry.meta.size)
            sizes = [
                each.total_uncompressed_size for each in chunks if each.path_in_schema.split(".")[0] in names
            ]
            self._check(sum(sizes), where)
            found = open_file(self.spec, self.store, entry, of.metadata, coded).read_row_group(
                group, columns=names, use_threads=False
            )
            if found.num_rows != min(GROUP_ROWS, self.samples - group * GROUP_ROWS):
                raise ValueError(f"its group {group} has {found.num_rows:,} rows")
            columns = {name: found.column(name).combine_chunks() for name in names}
            self._check(sum(map(_decoded_size, columns.values())), where)
            return {name: _decoded(column) for name, column in columns.items()}

    def _check(self, size: int, where: str) -> None:
        if size > self.limits.table_bytes:
            problem = f"columns take {size:,} bytes in a group of rows"
            raise LimitError(**self.limits.exceeded("table_bytes", problem), where=where)

    def column(self, name: str) -> Any:
        """Read a column as an array, one value for each sample. Raises what :meth:`groups` does."""
        entry = self._place(name)
        parts = [self._read(entry, group, [name])[name] for group in self._groups]
        return np.concatenate([part.to_numpy(zero_copy_only=False) for part in parts] or [np.zeros(0)])

    def _evaluate(
        self,
        values: Mapping[str, Any],
        condition: Expression | None,
        without: str | None,
        weight: str | None,
        first: int,
    ) -> tuple[Bits, Float64Array | None]:
        length = len(next(iter(values.values())))
        passing: Any = None
        if condition is not None:
            passing = condition.evaluate({name: values[name] for name in condition.names}).fill_null(False)
        if without is not None:
            if not pa.types.is_boolean(values[without].type):
                raise self._unfit(without, values, "exclude", "true and false")
            others = pc.invert(values[without].fill_null(False))
            passing = others if passing is None else pc.and_(passing, others)
        bits = _packed(passing, length)
        weights = None
        if weight is not None:
            kind = values[weight].type
            if not (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
                raise self._unfit(weight, values, "weight_by", "numbers")
            found = np.unpackbits(bits, count=length, bitorder="little").astype(np.bool_)
            weights = values[weight].cast(pa.float64()).to_numpy(zero_copy_only=False)  # null becomes NaN
            wrong = np.flatnonzero(found & ~((weights >= 0) & np.isfinite(weights)))
            if len(wrong):
                raise ConfigError(
                    f"the weight of sample {first + int(wrong[0])} is {weights[wrong[0]]} in weight_by: {weight}",
                    where=self._where(weight),
                    hint=f"weights are numbers ≥ 0; leave such samples out by where: {weight} >= 0, or correct them",
                )
            weights = weights[found]
        return bits, weights

    def _unfit(self, column: str, values: Mapping[str, Any], option: str, wanted: str) -> ConfigError:
        what = f"{option} names the column {column!r}, which is {values[column].type}"
        return ConfigError(what, where=self._where(column), hint=f"name a column of {wanted}")

    def _where(self, column: str) -> str:
        return f"{self.store.url}/{self._place(column).path}"

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
            with table_errors(where):
                file = open_file(self.spec, self.store, entry)
                mark = (file.schema_arrow.metadata or {}).get(TABLE_MARK)
                about = json.loads(mark) if mark else {}
            rows = file.metadata.num_rows
            if not isinstance(about, dict):
                raise MetadataError(f"the mark of the table is {about!r:.80}", where=where, hint=_ADD)
            if not mark:
                raise IndexMismatchError(
                    "the table was not added with add_table",
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
            whole = map(file.metadata.row_group, range(file.metadata.num_row_groups - 1))
            if rows != self.samples or any(group.num_rows != GROUP_ROWS for group in whole):
                what = f"the table has {rows:,} rows, and the index has {self.samples:,} samples"
                raise IndexMismatchError(what, where=where, hint=_ADD)
            self._files[entry.path] = file
        return self._files[entry.path]


def _is_text(kind: Any) -> bool:
    return kind in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())


def _decoded_size(column: Any) -> int:
    """Return the bytes of a column without its dictionary."""
    if not pa.types.is_dictionary(column.type) or not _is_text(column.type.value_type):
        return int(column.nbytes)
    return pc.sum(pc.take(pc.binary_length(column.dictionary), column.indices)).as_py() or 0


def _decoded(column: Any) -> Any:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _packed(passing: Any, length: int) -> Bits:
    """Return truth values as bits, the lowest of a byte first; None stands for true ones."""
    if passing is None or passing.offset or not length:
        values = np.ones(length, np.bool_) if passing is None else passing.to_numpy(zero_copy_only=False)
        return np.packbits(values, bitorder="little")
    bits = np.frombuffer(passing.buffers()[1], np.uint8, -(-length // 8)).copy()  # as Arrow has them
    if length % 8:
        bits[-1] &= (1 << length % 8) - 1
    return bits


def read_column(spec: StoreSpec, name: str) -> Any:
    """Read a column of the tables of a dataset. Raises what :meth:`Tables.groups` does."""
    store = spec.open()
    info = read_document(INFO_JSON, store).data
    samples = sum(parse_info(info, f"{store.url}/{INFO_JSON}").values())
    return open_tables(spec, samples, digest(info)).column(name)


def read_file_column(table: StoreSpec, name: str) -> Any:
    """Read a column of a Parquet file. Raises ConfigError if it is missing, or rows may be in any order."""
    store = table.open()
    with table_errors(store.url):
        file = open_file(table, store, ListEntry("", store.head("")))
        names = file.schema_arrow.names
        if name not in names:
            what = f"the table has no column {name!r}"
            raise ConfigError(what, where=store.url, hint=f"it has {', '.join(names)}")
        if KEY in names:
            what = f"rows of a table with a column {KEY} may be in any order"
            raise ConfigError(what, where=store.url, hint="use add_table, then its column without the file")
        return file.read(columns=[name], use_threads=False).column(name).to_numpy()


def open_tables(spec: StoreSpec, samples: int, info: int, limits: Limits | None = None) -> Tables:
    """List the tables of a dataset, by one request; ``info`` is the hash of ``.info.json``."""
    store = spec.open()
    return Tables(spec, store, samples, info, tuple(list_files(store)), limits or Limits.from_environment())
