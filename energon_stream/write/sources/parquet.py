"""Parquet files, by row groups, through ``pyarrow``."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from energon_stream.media.ranged_file import open_once
from energon_stream.media.seekable import StoreFile
from energon_stream.storage.in_order import ordered_map
from energon_stream.write.sources.arrow_rows import BATCH_ROWS, table_rows
from energon_stream.write.sources.source import Row, Section, Source, named_source_errors, package
from energon_stream.write.sources.text import list_files

if TYPE_CHECKING:
    from energon_stream.storage import ListEntry, Store

_BUFFER = 4 << 20
_READERS = 16
SUFFIXES = (".parquet", ".parq")


class _Place(NamedTuple):
    path: str
    group: int
    size: int
    etag: str | None


@dataclass(frozen=True)
class ParquetSource(Source):
    """One file, or all files below a folder."""

    kind: ClassVar[str] = "parquet"

    def sections(self) -> list[Section]:
        _import()
        store = self.spec.open()
        entries = list_files(self.spec, store, SUFFIXES)
        found = ordered_map(partial(_of_file, store), entries, 1 if store.is_local else _READERS)
        return [section for sections in found for section in sections]

    def rows(self, section: Section, first: int, columns: Collection[str] | None) -> Iterator[Row]:
        place: _Place = section.place
        store = open_once(self.spec)
        with named_source_errors(f"{store.url}/{place.path}".rstrip("/")):
            file = _open(store, place.path, place.size, place.etag)
            names = None if columns is None else [n for n in file.schema_arrow.names if n in columns]
            for batch in file.iter_batches(BATCH_ROWS, row_groups=[place.group], columns=names):
                if first >= batch.num_rows:
                    first -= batch.num_rows
                    continue
                yield from table_rows(batch.slice(first))
                first = 0


def _import() -> Any:
    with package("parquet"):
        import pyarrow.parquet

        return pyarrow.parquet


def _open(store: Store, path: str, size: int, etag: str | None) -> Any:
    file = StoreFile(store, path, size, etag)
    return _import().ParquetFile(file, buffer_size=_BUFFER, pre_buffer=False)


def _of_file(store: Store, entry: ListEntry) -> list[Section]:
    where = f"{store.url}/{entry.path}".rstrip("/")
    size, etag = entry.meta.size, entry.meta.etag
    with named_source_errors(where):
        metadata = _open(store, entry.path, size, etag).metadata
        sections, first = [], 0
        for group in range(metadata.num_row_groups):
            found = metadata.row_group(group)
            sections.append(
                Section(
                    entry.path or where.rpartition("/")[2],
                    found.num_rows,
                    found.total_byte_size,
                    etag or str(size),
                    first,
                    _Place(entry.path, group, size, etag),
                )
            )
            first += found.num_rows
    return [section for section in sections if section.rows]
