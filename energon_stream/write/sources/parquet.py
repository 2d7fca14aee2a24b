"""Parquet files, by row groups, through ``pyarrow``."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np

from energon_stream.arrays import python_value
from energon_stream.errors import SourceError
from energon_stream.imports import of_extra
from energon_stream.media.ranged_file import open_once
from energon_stream.media.seekable import StoreFile
from energon_stream.storage import ListEntry, Store
from energon_stream.write.sources.source import Row, Section, TableSource, named_source_errors

_BUFFER = 4 << 20
BATCH_ROWS = 16  # that are taken from Arrow at a time: media are large
SUFFIXES = (".parquet", ".parq")


@dataclass(frozen=True)
class ParquetSource(TableSource):
    """Row groups of one file, or of all files below a folder."""

    kind: ClassVar[str] = "parquet"
    suffixes: ClassVar[tuple[str, ...]] = SUFFIXES

    def rows(self, section: Section, first: int, columns: Collection[str] | None) -> Iterator[Row]:
        entry, group = section.place
        store = open_once(self.spec)
        with named_source_errors(f"{store.url}/{entry.path}".rstrip("/")):
            file = _open(store, entry)
            names = None if columns is None else [n for n in file.schema_arrow.names if n in columns]
            for batch in file.iter_batches(BATCH_ROWS, row_groups=[group], columns=names):
                if first >= batch.num_rows:
                    first -= batch.num_rows
                    continue
                yield from table_rows(batch.slice(first))
                first = 0

    def _cut(self, store: Store, entry: ListEntry) -> list[Section]:
        where = f"{store.url}/{entry.path}".rstrip("/")
        name, version = entry.path or where.rpartition("/")[2], entry.meta.etag or str(entry.meta.size)
        with named_source_errors(where):
            metadata = _open(store, entry).metadata
            groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
        firsts = accumulate((group.num_rows for group in groups), initial=0)
        return [
            Section(name, group.num_rows, group.total_byte_size, version, first, (entry, number))
            for number, (group, first) in enumerate(zip(groups, firsts, strict=False))
        ]


def _open(store: Store, entry: ListEntry) -> Any:
    with of_extra("parquet"):
        from pyarrow.parquet import ParquetFile
    file = StoreFile(store, entry.path, entry.meta.size, entry.meta.etag)
    return ParquetFile(file, buffer_size=_BUFFER, pre_buffer=False)


def table_rows(batch: Any) -> Iterator[Row]:
    """Yield the rows of a record batch or table of ``pyarrow``."""
    columns = [(name, _values(name, batch.column(place))) for place, name in enumerate(batch.schema.names)]
    for number in range(batch.num_rows):
        yield {name: plain(values[number]) for name, values in columns}


def _values(name: str, column: Any) -> list[Any]:
    if "time64[ns]" not in str(column.type):
        with suppress(ValueError, OverflowError):
            values: list[Any] = column.to_pylist()
            return values
    try:
        return [*map(_value, column)]
    except (ValueError, OverflowError) as error:
        raise SourceError(
            f"a value of the column {name!r:.80} has no form in Python: {error}",
            hint="cast the column, such as to timestamp[us] or a text, or leave it out",
        ) from error


def _value(scalar: Any) -> Any:
    """Return the value of a scalar of ``pyarrow``; a time that Python's cannot hold as text."""
    value = python_value(scalar)
    if not isinstance(value, np.generic) or str(scalar.type).startswith("duration"):
        return value
    text = str(scalar.cast("string"))
    if text.startswith("<"):  # <value out of range>
        raise ValueError(text)
    return text.replace(" ", "T")


def plain(value: Any) -> Any:
    """Return a value that JSON can hold for what Arrow has beyond that: decimals and maps."""
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, list):
        if value and all(isinstance(item, tuple) and len(item) == 2 for item in value):
            return {str(key): plain(item) for key, item in value}  # a map
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value
