"""Indices that do more than hold rows: refused by name, whoever opens them, and nothing of them runs."""

import contextlib
import io
import itertools
import shutil
import sqlite3
import struct

import pytest
from in_order import read_in_order
from PIL import Image

from energon_stream import (
    DefaultTaskEncoder,
    ReadOptions,
    add_media_table,
    compute_costs,
)
from energon_stream.auxiliary import WebdatasetFileStore
from energon_stream.errors import EnergonStreamError, MetadataError
from energon_stream.index.guarded_sqlite import connect_local
from energon_stream.index.sqlite_index import INDEX_SQLITE
from energon_stream.prepare.media_headers import MediaFilter
from energon_stream.prepare.media_tables import prepare_media
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.storage import StoreSpec
from energon_stream.testing.datasets import CRUDE_YAML, write_shards
from energon_stream.tools.file_tree import FileTree

SAMPLES = 6
ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 0 UNION ALL SELECT x + 1 FROM c)"
TEXT = "printf('%.*c', 900000000, 'x')"
HARD = "instr(printf('%.*c', 2000000, 'a'), printf('%.*c', 1000000, 'a') || 'b')"
VIEWS = {
    "samples": f"{ENDLESS} SELECT 0 AS tar_file_id, {TEXT} AS sample_key, x AS sample_index, 0 AS byte_offset, "
    "512 AS byte_size FROM c",
    "sample_parts": f"{ENDLESS} SELECT 0 AS tar_file_id, x AS sample_index, 'txt' AS part_name, "
    "512 AS content_byte_offset, 1 AS content_byte_size FROM c",
    "media_metadata": f"{ENDLESS} SELECT x AS entry_key, 'image' AS metadata_type, {TEXT} AS metadata_json FROM c",
    "media_filters": f"{ENDLESS} SELECT x AS filter_id, 'EXTENSION' AS strategy, {TEXT} AS patterns FROM c",
}


def replaced(table, statement):
    return f"DROP TABLE {table}; {statement}"


ATTACKS = {
    **{f"view {table}": replaced(table, f"CREATE VIEW {table} AS {text}") for table, text in VIEWS.items()},
    "view with another case": replaced("samples", f"CREATE VIEW SAMPLES AS {VIEWS['samples']}"),
    "computed key": replaced(
        "samples",
        "CREATE TABLE samples (tar_file_id INTEGER, sample_index INTEGER, byte_offset INTEGER, "
        f"byte_size INTEGER, sample_key TEXT AS ({TEXT}))",
    ),
    "computed place": replaced(
        "sample_parts",
        "CREATE TABLE sample_parts (tar_file_id INTEGER, sample_index INTEGER, part_name TEXT, "
        f"content_byte_size INTEGER, content_byte_offset INTEGER AS ({HARD}) VIRTUAL)",
    ),
    "full-text": replaced(
        "sample_parts",
        "CREATE VIRTUAL TABLE sample_parts USING fts5(tar_file_id, sample_index, part_name, "
        "content_byte_offset, content_byte_size)",
    ),
}
WRITTEN = {
    "trigger": "CREATE TRIGGER t AFTER INSERT ON media_metadata BEGIN INSERT INTO media_metadata "
    "SELECT new.entry_key || x, 'image', 'x' FROM (WITH RECURSIVE c(x) AS (SELECT 0 UNION ALL SELECT x + 1 FROM c) "
    "SELECT x FROM c); END",
    "check": replaced(
        "media_metadata",
        "CREATE TABLE media_metadata (entry_key TEXT PRIMARY KEY, metadata_type TEXT NOT NULL, "
        f"metadata_json TEXT NOT NULL CHECK ({HARD} = 0))",
    ),
}
REFUSED_TO_WRITE = {
    "default": replaced(
        "media_filters",
        "CREATE TABLE media_filters (filter_id INTEGER PRIMARY KEY, strategy TEXT, patterns TEXT, "
        f"created_at_utc TEXT DEFAULT ({HARD}))",
    ),
    "index": f"DELETE FROM media_metadata; CREATE INDEX i ON media_metadata({HARD})",
    "partial index": f"DELETE FROM media_metadata; CREATE INDEX i ON media_metadata(entry_key) WHERE {HARD} > 0",
}
_numbers = itertools.count()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "data"
    image = io.BytesIO()
    Image.new("L", (8, 6)).save(image, "PNG")
    parts = lambda index: {"bin": bytes(3000), "png": image.getvalue(), "txt": b"text %d" % index}  # noqa: E731
    write_shards(folder, shards=2, samples_per_shard=SAMPLES // 2, parts=parts)
    media = MediaFilter("EXTENSION")
    prepare_dataset(str(folder), split_ratio=(1, 0, 0), dataset_yaml=CRUDE_YAML, media_filter=media)
    (folder / "bad.txt").write_text("00000001\n")
    (folder / "excluding.yaml").write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n"
        "    path: .\n    exclude: bad.txt\n"
    )
    return folder


@pytest.fixture
def damaged(folder):
    """A copy of the dataset with another index. Each has a name of its own: indices stay open."""
    copy = folder.parent / f"copy{next(_numbers)}"
    shutil.copytree(folder, copy)

    def change(script):
        with contextlib.closing(sqlite3.connect(copy / INDEX_SQLITE)) as database:
            database.executescript(script)
        return copy

    yield change
    shutil.rmtree(copy)


class Texts(DefaultTaskEncoder):
    decoder = None

    def batch(self, samples):
        return [bytes(sample["txt"]) for sample in samples]


def train(path, **options):
    few = ReadOptions(max_gap=600, first_samples=2)
    return read_in_order(path, Texts(), batch_size=3, parts=["txt"], read_options=few, **options)


def append(path):
    write_shards(
        path, shards=1, samples_per_shard=1, parts=lambda _: {"txt": b"x"}, name="new.tar", key="new"
    )
    prepare_dataset(str(path), append=True, split_ratio=(1, 0, 0))


WAYS = {
    "by name": lambda path: WebdatasetFileStore(path)["00000001.txt"],
    "metadata": lambda path: WebdatasetFileStore(path).get_media_metadata("00000001.png"),
    "tree": lambda path: list(FileTree(StoreSpec(str(path))).names("")),
    "exclude": lambda path: train(path / "excluding.yaml"),
    "append": append,
    "media table": lambda path: add_media_table(str(path)),
    "media costs": lambda path: compute_costs(str(path), "pixels", media="width * height"),
    "media again": lambda path: prepare_media(str(path), MediaFilter("HEADER")),
}


@pytest.mark.every(3)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("attack", ATTACKS)
def test_only_tables_are_read(damaged, attack, way):
    path = damaged(ATTACKS[attack])
    with pytest.raises(MetadataError, match=r"the index cannot be used: .*prepare` again") as caught:
        WAYS[way](path)
    assert INDEX_SQLITE in caught.value.where


@pytest.mark.parametrize("attack", ATTACKS)
def test_training_reads_whole_samples_instead(damaged, attack, caplog, s3_server, tmp_bucket):
    s3_server.upload_folder(damaged(ATTACKS[attack]), f"{tmp_bucket}/data")
    found = train(f"{tmp_bucket}/data", storage_options=s3_server.storage_options)
    assert sorted(found) == [b"text %d" % index for index in range(SAMPLES)]
    assert "the index cannot be used" in caplog.text


@pytest.mark.parametrize("attack", WRITTEN)
def test_what_would_run_when_rows_are_written_does_not(damaged, attack):
    path = damaged(WRITTEN[attack])
    assert prepare_media(str(path), MediaFilter("EXTENSION")).stored == SAMPLES
    with contextlib.closing(sqlite3.connect(path / INDEX_SQLITE)) as database:
        assert database.execute("SELECT count(*) FROM media_metadata").fetchone() == (SAMPLES,)


@pytest.mark.parametrize("attack", REFUSED_TO_WRITE)
def test_what_would_have_to_run_when_rows_are_written_is_refused(damaged, attack):
    path = damaged(REFUSED_TO_WRITE[attack])
    with pytest.raises(MetadataError, match=r"index of more than columns|is computed"):
        prepare_media(str(path), MediaFilter("HEADER"))


def endless(path, table):
    """Let the pages of a table refer to one page so often that no one can read all rows."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        (size,) = database.execute("PRAGMA page_size").fetchone()
        (root,) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
        (count,) = database.execute("PRAGMA page_count").fetchone()
    data = bytearray(path.read_bytes()[: count * size])
    leaf = data[(root - 1) * size : root * size]
    assert leaf[0] == 0x0D  # all rows are on one page
    data += leaf
    below = count + 1
    for _ in range(6):
        data += inner_page(size, below)
        below += 1
    data[(root - 1) * size : root * size] = inner_page(size, below)
    data[28:32] = struct.pack(">I", len(data) // size)
    path.write_bytes(data)


def inner_page(size, child):
    cells = 300
    cell = struct.pack(">I", child) + b"\x05"
    content = cell * cells
    pointers = b"".join(struct.pack(">H", size - len(content) + at * len(cell)) for at in range(cells))
    head = struct.pack(">BHHHBI", 5, 0, cells, size - len(content), 0, child)
    return (head + pointers).ljust(size - len(content), b"\0") + content


@pytest.mark.every(3)
@pytest.mark.parametrize("table", ["samples", "sample_parts", "media_metadata"])
def test_pages_that_refer_to_each_other_without_end_are_refused(damaged, table):
    path = damaged("")
    endless(path / INDEX_SQLITE, table)
    with contextlib.closing(connect_local(str(path / INDEX_SQLITE), "the index")) as index:
        query = f"SELECT * FROM {table}"
        with pytest.raises(MetadataError, match="takes more than"):
            for _ in index.select(query):
                pass
    for way in WAYS.values():
        with contextlib.suppress(EnergonStreamError):
            way(path)


def test_rows_that_are_joined_too_often_are_refused(damaged):
    """Each of 3,000 parts belongs to each of 3,000 samples."""
    rows = "WITH RECURSIVE c(x) AS (SELECT 0 UNION ALL SELECT x + 1 FROM c LIMIT 3000)"
    path = damaged(
        "DELETE FROM samples; DELETE FROM sample_parts;"
        + "INSERT INTO samples "
        + rows
        + " SELECT 0, 'k' || x, 1, 0, 512 FROM c;"
        + "INSERT INTO sample_parts "
        + rows
        + " SELECT 0, 1, 'p' || x, 512, 1 FROM c"
    )
    query = "SELECT part_name FROM samples JOIN sample_parts USING (tar_file_id, sample_index)"
    index = connect_local(str(path / INDEX_SQLITE), "the index")
    with contextlib.closing(index), pytest.raises(MetadataError, match="takes more than"):
        for _ in index.select(query):
            pass


def test_texts_that_are_not_unicode_are_named(damaged):
    path = damaged("UPDATE samples SET sample_key = CAST(x'ff00ff' AS TEXT) WHERE sample_key = '00000001'")
    with pytest.raises(MetadataError, match="cannot be used"):
        append(path)
