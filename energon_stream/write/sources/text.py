"""CSV, TSV and JSONL tables and lists of JSON objects, often with paths of files."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar, NamedTuple

from energon_stream.errors import LimitError, SourceError
from energon_stream.limits import Limits
from energon_stream.media.ranged_file import open_once
from energon_stream.printable import counted
from energon_stream.storage import ByteRange, ListEntry, Store
from energon_stream.storage.in_order import stream_object
from energon_stream.write.part_values import MEDIA, extension
from energon_stream.write.sources import source
from energon_stream.write.sources.source import Row, Section, TableSource, named_source_errors

_BYTES = 4 << 20
_BOM = b"\xef\xbb\xbf"
_SEP = re.compile(
    rb'(?:%b)?"?sep=([,;|\t])"?\r?\n' % _BOM
)  # Excel's line with the delimiter, before the header
_OPENING, _COMMA, _CLOSING, _EMPTY = map(
    re.compile, (r"(?:\xef\xbb\xbf)?\s*\[\s*", r"\s*,\s*", r"\s*\]\s*", r"(?:\xef\xbb\xbf)?\s*\[\s*\]\s*")
)
SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson")
JSON_SUFFIXES = (".json",)

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
    is_list: bool


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

    def may_lack_columns(self, section: Section) -> bool:
        return not section.place.delimiter

    def unnamed_file(self) -> str:
        paths = () if self._is_file() else (entry.path for entry in self.spec.open().list())
        return next((path for path in paths if extension(path) in MEDIA), "")

    def rows(self, section: Section, first: int, columns: Collection[str] | None) -> Iterator[Row]:
        run: _RowRun = section.place
        store = open_once(self.spec)
        wanted = ByteRange(run.cut.start, run.cut.stop)
        data = bytes(store.get_range(run.entry.path, wanted, etag=run.entry.meta.etag).data)
        where = f"{store.url}/{run.entry.path}".rstrip("/")
        if run.is_list:
            records: Iterator[Row] = iter(json.loads(b"[%b]" % data))
        else:
            records = _csv_rows(data, run) if run.delimiter else _json_rows(data)
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
        is_list = name.lower().endswith(JSON_SUFFIXES) and not _has_lines(begin)
        sep = None if _is_json(name) else _SEP.match(begin)
        skipped = sep.end() if sep else 0
        delimiter = "" if _is_json(name) else sep[1].decode() if sep else _delimiter(begin, name)
        records = chain([begin[skipped:]], pieces)
        if is_list:
            if not begin.removeprefix(_BOM).lstrip().startswith(b"["):
                raise SourceError(
                    "the JSON document is no list with an object for each sample",
                    where=where,
                    hint="write such a list, or lines with an object each, as docs/guides/convert.md does for COCO",
                )
            cuts = list(cut_list(records, rows=source.SECTION_ROWS, where=where))
        else:
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
        runs = [_RowRun(entry, cut, header, delimiter, is_list) for cut in cuts]
        return [
            Section(name, run.cut.rows, run.cut.stop - run.cut.start, version, run.cut.first_row, run)
            for run in runs
        ]


@dataclass(frozen=True)
class JsonSource(TextSource):
    """Lists of objects in one JSON file, or in all files of a folder; or lines of objects."""

    suffixes: ClassVar[tuple[str, ...]] = JSON_SUFFIXES


def _is_json(name: str) -> bool:
    return name.lower().endswith((".jsonl", ".ndjson", *JSON_SUFFIXES))


def _has_lines(begin: bytes) -> bool:
    """Return whether a JSON file, of which this is the beginning, has an object on each line."""
    first, _, more = begin.removeprefix(_BOM).lstrip().partition(b"\n")
    if not (first.startswith(b"{") and more.strip()):
        return False
    with suppress(ValueError, RecursionError):
        return isinstance(json.loads(first), dict)
    return False


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


def cut_list(pieces: Iterator[bytes], *, rows: int, where: str = "", size: int = _BYTES) -> Iterator[Cut]:
    """Cut a JSON list of objects, given in pieces, into runs that end at ``rows`` objects or ``size`` bytes.

    Between the first and the last byte of a run are objects and commas. Raises SourceError, which names the
    object by its number, if the text is no such list, and LimitError if an object exceeds ``document_bytes``.
    """
    start = stop = done = count = 0
    for first, last in _list_items(pieces, where):
        if count == rows or (count and last - start > size):
            yield Cut(start, stop, count, done)
            done, count = done + count, 0
        start, stop, count = start if count else first, last, count + 1
    if count:
        yield Cut(start, stop, count, done)


def _list_items(pieces: Iterator[bytes], where: str) -> Iterator[tuple[int, int]]:
    """Yield where the objects of a list begin and end; no more of it is in memory than an object or two.

    Latin-1 has a character for each byte, and JSON has the same signs in it as in UTF-8: places are bytes.
    """
    limits, decode = Limits.from_environment(), json.JSONDecoder().raw_decode
    text, number, before = next(pieces, b"").decode("latin-1"), 0, _OPENING
    start = place = 0  # the byte that the text begins at, and what was read of the text
    while True:
        here, problem = f"{where}, row {number}", "it does not follow a comma, or the list has no end"
        if match := before.match(text, place):
            first = match.end()
            try:
                row, last = decode(text, first)
            except (json.JSONDecodeError, RecursionError) as error:
                problem = f"it cannot be read: {getattr(error, 'msg', error)}"
            else:
                if not isinstance(row, dict):
                    raise SourceError(f"it is of type {type(row).__name__}, not an object", where=here)
                with named_source_errors(here):
                    text[first:last].encode("latin-1").decode()
                yield start + first, start + last
                place, number, before = last, number + 1, _COMMA
                continue
        if (held := len(text) - place) > limits.document_bytes:
            raise LimitError(**limits.exceeded("document_bytes", f"{held:,} bytes are no object"), where=here)
        more = [text[place:]]
        while held >= 0 and (
            piece := next(pieces, b"")
        ):  # twice as much, so that large objects are parsed seldom
            more.append(piece.decode("latin-1"))
            held -= len(piece)
        if len(more) == 1:
            break
        text, start, place = "".join(more), start + place, 0
    if not (_CLOSING if number else _EMPTY).fullmatch(text, place):
        raise SourceError(problem, where=here)


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
