"""Ranges of files, and stores of the program's own, as auxiliary data; tests slice the files themselves."""

import json
from dataclasses import dataclass

import pytest

from energon_stream import (
    AuxFileStoreReference,
    ByteRangeStore,
    Cooker,
    DefaultTaskEncoder,
    FileStore,
    SourceInfo,
    WorkerConfig,
    basic_sample_keys,
    get_loader,
    get_val_dataset,
    register_aux_filestore_protocol,
    stateless,
)
from energon_stream.errors import ConfigError, UntrustedUrlError
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.samples import TextSample
from energon_stream.testing.datasets import CRUDE_YAML, write_shards

BLOB = bytes(range(256)) * 8
RANGES = [(17 * number % 1900, number * 5) for number in range(24)]


@pytest.fixture
def lake(tmp_path):
    def part(number):
        offset, size = RANGES[number]
        return {"json": json.dumps({"key": f"in/blob.bin#bytes={offset}:{size}"}).encode()}

    write_shards(tmp_path / "crude", shards=2, samples_per_shard=12, parts=part)
    prepare_dataset(str(tmp_path / "crude"), split_ratio=(1, 0, 0), dataset_yaml=CRUDE_YAML)
    (tmp_path / "blobs" / "in").mkdir(parents=True)
    (tmp_path / "blobs" / "in" / "blob.bin").write_bytes(BLOB)
    (tmp_path / "secret").write_bytes(b"secret")
    return tmp_path


@stateless
def cook(sample, *, blobs):
    found = blobs.get(sample["json"]["key"], sample)
    return TextSample(**basic_sample_keys(sample), text=found if isinstance(found, str) else found.hex())


class Encoder(DefaultTaskEncoder):
    cookers = [Cooker(cook)]


def read(lake, url, workers=0, server=None, bucket="", **options):
    node = {"path": "crude", "aux": {"blobs": url}}
    head = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
    path = lake / "mix.yaml"
    path.write_text(json.dumps({**head, "splits": {"train": node}}))
    if server is not None:
        server.upload_folder(lake, f"{bucket}/lake")
        server.reset_counters()
        path, options["storage_options"] = f"{bucket}/lake/mix.yaml", server.storage_options
    config = WorkerConfig(0, 1, workers, num_streams=2)
    dataset = get_val_dataset(
        path, split_part="train", batch_size=None, worker_config=config, task_encoder=Encoder(), **options
    )
    with get_loader(dataset) as loader:
        return sorted((sample.__key__, sample.text, len(sample.__sources__)) for sample in loader)


SLICES = sorted(
    (f"data-{number // 12:06d}.tar/{number:08d}", BLOB[offset : offset + size].hex(), 2)
    for number, (offset, size) in enumerate(RANGES)
)


def test_cookers_look_up_ranges_of_files(lake, s3_server, tmp_bucket):
    for workers in (0, 2):
        assert read(lake, "byterange://blobs", workers=workers) == SLICES
    assert read(lake, f"byterange://{lake}/blobs") == SLICES
    for url in ("byterange://blobs", f"byterange+{tmp_bucket}/lake/blobs"):
        assert read(lake, url, server=s3_server, bucket=tmp_bucket) == SLICES
        asked = [each for each in s3_server.log() if each.key.endswith("blob.bin")]
        assert {each.bytes for each in asked} <= {size for _, size in RANGES}  # nothing but the ranges


def test_a_range_that_a_file_does_not_have_costs_its_sample(lake, s3_server, tmp_bucket):
    """One key names bytes beyond the end, another a file that is not there: all other samples come."""

    def part(number):
        offset, size = RANGES[number]
        path = "gone.bin" if number == 7 else "in/blob.bin"
        return {
            "json": json.dumps({"key": f"{path}#bytes={3000 if number == 5 else offset}:{size}"}).encode()
        }

    write_shards(lake / "crude", shards=2, samples_per_shard=12, parts=part)
    prepare_dataset(str(lake / "crude"), split_ratio=(1, 0, 0), dataset_yaml=CRUDE_YAML, force=True)
    wanted = [each for each in SLICES if not each[0].endswith(("/00000005", "/00000007"))]
    assert read(lake, "byterange://blobs") == wanted
    assert read(lake, "byterange://blobs", server=s3_server, bucket=tmp_bucket) == wanted


def test_a_store_of_ranges(lake):
    store, seen = ByteRangeStore(lake / "blobs"), {"__sources__": ()}
    assert (
        store["in/blob.bin#bytes=3:4"][0] == BLOB[3:7] == store.read_range("in/blob.bin", 3, 4, sample=seen)
    )
    assert [source.dataset_path for source in seen["__sources__"]] == [str(lake / "blobs")]
    assert store.read_range("in/blob.bin", 3, 0) == b""
    assert store.open("in/blob.bin#bytes=3:4")[0].read(2) == BLOB[3:5]
    (lake / "blobs" / "a#bytes=1:2").write_bytes(b"odd name")
    assert store.read_range("a#bytes=1:2", 4, 4) == b"name"
    for key in ("in/blob.bin", "in/blob.bin#bytes=3", "in/blob.bin#bytes=-1:2", "in/blob.bin#bytes=1:2:3",
                "in/blob.bin#bytes=1:x", "#bytes=1:2", "in/blob.bin#bytes=٣:٤", "in/blob.bin#bytes=1:" + "9" * 30):  # fmt: skip
        with pytest.raises(ValueError, match="names no range of a file"):
            store[key]
    for path in ("../secret", "in/../../secret", str(lake / "secret"), "/etc/passwd", "..", "."):
        with pytest.raises(ValueError, match="is not a path within this folder"):
            store.read_range(path, 0, 3)
    for offset, size in ((len(BLOB) - 2, 5), (len(BLOB) + 9, 1)):
        with pytest.raises(OSError, match="blob"):
            store.read_range("in/blob.bin", offset, size)
    with pytest.raises(FileNotFoundError):
        store.read_range("nope.bin", 0, 1)


@dataclass(frozen=True)
class Folder(FileStore):
    """Returns texts that it makes itself."""

    path: str

    def __getitem__(self, key):
        return f"{self.path}: {key}", SourceInfo(self.path, key, None, (key,))

    def get_path(self):
        return self.path


class Reference(AuxFileStoreReference):
    def __init__(self, rest):
        self.rest = rest

    def _resolve_path(self, recipe_path):
        self.rest = f"{recipe_path.name}/{self.rest}"

    def get_file_store(self):
        return Folder(self.rest)


def test_a_program_registers_a_protocol(lake, s3_server, tmp_bucket):
    register_aux_filestore_protocol("my-Store.2", Reference, override=True)
    assert Reference("x").get_traversed_path() == "x"
    keys = [f"in/blob.bin#bytes={offset}:{size}" for offset, size in RANGES]
    for workers in (0, 2):
        found = read(lake, "MY-store.2://a/b?c", workers=workers)
        assert sorted(text for _, text, _ in found) == sorted(f"mix.yaml/a/b?c: {key}" for key in keys)
    remote = {"server": s3_server, "bucket": tmp_bucket}
    with pytest.raises(UntrustedUrlError, match="outside its store"):
        read(lake, "my-store.2://a", **remote)
    assert len(read(lake, "my-store.2://a", **remote, allow_urls=["my-store.2://"])) == len(RANGES)


@pytest.mark.parametrize("name", ["", "a b", "1a", "a/b", "a:", "ä", "-a"])
def test_names_that_are_no_protocol(name):
    with pytest.raises(ValueError, match="is no protocol"):
        register_aux_filestore_protocol(name, Reference)


def test_a_name_is_taken_once():
    register_aux_filestore_protocol("once", Reference, override=True)
    for name in ("once", "ONCE", "filesystem", "byterange"):
        with pytest.raises(ConfigError, match="is taken"):
            register_aux_filestore_protocol(name, Reference)
    register_aux_filestore_protocol("once", Reference, override=True)
