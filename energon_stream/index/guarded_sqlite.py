"""Indices that anyone may have written: their plain tables are read, within bounds, and nothing in them runs.

A file can hold more than tables: views, triggers, virtual tables and computed columns run expressions that
take any time and memory, and damaged pages may refer to each other without end.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import apsw

from energon_stream.errors import MetadataError

_TABLES = ("samples", "sample_parts", "media_metadata", "media_filters", "media_layouts")
_NUMBERS = (
    "tar_file_id",
    "sample_index",
    "byte_offset",
    "byte_size",
    "content_byte_offset",
    "content_byte_size",
)
_TEXTS = ("sample_key", "part_name", "entry_key", "metadata_type", "metadata_json", "layout_json", "strategy")
_KINDS: dict[str, type] = dict.fromkeys(_NUMBERS, int) | dict.fromkeys(_TEXTS, str)
_LONGEST = 4 << 20  # bytes of a value
# SQLite has Unicode only. Bytes of names that are not UTF-8, which ``tarfile`` makes surrogates, are signs of
# private use in an index. A name that has such a sign itself has its four bytes there.
_TO_INDEX: dict[int, str] = {0xDC00 + byte: chr(0x10FE00 + byte) for byte in range(128, 256)}
_FROM_INDEX = {ord(sign): surrogate for surrogate, sign in _TO_INDEX.items()}
_TO_INDEX |= {place: "".join(chr(0x10FE00 + byte) for byte in chr(place).encode()) for place in _FROM_INDEX}
_IS_ESCAPED = re.compile("[\U0010fe80-\U0010feff]").search
# What one query may cost: a unit for each byte of text and each step of SQLite's machine, 100 for each row.
# Scans and joins of plain tables cost 2 to 8 units for each byte of the file.
_UNITS, _UNITS_PER_BYTE, _UNITS_PER_ROW, _STEPS = 32 << 20, 32, 100, 4096
_PLAIN_DEFAULT = re.compile(r"CURRENT_TIMESTAMP|[\w.+-]*|'[^']*'")
_PLAIN_INDEX = re.compile(r"CREATE (UNIQUE )?INDEX [^()]*\([^()]*\)")


def indexed_name(name: str) -> str:
    """Return a name as an index has it: the same, if it is Unicode."""
    return name if name.isascii() else name.translate(_TO_INDEX)


def name_of(text: str) -> str:
    """Return the name that an index has as a text."""
    if text.isascii() or not _IS_ESCAPED(text):
        return text
    return text.translate(_FROM_INDEX).encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")


def damaged_index(where: str, what: str) -> MetadataError:
    """Return the error for an index that says something impossible."""
    hint = "the index is damaged, or of other shards; run `energon-stream prepare` again"
    return MetadataError(f"the index cannot be used: {what}", where=where, hint=hint)


class _Cost:
    """Work of the query that runs on a connection, and its bound."""

    def __init__(self, size: int) -> None:
        self.units, self.most = 0, _UNITS + _UNITS_PER_BYTE * size

    def begin(self, *_: Any) -> bool:
        self.units = 0
        return True

    def step(self) -> bool:
        self.units += _STEPS
        return self.is_exceeded

    @property
    def is_exceeded(self) -> bool:
        return self.units > self.most


class IndexConnection(apsw.Connection):
    """A connection to an index of ``size`` bytes, for one thread; ``where`` is its URL for errors.

    Raises apsw.Error or MetadataError if the file is no usable index.
    """

    def __init__(self, file: str, size: int, where: str, flags: int = apsw.SQLITE_OPEN_READONLY) -> None:
        super().__init__(file, flags=flags | apsw.SQLITE_OPEN_URI)
        self._where, self._size, self._cost = where, size, _Cost(size)
        self.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
        for refused in ("ENABLE_VIEW", "ENABLE_TRIGGER", "TRUSTED_SCHEMA"):
            self.config(getattr(apsw, f"SQLITE_DBCONFIG_{refused}"), 0)
        self.drop_modules(None)  # of virtual tables
        self.limit(apsw.SQLITE_LIMIT_LENGTH, _LONGEST)
        self.set_progress_handler(self._cost.step, _STEPS)
        self.exec_trace = self._cost.begin
        self._check("main")
        if flags & apsw.SQLITE_OPEN_READWRITE:
            self._check_indices()
            self.execute("PRAGMA ignore_check_constraints = ON")

    def attach(self, path: str, schema: str) -> None:
        """Add the index at a local path, whose tables are in ``schema``. Raises the errors of opening it."""
        self.execute(f"ATTACH ? AS {schema}", (_uri(path),))
        self._cost.most += _UNITS_PER_BYTE * os.path.getsize(path)
        self._check(schema)

    def select(self, query: str, *values: Any) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query.

        A column with a name of the schema has values of its type, and no negative numbers. Raises
        MetadataError if that is not so, if the file is no usable index, or if the query costs more than it
        can on plain tables of this size.
        """
        cost = self._cost
        try:
            numbers: list[int] = []
            others: list[tuple[int, type]] = []
            cursor = self.execute(query, [indexed_name(v) if isinstance(v, str) else v for v in values])
            for row in cursor:
                if not numbers and not others:
                    kinds = [_KINDS.get(name, object) for name, *_ in cursor.get_description()]
                    numbers = [place for place, kind in enumerate(kinds) if kind is int]
                    others = [(place, kind) for place, kind in enumerate(kinds) if kind is not int]
                cost.units += _UNITS_PER_ROW
                for place in numbers:
                    if type(row[place]) is not int or row[place] < 0:
                        raise damaged_index(self._where, f"a row is {row!r:.120}")
                for place, kind in others:
                    if not isinstance(row[place], kind):
                        raise damaged_index(self._where, f"a row is {row!r:.120}")
                    if isinstance(row[place], str | bytes):
                        cost.units += len(row[place])
                        if not row[place].isascii():
                            row = tuple(name_of(value) if isinstance(value, str) else value for value in row)
                if cost.units > cost.most:
                    raise self._too_costly()
                yield row
        except (apsw.Error, UnicodeDecodeError) as error:
            raise (
                self._too_costly() if cost.is_exceeded else damaged_index(self._where, str(error))
            ) from error

    def has_table(self, name: str) -> bool:
        """Return whether the index has a table. Raises MetadataError as :meth:`select` does."""
        return any(self.select("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", name))

    def _too_costly(self) -> MetadataError:
        return damaged_index(self._where, f"a query takes more than {self._size:,} bytes of tables can need")

    def _check(self, schema: str) -> None:
        """Raise MetadataError unless the tables of an index are plain tables."""
        names = ", ".join(map(repr, _TABLES))
        query = f"SELECT type, name FROM {schema}.sqlite_master WHERE type <> 'table' AND lower(name) IN ({names})"
        for kind, name in self.select(query):
            raise damaged_index(self._where, f"{name!r:.40} is a {kind!r:.40}, not a table")
        for table in _TABLES:
            for _, name, _, _, default, _, hidden in self.select(f"PRAGMA {schema}.table_xinfo({table})"):
                if hidden or not _PLAIN_DEFAULT.fullmatch(default or ""):
                    raise damaged_index(self._where, f"the column {name!r:.40} of {table} is computed")

    def _check_indices(self) -> None:
        """Raise MetadataError if writing a row would run an expression of the file."""
        for name, text in self.select(
            "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
        ):
            if not _PLAIN_INDEX.fullmatch(str(text)):
                raise damaged_index(self._where, f"{name!r:.40} is an index of more than columns")


def _uri(path: str) -> str:
    return f"file:{quote(path)}?immutable=1"


def connect_local(path: str, where: str) -> IndexConnection:
    """Return a new connection to an index on a local file system, which it only reads."""
    return IndexConnection(_uri(path), os.path.getsize(path), where)


def connect_to_write(path: str, where: str) -> IndexConnection:
    """Return a new connection to a local index, which is made if it is missing, and may be written."""
    size = os.path.getsize(path) if os.path.exists(path) else 0
    return IndexConnection(
        f"file:{quote(path)}", size, where, apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    )
