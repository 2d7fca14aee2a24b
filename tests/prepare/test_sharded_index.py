"""Indices that many processes build: the rows, and their order, are those of one process."""

import sqlite3
from functools import partial

import index_groups
import pytest

from energon_stream.engine.processes import LocalEngine
from energon_stream.errors import DuplicateKeyError
from energon_stream.index.sqlite_index import SqliteWriter
from energon_stream.prepare import sqlite_pages
from energon_stream.prepare.sharded_index import ShardGroup, build_index

TREES = {
    "samples": "SELECT rowid, * FROM samples",
    "sample_parts": "SELECT rowid, * FROM sample_parts",
    "by_key": "SELECT sample_key, rowid FROM samples ORDER BY sample_key",
    "by_place": "SELECT tar_file_id, sample_index FROM samples ORDER BY tar_file_id, sample_index",
    "parts": "SELECT * FROM sample_parts ORDER BY tar_file_id, sample_index, content_byte_offset",
    "schema": "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY name",
}


def groups_of(counts, samples, parts=2, **options):
    """Groups of so many shards each."""
    groups, first = [], 0
    for count in counts:
        numbers = range(first, first + count)
        load = partial(index_groups.shards, numbers, samples, parts=parts, **options)
        groups.append(ShardGroup(load, first, first * samples, first * samples * parts))
        first += count
    return groups, [f"{number}.tar" for number in range(first)]


def content(path):
    with sqlite3.connect(path) as database:
        found = {name: database.execute(query).fetchall() for name, query in TREES.items()}
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        # The planner uses each index, which shows that SQLite takes the file for what it is.
        plan = database.execute("EXPLAIN QUERY PLAN SELECT * FROM samples WHERE sample_key = 'x'").fetchall()
        assert "sqlite_autoindex_samples_1" in str(plan)
    return found


def alone(path, groups, names):
    with SqliteWriter(path, names) as writer:
        for group in groups:
            for tar, scan in enumerate(group.load(), group.first_tar):
                writer.add(tar, scan)
    return content(path)


@pytest.mark.parametrize(
    ("counts", "samples", "parts"),
    [((1,), 1, 1), ((1, 1, 1), 1, 1), ((2, 3), 40, 2), ((1, 1), 3, 0), ((5, 1, 9), 100, 3), ((4, 4), 600, 2)],
)
def test_the_rows_are_those_of_one_process(tmp_path, counts, samples, parts):
    groups, names = groups_of(counts, samples, parts)
    path = str(tmp_path / "many.sqlite")
    build_index(path, names, groups, LocalEngine(0), str(tmp_path))
    assert content(path) == alone(str(tmp_path / "one.sqlite"), groups, names)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["many.sqlite", "one.sqlite"]


def test_pieces_may_end_anywhere(tmp_path):
    # One shard a piece, so that leaves of few entries, down to one, meet at the joints.
    for samples in (60, 61, 88, 101):
        groups, names = groups_of((1, 1, 1), samples, 1)
        path = str(tmp_path / f"{samples}.sqlite")
        build_index(path, names, groups, LocalEngine(0), str(tmp_path))
        assert content(path) == alone(str(tmp_path / f"{samples}-one.sqlite"), groups, names)


def test_processes_build_the_pieces(tmp_path):
    groups, names = groups_of((2, 2, 2), 200)
    build_index(str(tmp_path / "a"), names, groups, LocalEngine(2), str(tmp_path))
    build_index(str(tmp_path / "b"), names, groups, LocalEngine(0), str(tmp_path))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_page_of_locks_is_left_out(tmp_path, monkeypatch):
    # In real files it is at 1 GiB, where SQLite would refuse one with rows. Here, it is in the midst.
    groups, names = groups_of((3, 3), 500)
    written = []
    monkeypatch.setattr(sqlite_pages, "_LOCK_PAGE", 20)
    original = sqlite_pages.PageFile._put
    monkeypatch.setattr(
        sqlite_pages.PageFile,
        "_put",
        lambda self, number, pages: (written.append((number, pages)), original(self, number, pages)),
    )
    path = str(tmp_path / "many.sqlite")
    build_index(path, names, groups, LocalEngine(0), str(tmp_path))
    assert [pages.strip(b"\0") for number, pages in written if number == 20] == [b""]
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT count(*), count(DISTINCT sample_key) FROM samples").fetchone() == (
            3000,
            3000,
        )


@pytest.mark.parametrize("counts", [(2,), (1, 1)])
def test_duplicate_keys_are_named(tmp_path, counts):
    groups, names = groups_of(counts, 10, shuffle=0, key="same-{}")
    with pytest.raises(
        DuplicateKeyError, match=r"'same-0' appears twice: sample 0 of 0\.tar and sample 9 of 1\.tar"
    ):
        build_index(str(tmp_path / "a"), names, groups, LocalEngine(0), str(tmp_path))


def test_very_long_keys_are_written_as_well(tmp_path):
    groups, names = groups_of((1, 1), 20, key="x" * 5000 + "{}")
    path = str(tmp_path / "many.sqlite")
    build_index(path, names, groups, LocalEngine(0), str(tmp_path))
    assert content(path) == alone(str(tmp_path / "one.sqlite"), groups, names)
