"""CSV, TSV and JSONL tables, often with paths of files."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar, NamedTuple

from energon_stream.errors import SourceError
from energon_stream.media.ranged_file import open_once
from energon_stream.printable import counted
from energon_stream.storage import ByteRange, ListEntry, Store
from energon_stream.storage.in_order import stream_object
from energon_stream.write.sources import source
from energon_stream.write.sources.source import Row, Section, TableSource, named_source_errors
from energon_stream.write.values import MEDIA, extension

_BYTES = 4 << 20
_BOM = b"\xef\xbb\xbf"
_SEP = re.compile(
    rb'(?:%b)?"?sep=([,;|\t])"?\r?\n' % _BOM
)  # Excel's line with the delimiter, before the header
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
    delimiter: str


@dataclass(frozen=True)
class TextSource(TableSource):
    """Tables in one file, or in all files of a folder."""

    kind: ClassVar[str] = "text"
    has_paths: ClassVar[bool] = True
    suffixes: ClassVar[tuple[str, ...]] = SUFFIXES

    def sections(self) -> list[Section]:
        sections = super().sections()
        headers = {frozenset(each.place.header): each.name for each in sections if each.place.header}
        if len(headers) > 1:
            what = f"the tables {' and '.join(sorted(headers.values())[:2])} have different columns"
            raise SourceError(what, where=self.spec.url, hint="convert a table by itself: name the file")
        return sections

    def unnamed_file(self) -> str:
        paths = () if self._is_file() else (entry.path for entry in self.spec.open().list())
        return next((path for path in paths if extension(path) in MEDIA), "")

    def rows(self, section: Section, first: int, columns: Collection[str] | None) -> Iterator[Row]:
        run: _RowRun = section.place
        store = open_once(self.spec)
        wanted = ByteRange(run.cut.start, run.cut.stop)
        data = bytes(store.get_range(run.entry.path, wanted, etag=run.entry.meta.etag).data)
        where = f"{store.url}/{run.entry.path}".rstrip("/")
        records = _json_rows(data) if _is_json(section.name) else _csv_rows(data, run)
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
        pieces = map(bytes, stream_object(store, path, etag=etag))
        begin = next(pieces, b"")
        sep = None if _is_json(name) else _SEP.match(begin)
        skipped = sep.end() if sep else 0
        delimiter = "" if _is_json(name) else sep[1].decode() if sep else _delimiter(begin, name)
        records = chain([begin[skipped:]], pieces)
        cuts = [
            cut._replace(start=cut.start + skipped, stop=cut.stop + skipped)
            for cut in cut_records(records, delimiter=delimiter, rows=source.SECTION_ROWS)
        ]
        header: tuple[str, ...] = ()
        if delimiter:
            if not cuts:
                raise SourceError("the table has no header", where=where)
            head = cuts.pop(0)
            line = store.get_range(path, ByteRange(head.start, head.stop), etag=etag).data
            with named_source_errors(where):
                header = tuple(
                    next(filter(None, _reader(bytes(line).removeprefix(_BOM), delimiter, head.start)))
                )
            if not cuts and b"\r" in bytes(line).rstrip():
                hint = f"write them as LF, for example with `tr '\\r' '\\n' < {name}`"
                raise SourceError("the lines of the table end with CR alone", where=where, hint=hint)
            if twice := next((column for column in header if header.count(column) > 1), None):
                raise SourceError(f"two columns are called {twice!r:.80}", where=where, hint="rename one")
            cuts = [cut._replace(first_row=cut.first_row - 1) for cut in cuts]
        version = etag or str(entry.meta.size)
        runs = [_RowRun(entry, cut, header, delimiter) for cut in cuts]
        return [
            Section(name, run.cut.rows, run.cut.stop - run.cut.start, version, run.cut.first_row, run)
            for run in runs
        ]


def _is_json(name: str) -> bool:
    return name.lower().endswith((".jsonl", ".ndjson"))


def _delimiter(begin: bytes, name: str) -> str:
    """Return what divides the columns: by the name; by the header if that makes one column of it."""
    usual = "\t" if name.lower().endswith(".tsv") else ","
    head = re.split(rb"[\r\n]", begin.removeprefix(_BOM).lstrip(b"\r\n"), maxsplit=1)[0].decode("latin-1")
    for sign in (usual, ";", "\t", ","):
        if len(next(csv.reader([head], delimiter=sign), [])) > 1:
            return sign
    return usual


def cut_records(pieces: Iterator[bytes], *, delimiter: str, rows: int, size: int = _BYTES) -> Iterator[Cut]:
    """Cut a table, given in pieces, into runs that end at ``rows`` records or ``size`` bytes.

    With a ``delimiter``, the first record is a run of its own, and a record goes on at the end of a line in a
    value that began with a quotation mark. A quotation mark within another value means itself.
    """
    start = position = count = done = 0
    is_open = False
    quoted = re.compile(rb'(?:^|%b)"(?:[^"]++|"")*+("?)' % re.escape(delimiter.encode()))
    limit = 1 if delimiter else rows
    for line in _lines(pieces):
        is_blank = not (is_open or line.strip(b"\r\n" if delimiter else None))
        if delimiter and (is_open or b'"' in line):
            text = b'"' + line if is_open else line if position else line.removeprefix(_BOM)
            is_open = any(not end for end in quoted.findall(text))
        position += len(line)
        if is_open:
            continue
        count += not is_blank
        if count == limit or (position - start >= size and count):
            yield Cut(start, position, count, done)
            start, done, count, limit = position, done + count, 0, rows
    if position > start:
        yield Cut(start, position, count + is_open, done)


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


def _csv_rows(data: bytes, run: _RowRun) -> Iterator[Row]:
    for values in _reader(data, run.delimiter, run.cut.start):
        if not values:
            continue
        if len(values) != len(run.header):
            columns = counted(len(run.header), "column")
            raise SourceError(
                f"the row has {counted(len(values), 'value')}, and the header {columns}",
                hint=f"quote values that have the delimiter, {run.delimiter!r}, or ends of lines",
            )
        yield dict(zip(run.header, values, strict=True))


def _reader(data: bytes, delimiter: str, start: int) -> Any:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        of = "UTF-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "WINDOWS-1252"
        raise SourceError(
            f"byte {start + error.start} of the table is not UTF-8",
            hint=f"write it as UTF-8, for example with `iconv -f {of} -t UTF-8`",
        ) from error
    return csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
