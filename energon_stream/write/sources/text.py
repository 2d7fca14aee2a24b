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
from energon_stream.storage import ByteRange, ListEntry, Store, StoreSpec
from energon_stream.storage.in_order import stream_object
from energon_stream.write.sources.source import Row, Section, Source, folder_of, named_source_errors

_ROWS = 500
_BYTES = 4 << 20
_BOM = b"\xef\xbb\xbf"
SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson")

csv.field_size_limit(1 << 30)


class Cut(NamedTuple):
    """A run of records: bytes ``start`` to ``stop`` of a file."""

    start: int
    stop: int
    rows: int  # number of records that are not blank
    first_row: int


class _Place(NamedTuple):
    path: str
    cut: Cut
    header: tuple[str, ...]
    etag: str | None


@dataclass(frozen=True)
class TextSource(Source):
    """Tables in one file, or in all files of a folder."""

    kind: ClassVar[str] = "text"

    def sections(self) -> list[Section]:
        store = self.spec.open()
        return [
            section for entry in list_files(self.spec, store, SUFFIXES) for section in _of_file(store, entry)
        ]

    def rows(self, section: Section, first: int, columns: Collection[str] | None) -> Iterator[Row]:
        place: _Place = section.place
        store = open_once(self.spec)
        wanted = ByteRange(place.cut.start, place.cut.stop)
        data = bytes(store.get_range(place.path, wanted, etag=place.etag).data)
        where = f"{store.url}/{place.path}".rstrip("/")
        records = _json_rows(data) if _is_json(section.name) else _csv_rows(data, place, section.name)
        number = 0
        while True:
            with named_source_errors(f"{where}, row {section.first_row + number}"):
                row = next(records, None)
            if row is None:
                return
            number += 1
            if number > first:
                yield row

    def _folder(self) -> StoreSpec:
        return folder_of(self.spec) if self.spec.url.endswith(SUFFIXES) else self.spec


def list_files(spec: StoreSpec, store: Store, suffixes: tuple[str, ...]) -> list[ListEntry]:
    """Return the files of a source with some suffix, sorted by path: the source itself, or all below it.

    Raises SourceError if there are none.
    """
    if spec.url.endswith(suffixes):
        return [ListEntry("", store.head(""))]
    found = sorted((e for e in store.list() if e.path.endswith(suffixes)), key=lambda entry: entry.path)
    if not found:
        raise SourceError(
            f"the folder has no {' or '.join(suffixes)} files", where=store.url, hint="check the path"
        )
    return found


def _is_json(name: str) -> bool:
    return name.endswith((".jsonl", ".ndjson"))


def _of_file(store: Store, entry: ListEntry) -> list[Section]:
    name = entry.path or store.url.rpartition("/")[2]
    pieces = stream_object(store, entry.path, etag=entry.meta.etag)
    cuts = list(cut_records((bytes(piece) for piece in pieces), quoted=not _is_json(name)))
    header: tuple[str, ...] = ()
    if not _is_json(name):
        if not cuts:
            raise SourceError("the table has no header", where=f"{store.url}/{entry.path}".rstrip("/"))
        head = cuts.pop(0)
        line = store.get_range(entry.path, ByteRange(head.start, head.stop), etag=entry.meta.etag).data
        with named_source_errors(f"{store.url}/{entry.path}".rstrip("/")):
            header = tuple(next(_reader(bytes(line).removeprefix(_BOM), name)))
        cuts = [cut._replace(first_row=cut.first_row - 1) for cut in cuts]
    version = entry.meta.etag or str(entry.meta.size)
    return [
        Section(
            name,
            cut.rows,
            cut.stop - cut.start,
            version,
            cut.first_row,
            _Place(entry.path, cut, header, entry.meta.etag),
        )
        for cut in cuts
        if cut.rows
    ]


def cut_records(
    pieces: Iterator[bytes], *, quoted: bool, rows: int = _ROWS, size: int = _BYTES
) -> Iterator[Cut]:
    """Cut a table, given in pieces, to runs of so many records or bytes; the first record of a quoted one is
    a run of its own.

    A record ends at the end of a line; with ``quoted``, where the number of quotation marks before is even.
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


def _csv_rows(data: bytes, place: _Place, name: str) -> Iterator[Row]:
    header = place.header
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
