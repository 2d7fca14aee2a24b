"""File stores: what they give, what a lookup costs, and what they refuse."""

import contextlib
import io
import pickle
import shutil
import sqlite3
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from energon_stream import (
    DecodeFileStore,
    FileStore,
    PrimaryFileStore,
    SampleDecoder,
    SystemFileStore,
)
from energon_stream.auxiliary import WebdatasetFileStore
from energon_stream.errors import (
    DecodeError,
    FieldError,
    IndexMismatchError,
    MetadataError,
    NotPreparedError,
    ObjectChangedError,
    SampleError,
    UnsupportedStoreError,
)
from energon_stream.index.remote_sqlite import RemoteFile
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.samples import SourceInfo, TextSample
from energon_stream.storage import StoreSpec
from energon_stream.testing.datasets import CRUDE_YAML, random_bytes, write_shards
from energon_stream.testing.s3server import S3Server
from energon_stream.tools.file_tree import FileTree

SAMPLES, PAYLOAD = 60, 20_000


def media(number):
    return {"bin": random_bytes(PAYLOAD, "media", number), "json": b'{"number": %d}' % number}


@pytest.fixture(scope="module")
def bucket(tmp_path_factory):
    """A bucket with the same data as a prepared dataset and as plain files."""
    root = tmp_path_factory.mktemp("s3")
    folder = root / "bucket" / "tars"
    write_shards(folder, shards=3, samples_per_shard=SAMPLES // 3, parts=media, key="in/{:04d}")
    prepare_dataset(str(folder), split_ratio=(1, 0, 0), dataset_yaml=CRUDE_YAML)
    (folder / ".nv-meta" / "dataset.yaml").unlink()  # auxiliary data needs none
    plain = root / "bucket" / "files" / "in"
    plain.mkdir(parents=True)
    for number in range(SAMPLES):
        for part, data in media(number).items():
            (plain / f"{number:04d}.{part}").write_bytes(data)
    return root / "bucket"


@pytest.fixture
def server(bucket):
    with S3Server(bucket.parent) as server:
        yield server


KINDS = {"tars": WebdatasetFileStore, "files": SystemFileStore}


def store_of(kind, place, bucket, server):
    if place == "local":
        return KINDS[kind](StoreSpec(str(bucket / kind)))
    return KINDS[kind](StoreSpec(f"s3://bucket/{kind}", server.storage_options))


@pytest.mark.parametrize("place", ["local", "s3"])
@pytest.mark.parametrize("kind", KINDS)
def test_data_by_name_with_its_source(kind, place, bucket, server):
    store = store_of(kind, place, bucket, server)
    data, source = store["in/0042.bin"]
    assert type(data) is bytes
    assert data == media(42)["bin"]
    assert source.file_names == ("in/0042.bin",)
    assert (source.dataset_path, source.shard_name) == (
        store.get_path(),
        "data-000002.tar" if kind == "tars" else None,
    )
    sample = TextSample(__key__="k", __restore_key__=(), text="", __sources__=None)
    crude = {"__sources__": (source,)}
    for _ in range(2):  # noted once
        assert store.get("in/0000.json", sample) == media(0)["json"] == store.get("in/0000.json", crude)
    assert [len(sample.__sources__), len(crude["__sources__"])] == [1, 2]
    with pytest.raises(FieldError, match=r"no 'in/nothing.bin' \["):
        store["in/nothing.bin"]
    with pytest.raises(UnsupportedStoreError, match="media metadata"):
        store.get_media_metadata("in/0000.bin")
    again = pickle.loads(pickle.dumps(store))
    assert (again, hash(again)) == (store, hash(store))
    assert again["in/0042.bin"] == (data, source)


def test_decoding_and_names_relative_to_a_sample(bucket, server):
    store = DecodeFileStore(store_of("tars", "local", bucket, server), decoder=SampleDecoder())
    assert isinstance(store, FileStore)
    primary = PrimaryFileStore(store, "in/0007")
    assert primary.get(".json") == primary.get("in/0007.json") == {"number": 7}
    assert primary.get("in/0008.json") == store.get("in/0008.json") == {"number": 8}
    assert primary.decode(".json", primary.read(".json")[0]) == {"number": 7}
    with pytest.raises(DecodeError):
        DecodeFileStore(Upper(), decoder=SampleDecoder())["x.json"]
    assert DecodeFileStore(Upper(), decoder=SampleDecoder())["x.txt"][0] == "X.TXT"


class Upper(FileStore[bytes]):
    """What a user may write: the two abstract methods and nothing else."""

    def __getitem__(self, key):
        return key.upper().encode(), SourceInfo("upper", key, None, (key,))

    def get_path(self):
        return "upper"


@pytest.mark.parametrize("key", ["../tars/data-000000.tar", "/etc/hostname", "in/../../x", "", "."])
def test_names_do_not_lead_out_of_the_folder(bucket, key):
    with pytest.raises(SampleError, match="not a path within this folder"):
        SystemFileStore(bucket / "files")[key]


@pytest.mark.parametrize("kind", KINDS)
def test_a_lookup_is_one_request_of_its_own_bytes(kind, bucket, server):
    """Facts 4.9: Megatron-Energon asks HEAD and the whole shard for each."""
    store = store_of(kind, "s3", bucket, server)
    store["in/0000.bin"]
    server.reset_counters()
    for number in range(SAMPLES):
        assert store[f"in/{number:04d}.bin"][0] == media(number)["bin"]
    counters = server.counters()
    assert counters.requests == {"GET": SAMPLES}
    header = 512 if kind == "tars" else 0  # whose name and size are compared with the index
    assert counters.bytes_sent == SAMPLES * (PAYLOAD + header)
    if kind == "tars":
        assert all(entry.key.endswith(".tar") and entry.range for entry in server.log())


def test_all_stores_of_a_process_share_one_index(bucket, server):
    for _ in range(5):
        store_of("tars", "s3", bucket, server)["in/0001.bin"]
    assert [entry.key for entry in server.log() if ".nv-meta" in entry.key] == [
        "bucket/tars/.nv-meta/.info.json",
        "bucket/tars/.nv-meta/index.sqlite",
    ]
    assert "HEAD" not in server.counters().requests


def test_a_replaced_shard_is_an_error(bucket, server):
    for name in (".nv-meta/.info.json", ".nv-meta/index.sqlite", "data-000000.tar"):
        server.put(f"s3://other/d/{name}", (bucket / "tars" / name).read_bytes())
    store = WebdatasetFileStore(StoreSpec("s3://other/d", server.storage_options))
    store["in/0001.bin"]
    server.replace("s3://other/d/data-000000.tar", b"x" * (bucket / "tars/data-000000.tar").stat().st_size)
    with pytest.raises(ObjectChangedError):
        store["in/0002.bin"]


def test_what_is_no_prepared_dataset_is_named(tmp_path, tmp_bucket, s3_server):
    (tmp_path / "x.bin").touch()
    with pytest.raises(NotPreparedError, match=r"\.info\.json not found.*filesystem://"):
        WebdatasetFileStore(StoreSpec(str(tmp_path)))["x.bin"]
    s3_server.put(f"{tmp_bucket}/.nv-meta/.info.json", b'{"shard_counts": {}}')
    store = WebdatasetFileStore(StoreSpec(tmp_bucket, s3_server.storage_options))
    with pytest.raises(NotPreparedError, match=r"index\.sqlite not found"):
        store["x.bin"]
    s3_server.put(f"{tmp_bucket}/.nv-meta/index.sqlite", b"no database at all" * 1000)
    with pytest.raises(MetadataError, match=r"index cannot be used.*index\.sqlite"):
        store["x.bin"]


class TestRemoteFile:
    """Reading the touched lines of a large file, each once."""

    CONTENT = random_bytes(100_500, "file")

    def open(self, server, **limits):
        server.put("s3://lines/file", self.CONTENT)
        server.reset_counters()
        store = StoreSpec("s3://lines/file", server.storage_options).open()
        return RemoteFile(store, "", **{"line": 1000, "first": 2500, **limits})

    def test_any_range_and_no_line_twice(self, s3_server):
        file = self.open(s3_server)
        assert file.size == len(self.CONTENT)
        for offset, amount in [(0, 100), (16, 16), (950, 2100), (99_990, 9999), (100_499, 1), (50_000, 0)]:
            assert file.read(offset, amount) == self.CONTENT[offset : offset + amount]
        assert s3_server.counters().requests == {"GET": 1 + 4}  # the end, and lines 0 to 3
        with ThreadPoolExecutor(8) as pool:
            barrier = threading.Barrier(8)

            def read(_):
                barrier.wait()
                return file.read(0, file.size)

            assert set(pool.map(read, range(8))) == {self.CONTENT}
        assert s3_server.counters().requests == {"GET": 1 + 98}

    def test_what_is_kept_is_bounded(self, s3_server):
        file = self.open(s3_server, keep=5000)
        for _ in range(3):
            assert file.read(0, 10_000) == self.CONTENT[:10_000]
        assert s3_server.counters().requests == {"GET": 1 + 2 + 3 * 8}

    def test_a_failed_line_is_asked_for_again(self, s3_server):
        file = self.open(s3_server)
        s3_server.delete("s3://lines/file")
        with pytest.raises(OSError, match="no such object"):
            file.read(0, 10)
        s3_server.put("s3://lines/file", self.CONTENT)
        assert file.read(0, 10) == self.CONTENT[:10]
        s3_server.put("s3://lines/file", self.CONTENT[::-1])
        with pytest.raises(ObjectChangedError):
            file.read(20_000, 10)


@pytest.mark.parametrize(
    "damage",
    [
        "tar_file_id = 99",
        "tar_file_id = -1",
        "content_byte_offset = 'x'",
        "content_byte_offset = 100",
        "content_byte_size = NULL",
        "content_byte_size = -5",
        "sample_index = sample_index + 0.5",
    ],
)
def test_places_of_a_wrong_type_or_range_are_named(bucket, tmp_path, damage):
    folder = shutil.copytree(bucket / "tars", tmp_path / "tars")
    database = sqlite3.connect(folder / ".nv-meta/index.sqlite")
    with contextlib.closing(database):
        for table in ("samples", "sample_parts"):
            if table == "sample_parts" or "content" not in damage:
                database.execute(f"UPDATE {table} SET {damage}")
        database.commit()
    with pytest.raises(MetadataError, match=r"index cannot be used.*index\.sqlite.*prepare` again"):
        WebdatasetFileStore(folder)["in/0003.bin"]
    if "sample_index" not in damage and "offset = 100" not in damage:
        tree = FileTree(StoreSpec(str(folder)))
        with pytest.raises(MetadataError, match=r"index cannot be used.*index\.sqlite.*prepare` again"):
            tree.read("in/0003.bin", 0, 10)


def test_the_bytes_of_another_part_are_noticed(bucket, tmp_path):
    """The header before a part has another name or size than the index."""
    folder = shutil.copytree(bucket / "tars", tmp_path / "tars")
    database = sqlite3.connect(folder / ".nv-meta/index.sqlite")
    with contextlib.closing(database):
        for mine, other in ((0, 1), (2, None)):
            query = (
                "SELECT content_byte_offset FROM sample_parts WHERE sample_index = ? AND part_name = 'bin'"
            )
            offset = 1024 if other is None else database.execute(query, (other,)).fetchone()[0]
            change = (
                "UPDATE sample_parts SET content_byte_offset = ? WHERE sample_index = ? AND part_name = 'bin'"
            )
            database.execute(change, (offset, mine))
        database.commit()
    store = WebdatasetFileStore(folder)
    for number in (0, 2):
        with pytest.raises(IndexMismatchError, match=rf"about 'in/000{number}\.bin'.*data-000000\.tar"):
            store[f"in/000{number}.bin"]
    assert store["in/0001.bin"][0] == media(1)["bin"]


def test_headers_of_all_forms_are_those_of_their_parts(tmp_path):
    """Long names, other letters, and PAX headers are in further headers, which a lookup does not read."""
    names = ["a.bin", f"{'d' * 90}/b.bin", f"{'d' * 120}/{'e' * 90}/c.bin", "é/d.bin", "e.bin"]
    for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        folder = tmp_path / f"{form}"
        folder.mkdir()
        with tarfile.open(folder / "0.tar", "w", format=form) as tar:
            for name in names:
                info = tarfile.TarInfo(name)
                info.size, info.mtime = len(name), 0.5 if form == tarfile.PAX_FORMAT else 0
                tar.addfile(info, io.BytesIO(b"x" * len(name)))
        prepare_dataset(str(folder), split_ratio=(1, 0, 0))
        store = WebdatasetFileStore(folder)
        assert [store[name][0] for name in names] == [b"x" * len(name) for name in names]
