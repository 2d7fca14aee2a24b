"""Damaged files of datasets: the right samples, or a named error with the file and what to do."""

import contextlib
import itertools
import json
import os
import re
import shutil
import sqlite3

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from in_order import read_in_order
from repetitions import examples

from energon_stream import DefaultTaskEncoder, ReadOptions
from energon_stream.auxiliary import WebdatasetFileStore
from energon_stream.errors import EnergonStreamError, MetadataError
from energon_stream.index.checksums import CHECKSUMS
from energon_stream.index.jsonl_index import prepare_jsonl
from energon_stream.index.sqlite_index import INDEX_SQLITE
from energon_stream.media.metadata import deserialize_media_metadata
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.storage import StoreSpec
from energon_stream.testing.datasets import CRUDE_YAML, write_shards
from energon_stream.tools.file_tree import FileTree

SAMPLES = 30
TAR, IDX = "data-000000.tar", "data-000000.tar.idx"
changes = st.lists(
    st.tuples(
        st.sampled_from(["flip", "byte", "cut", "insert", "zero", "copy"]),
        st.integers(0, 1 << 30),
        st.integers(0, 1 << 30),
    ),
    min_size=1,
    max_size=3,
)
_numbers = itertools.count()


def damage(content, changes):
    """Apply changes, each a kind and two numbers that are taken modulo what there is."""
    data = bytearray(content)
    for kind, first, second in changes:
        at = first % max(1, len(data))
        if kind == "flip" and data:
            data[at] ^= 1 << second % 8
        elif kind == "byte" and data:
            data[at] = second % 256
        elif kind == "cut":
            del data[at : at + second % 600]
        elif kind == "insert":
            data[at:at] = bytes([second % 256]) * (second % 17)
        elif kind == "zero":
            data[at : at + 64] = bytes(len(data[at : at + 64]))
        elif kind == "copy":
            from_ = second % max(1, len(data))
            data[at : at + 16] = data[from_ : from_ + len(data[at : at + 16])]
    return bytes(data)


def parts(index):
    return {"bin": b"%d" % index * 100, "txt": b"text %d" % index}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "data"
    write_shards(folder, shards=1, samples_per_shard=SAMPLES, parts=parts)
    prepare_dataset(str(folder), split_ratio=(1, 0, 0), dataset_yaml=CRUDE_YAML, checksums=True)
    with contextlib.closing(sqlite3.connect(folder / INDEX_SQLITE)) as database:
        database.execute(
            "CREATE TABLE media_metadata (entry_key TEXT PRIMARY KEY, metadata_type, metadata_json)"
        )
        for index in range(SAMPLES):
            image = json.dumps({"width": index, "height": 1, "format": "PNG", "mode": "RGB"})
            database.execute("INSERT INTO media_metadata VALUES (?, 'image', ?)", (f"{index:08d}.bin", image))
        database.commit()
    return folder


@contextlib.contextmanager
def copied(folder, name, content):
    """A copy of the dataset with another file. Each has a name of its own, because indices stay open."""
    copy = folder.parent / f"copy{next(_numbers)}"
    shutil.copytree(folder, copy, copy_function=os.link)
    (copy / name).unlink()
    (copy / name).write_bytes(content)
    yield copy
    shutil.rmtree(copy)


class Texts(DefaultTaskEncoder):
    decoder = None

    def batch(self, samples):
        return [{name: bytes(sample[name]) for name in ("bin", "txt")} for sample in samples]


def read(path, encoder=None, **options):
    return read_in_order(path, encoder or Texts(), batch_size=5, **options)


EXPECTED = [parts(index) for index in range(SAMPLES)]


@given(changes)
@example([("cut", 0, 512)])
@examples(60)
def test_a_damaged_tar_is_noticed_by_its_checksums(folder, changes):
    with copied(folder, TAR, damage((folder / TAR).read_bytes(), changes)) as copy:
        try:
            assert read(copy, read_options=ReadOptions(verify="always")) == EXPECTED
        except EnergonStreamError as error:
            assert TAR in str(error)  # noqa: PT017


@given(changes)
@example([("zero", 0, 0)])
@examples(60)
def test_a_damaged_offset_index_leads_to_no_other_samples(folder, changes):
    with copied(folder, IDX, damage((folder / IDX).read_bytes(), changes)) as copy:
        try:
            assert read(copy) == EXPECTED
        except EnergonStreamError as error:
            assert TAR in str(error)  # noqa: PT017
            assert re.search(r"prepare.* again", str(error))  # noqa: PT017


@given(changes)
@examples(30)
def test_damaged_checksums_are_refused(folder, changes):
    with copied(folder, CHECKSUMS, damage((folder / CHECKSUMS).read_bytes(), changes)) as copy:
        try:
            assert read(copy, read_options=ReadOptions(verify="always")) == EXPECTED
        except EnergonStreamError as error:
            assert "checksum" in str(error)  # noqa: PT017
            assert "again" in str(error)  # noqa: PT017


@given(changes, st.integers(0, SAMPLES - 1))
@examples(80)
def test_a_damaged_database_has_no_other_bytes(folder, changes, number):
    """Lookups by name compare the tar's header with the index."""
    with copied(folder, INDEX_SQLITE, damage((folder / INDEX_SQLITE).read_bytes(), changes)) as copy:
        name = f"{number:08d}.txt"
        try:
            assert WebdatasetFileStore(copy)[name][0] == parts(number)["txt"]
        except EnergonStreamError as error:
            assert str(copy) in str(error)  # noqa: PT017
        with contextlib.suppress(EnergonStreamError):
            list(FileTree(StoreSpec(str(copy))).names(""))
        with contextlib.suppress(EnergonStreamError):
            WebdatasetFileStore(copy).get_media_metadata(f"{number:08d}.bin")


cells = st.one_of(
    st.none(), st.integers(-(1 << 63), (1 << 63) - 1), st.floats(), st.text(max_size=5), st.binary(max_size=5)
)


@given(
    st.sampled_from(["tar_file_id", "sample_index", "content_byte_offset", "content_byte_size", "part_name"]),
    cells,
    st.integers(0, SAMPLES - 1),
)
@examples(60)
def test_a_wrong_cell_is_named(folder, column, cell, number):
    with copied(folder, INDEX_SQLITE, (folder / INDEX_SQLITE).read_bytes()) as copy:
        with contextlib.closing(sqlite3.connect(copy / INDEX_SQLITE)) as database:
            where = "WHERE sample_index = ? AND part_name = 'txt'"
            database.execute(f"UPDATE sample_parts SET {column} = ? {where}", (cell, number))
            database.commit()
        try:
            assert WebdatasetFileStore(copy)[f"{number:08d}.txt"][0] == parts(number)["txt"]
        except EnergonStreamError as error:
            assert str(copy) in str(error)  # noqa: PT017
        with contextlib.suppress(EnergonStreamError):
            FileTree(StoreSpec(str(copy))).read(f"{number:08d}.txt", 0, 10)


class Records(DefaultTaskEncoder):
    decoder = None

    def batch(self, samples):
        return [sample["json"]["number"] for sample in samples]


@given(changes)
@example([("flip", 0, 0)])
@examples(60)
def test_a_damaged_jsonl_index_leads_to_all_records_or_an_error(tmp_path_factory, changes):
    folder = tmp_path_factory.mktemp("lines")
    lines = [json.dumps({"number": number}).encode() for number in range(SAMPLES)]
    (folder / "x.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    prepare_jsonl(str(folder / "x.jsonl"))
    index = folder / "x.jsonl.idx"
    index.write_bytes(damage(index.read_bytes(), changes))
    try:
        found = read(folder / "x.jsonl", Records())
    except EnergonStreamError as error:
        assert "x.jsonl" in str(error)  # noqa: PT017
    else:
        assert found == list(range(SAMPLES))
    shutil.rmtree(folder)


@given(changes)
@examples(40)
def test_a_damaged_index_on_the_node_is_built_again(folder, tmp_path_factory, changes):
    kept = tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENERGON_STREAM_CACHE_DIR", str(kept))
        path, options = folder / TAR, {"cache": False}
        assert read(path, **options) == EXPECTED
        (index,) = kept.rglob("*.idx")
        index.write_bytes(damage(index.read_bytes(), changes))
        assert read(path, **options) == EXPECTED
    shutil.rmtree(kept)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.sampled_from(["image", "av", "other"]),
    st.text(max_size=30)
    | values.map(json.dumps)
    | st.fixed_dictionaries(dict.fromkeys(("width", "height", "format", "mode"), values)).map(json.dumps)
    | st.none()
    | st.integers()
    | st.binary(max_size=9),
)
@example("image", "[" * 100_000)
@example("image", '{"width": ' + "1" * 10_000 + "}")
@examples(100)
def test_media_metadata_is_refused_by_name(kind, text):
    try:
        metadata = deserialize_media_metadata(kind, text)
    except MetadataError:
        return
    for name, value in metadata.to_dict().items():
        expected = str if name in ("format", "mode") else (int, float)
        assert isinstance(value, expected), name
