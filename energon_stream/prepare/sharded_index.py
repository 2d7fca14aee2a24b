"""Builds ``index.sqlite`` with many processes.

Each process makes a piece: a database of its own with the rows of some shards, which follow one another.
Then each sorts a range of the sample keys of all pieces. At the end, the pieces are joined page by page; see
:mod:`~energon_stream.prepare.sqlite_pages`. The file is what one process would write, row for row.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from energon_stream.index.sqlite_index import SAMPLE_INDICES, SAMPLE_TABLES, SqliteWriter, duplicate_key
from energon_stream.prepare.sqlite_pages import LONGEST_TEXT, PAGE_BYTES, PageFile, Tree

if TYPE_CHECKING:
    from energon_stream.engine.tasks import TaskEngine
    from energon_stream.errors import DuplicateKeyError
    from energon_stream.tar.scan import ShardScan

_QUANTILES = 256
"""Keys that each piece names, to find ranges of much the same number of keys."""

_FAST = f"""
PRAGMA page_size = {PAGE_BYTES}; PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;
PRAGMA locking_mode = EXCLUSIVE; PRAGMA cache_size = -64000;
"""
_SAMPLE = "rowid, tar_file_id, sample_key, sample_index, byte_offset, byte_size"
_PART = "rowid, tar_file_id, sample_index, part_name, content_byte_offset, content_byte_size"
_KEYS = "CREATE INDEX keys ON samples(sample_key);"
# The entries of such a table are those of an index of SAMPLE_TABLES: the key, and the row.
_SORTED_KEYS = "CREATE TABLE sorted (sample_key TEXT NOT NULL PRIMARY KEY, row INTEGER) WITHOUT ROWID;"
_UNIQUE = "sqlite_autoindex_samples_1"


@dataclass(frozen=True, slots=True)
class ShardGroup:
    """Shards of one piece of the index, which follow one another.

    Attributes:
        load: Returns what was found in the shards, in order. It runs in another process, so it must be
            picklable.
        first_tar: Number of the first shard.
        first_sample: Number of samples in all shards before.
        first_part: Number of parts in all shards before.
    """

    load: Callable[[], Iterable[ShardScan]]
    first_tar: int
    first_sample: int
    first_part: int


@dataclass(frozen=True, slots=True)
class _Piece:
    """A database with the rows of a group."""

    path: str
    keys: tuple[str, ...]  # some of its sample keys, evenly spread
    is_long: bool  # whether a text is too long for rows to be copied


def build_index(
    path: str, shards: Sequence[str], groups: Sequence[ShardGroup], engine: TaskEngine, folder: str
) -> None:
    """Write the index of a dataset.

    Args:
        path: Local path of the new file.
        shards: Paths of all shards, in order, for messages.
        groups: All shards, in order.
        engine: Its processes must see ``folder``.
        folder: Local folder for the pieces, which together take about 1.4 times the size of the index.

    Raises:
        DuplicateKeyError: Two samples have the same key.
    """
    pieces = list(engine.map(partial(_build_piece, folder), list(enumerate(groups)), in_order=True))
    if any(piece.is_long for piece in pieces):
        for piece in pieces:
            os.unlink(piece.path)
        _build_alone(path, shards, groups)
        return
    keys = sorted(key for piece in pieces for key in piece.keys)
    count = len(groups)
    bounds = sorted({keys[len(keys) * number // count] for number in range(1, count)}) if keys else []
    ranges = list(enumerate(zip([None, *bounds], [*bounds, None], strict=True)))
    paths = [piece.path for piece in pieces]
    sort = partial(_sort_keys, folder, paths, tuple(shards))
    sorted_keys = list(engine.map(sort, ranges, in_order=True))
    roots = _write_schema(path)
    with open(path, "r+b") as opened:
        file = PageFile(opened)
        for name, root in roots.items():
            if name == _UNIQUE:
                trees = [Tree(sorted_path, _roots(sorted_path)["sorted"]) for sorted_path in sorted_keys]
            else:
                trees = [Tree(piece, _roots(piece)[name]) for piece in paths]
            file.join(root, trees)
        file.close()
    for used in (*paths, *sorted_keys):
        os.unlink(used)


def _build_alone(path: str, shards: Sequence[str], groups: Sequence[ShardGroup]) -> None:
    with SqliteWriter(path, list(shards)) as writer:
        for group in groups:
            for number, scan in enumerate(group.load(), group.first_tar):
                writer.add(number, scan)


def _build_piece(folder: str, task: tuple[int, ShardGroup]) -> _Piece:
    number, group = task
    path = os.path.join(folder, f"piece-{number:06d}.sqlite")
    _remove(path)  # of a try that was lost
    longest, keys = 0, list[str]()
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.executescript(_FAST + SAMPLE_TABLES.replace(" UNIQUE", "") + "BEGIN;")
        row, part_row = group.first_sample, group.first_part
        for tar, scan in enumerate(group.load(), group.first_tar):
            starts, ends, count = scan.offsets[:-1], scan.offsets[1:], len(scan.keys)
            longest = max(longest, *map(len, scan.keys), *(len(part) for _, part, _, _ in scan.parts))
            keys += scan.keys[:: max(1, count // _QUANTILES)]
            sizes = (end - start for start, end in zip(starts, ends, strict=True))
            database.executemany(
                f"INSERT INTO samples ({_SAMPLE}) VALUES (?,{tar},?,?,?,?)",
                zip(range(row + 1, row + 1 + count), scan.keys, range(count), starts, sizes, strict=True),
            )
            database.executemany(
                f"INSERT INTO sample_parts ({_PART}) VALUES (?,{tar},?,?,?,?)",
                ((at, *part) for at, part in enumerate(scan.parts, part_row + 1)),
            )
            row, part_row = row + count, part_row + len(scan.parts)
        # Up to four bytes a letter.
        if 4 * longest > LONGEST_TEXT:
            return _Piece(path, (), True)
        database.executescript(_KEYS + SAMPLE_INDICES)  # commits the rows first
    keys.sort()
    return _Piece(path, tuple(keys[:: max(1, len(keys) // _QUANTILES)]), False)


def _sort_keys(
    folder: str,
    pieces: Sequence[str],
    shards: Sequence[str],
    task: tuple[int, tuple[str | None, str | None]],
) -> str:
    """Write a database of all keys from one bound to another, and their rows; return its path."""
    number, (lower, upper) = task
    path = os.path.join(folder, f"keys-{number:06d}.sqlite")
    _remove(path)
    where, values = [], list[Any]()
    for sign, bound in ((">=", lower), ("<", upper)):
        if bound is not None:
            where.append(f"sample_key {sign} ?")
            values.append(bound)
    condition = f"WHERE {' AND '.join(where)}" if where else ""
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.executescript(
            _FAST + "CREATE TEMP TABLE found (sample_key TEXT, row INTEGER);" + _SORTED_KEYS
        )
        for piece in pieces:
            database.execute("ATTACH ? AS piece", (piece,))
            database.execute(
                f"INSERT INTO found SELECT sample_key, rowid FROM piece.samples {condition}", values
            )
            database.execute("DETACH piece")
        try:
            database.execute("INSERT INTO sorted SELECT sample_key, row FROM found ORDER BY sample_key")
        except sqlite3.IntegrityError:
            raise _duplicate(database, pieces, shards) from None
    return path


def _duplicate(
    database: sqlite3.Connection, pieces: Sequence[str], shards: Sequence[str]
) -> DuplicateKeyError:
    """Return the error for a key that two samples have."""
    query = "SELECT sample_key, min(row), max(row) FROM found GROUP BY sample_key HAVING count(*) > 1 LIMIT 1"
    key, *rows = database.execute(query).fetchone()
    places = []
    for row in rows:
        for piece in pieces:
            with closing(sqlite3.connect(piece)) as opened:
                query = "SELECT tar_file_id, sample_index FROM samples WHERE rowid = ?"
                found = opened.execute(query, (row,)).fetchone()
            if found is not None:
                places.append(f"sample {found[1]} of {shards[found[0]]}")
    return duplicate_key(key, *places)


def _write_schema(path: str) -> dict[str, int]:
    """Write a database without rows; return the root page of each table and index."""
    _remove(path)
    with closing(sqlite3.connect(path)) as database:
        database.executescript(_FAST + SAMPLE_TABLES + SAMPLE_INDICES)
    return _roots(path)


def _roots(path: str) -> dict[str, int]:
    with closing(sqlite3.connect(path)) as database:
        return dict(database.execute("SELECT name, rootpage FROM sqlite_schema"))


def _remove(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)
