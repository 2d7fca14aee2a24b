"""CSV, TSV and JSONL tables, often with paths of files."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from energon_stream.errors import SourceError
from energon_stream.media.ranged_file import open_once
from energon_stream.storage import ByteRange, ListEntry, Store
from energon_stream.storage.in_order import stream_object
from energon_stream.write.sources import source
from energon_stream.write.sources.source import Row, Section, TableSource, named_source_errors

_BYTES = 4 << 20
_BOM = b"\xef\xbb\xbf"
SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson")

csv.field_size_limit(1 << 30)


class Cut(NamedTuple):
    """A run of records: bytes ``start`` to ``stop`` of a file."""

    start: int
    stop: int
    rows: int  # records that are not blank
    first_row: int


class _RowRun(NamedTuple):
    """Location of a section."""

    entry: ListEntry
    cut: Cut
    header: tuple[str, ...]


@dataclass(frozen=True)
class TextSource(TableSource):
    """Tables in one file, or in all files of a folder."""

    kind: ClassVar[str] = "text"
    has_paths: ClassVar[bool] = True
    suffixes: ClassVar[tuple[str, ...]] = SUFFIXES

    def rows(self, section: Section, first: int, columns: Collection[str] | None) -> Iterator[Row]:
        run: _RowRun = section.place
        store = open_once(self.spec)
        wanted = ByteRange(run.cut.start, run.cut.stop)
        data = bytes(store.get_range(run.entry.path, wanted, etag=run.entry.meta.etag).data)
        where = f"{store.url}/{run.entry.path}".rstrip("/")
        records = _json_rows(data) if _is_json(section.name) else _csv_rows(data, run.header, section.name)
        number = 0
        while True:
            with named_source_errors(f"{where}, row {section.first_row + number}"):
                row = next(records, None)
            if row is None:
                return
            number += 1
            if number > first:
                yield row

    def _cut(self, store: Store, entry: ListEntry) -> list[Section]:
        path, etag = entry.path, entry.meta.etag
        where = f"{store.url}/{path}".rstrip("/")
        name = path or where.rpartition("/")[2]
        pieces = stream_object(store, path, etag=etag)
        cuts = list(
            cut_records(
                (bytes(piece) for piece in pieces), quoted=not _is_json(name), rows=source.SECTION_ROWS
            )
        )
        header: tuple[str, ...] = ()
        if not _is_json(name):
            if not cuts:
                raise SourceError("the table has no header", where=where)
            head = cuts.pop(0)
            line = store.get_range(path, ByteRange(head.start, head.stop), etag=etag).data
            with named_source_errors(where):
                header = tuple(next(_reader(bytes(line).removeprefix(_BOM), name)))
            cuts = [cut._replace(first_row=cut.first_row - 1) for cut in cuts]
        version = etag or str(entry.meta.size)
        return [
            Section(name, cut.rows, cut.stop - cut.start, version, cut.first_row, _RowRun(entry, cut, header))
            for cut in cuts
        ]


def _is_json(name: str) -> bool:
    return name.endswith((".jsonl", ".ndjson"))


def cut_records(pieces: Iterator[bytes], *, quoted: bool, rows: int, size: int = _BYTES) -> Iterator[Cut]:
    """Cut a table, given in pieces, into runs that end at ``rows`` records or ``size`` bytes.

    The first record of a quoted table is a run of its own. A record ends at the end of a line; with
    ``quoted``, where the number of quotation marks before is even.
    """
    start = position = count = done = quotes = 0
    limit = 1 if quoted else rows
    for line in _lines(pieces):
        position += len(line)
        if quoted:
            quotes += line.count(b'"')
            if quotes % 2:
                continue
        is_blank = not (quotes or line.strip())
        quotes = 0
        count += not is_blank
        if count == limit or (position - start >= size and count):
            yield Cut(start, position, count, done)
            start, done, count, limit = position, done + count, 0, rows
    if position > start:
        yield Cut(start, position, count + bool(quotes), done)


def _lines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line + b"\n"
    if rest:
        yield rest


def _json_rows(data: bytes) -> Iterator[Row]:
    for line in data.removeprefix(_BOM).split(b"\n"):
        if not line.strip():
            continue
        row = json.loads(line)
        if not isinstance(row, dict):
            raise SourceError(f"the line is of type {type(row).__name__}, not an object")
        yield row


def _csv_rows(data: bytes, header: tuple[str, ...], name: str) -> Iterator[Row]:
    for values in _reader(data, name):
        if not values:
            continue
        if len(values) != len(header):
            raise SourceError(
                f"the row has {len(values)} values, and the header {len(header)} columns",
                hint="quote values that have the delimiter or ends of lines",
            )
        yield dict(zip(header, values, strict=True))


def _reader(data: bytes, name: str) -> Any:
    delimiter = "\t" if name.endswith(".tsv") else ","
    return csv.reader(io.StringIO(data.decode(), newline=""), delimiter=delimiter, strict=True)
