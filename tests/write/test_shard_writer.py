"""ShardWriter writes what prepare would write, shows whole datasets only, and goes on where it was."""

import io
import json
import shutil
import sqlite3
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor

import children
import numpy as np
import pytest
from hooked_store import hooked

from energon_stream import (
    ShardWriter,
    WorkerConfig,
    finish_dataset,
    get_savable_loader,
    get_train_dataset,
)
from energon_stream.errors import (
    AccessDeniedError,
    ConfigError,
    DuplicateKeyError,
    EmptyDatasetError,
    MetadataError,
    NotPreparedError,
    SampleError,
    StorageError,
)
from energon_stream.index.dataset import read_metadata
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.storage import StoreSpec
from energon_stream.testing.datasets import random_bytes
from energon_stream.write.journal import WRITING

LONG = "folder/" * 14 + "a" * 60


def sample(number, key="{:06d}"):
    return {
        "__key__": key.format(number),
        "json": {"number": number, "text": "naïve ☃"},
        "bin": random_bytes(number % 5 * 400, "bin", number),
        "txt": f"caption {number}",
        "left.npy": np.arange(number % 4),
    }


def write(url, samples, **options):
    with ShardWriter(url, **options) as writer:
        for each in samples[writer.written :]:
            writer.write(each)
    return writer


def content(folder):
    """All files of a dataset but those that are random."""
    store = StoreSpec(str(folder)).open()
    return {
        entry.path: bytes(store.get(entry.path).data)
        for entry in store.list()
        if not entry.path.endswith(("index.uuid", "index.sqlite"))
    }


def rows(folder):
    with sqlite3.connect(folder / ".nv-meta" / "index.sqlite") as database:
        tables = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {table: database.execute(f"SELECT * FROM {table}").fetchall() for table in tables}


@pytest.mark.parametrize("max_count", [7, None])
def test_result_equals_prepare_on_the_same_tars(tmp_path, max_count):
    samples = [sample(i) for i in range(40)] + [sample(i, LONG + "{:03d}") for i in range(3)]
    samples += [sample(50, "ключ-{}"), {"__key__": "empty", "txt": ""}]
    yaml = {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}
    write(tmp_path / "a", samples, max_count=max_count, max_size=30_000, split_ratio=(3, 1, 1))
    shutil.copytree(tmp_path / "a", tmp_path / "b", ignore=lambda *_: {".nv-meta"})
    for index in (tmp_path / "b").glob("*.idx"):
        index.unlink()
    patterns = [f"{name}:data-{name}-" for name in ("train", "val", "test")]
    prepare_dataset(str(tmp_path / "b"), split_patterns=patterns, dataset_yaml=yaml, checksums=True)
    assert content(tmp_path / "a") == content(tmp_path / "b")
    assert rows(tmp_path / "a") == rows(tmp_path / "b")
    indices = [(tmp_path / name / ".nv-meta" / "index.sqlite").stat().st_size for name in "ab"]
    assert indices[0] == indices[1]  # the sizes of the samples are behind the pages
    assert not (tmp_path / "a" / WRITING).exists()
    assert max(path.stat().st_size for path in (tmp_path / "a").glob("*.tar")) <= 30_000 + 1024


def test_tarfile_reads_the_members(tmp_path):
    write(tmp_path / "a", [sample(3), sample(4, LONG + "{}")])
    with tarfile.open(tmp_path / "a" / "data-000000.tar") as tar:
        members = tar.getmembers()
        parts = ["bin", "json", "left.npy", "txt"]
        assert [member.name for member in members] == [
            f"{key}.{part}" for key in ("000003", LONG + "4") for part in parts
        ]
        assert {(m.mtime, m.uid, m.gid, m.mode, m.uname) for m in members} == {(0, 0, 0, 0o644, "")}
        found = [tar.extractfile(member).read() for member in members[:4]]
    assert found[0] == sample(3)["bin"]
    assert json.loads(found[1]) == sample(3)["json"]
    assert np.load(io.BytesIO(found[2])).tolist() == [0, 1, 2]
    assert found[3] == b"caption 3"


def test_the_dataset_loads(tmp_path):
    write(tmp_path / "a", [sample(i) for i in range(20)], max_count=8)
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    options = {"shuffle_buffer_size": None, "max_samples_per_sequence": None, "repeat": False}
    dataset = get_train_dataset(tmp_path / "a", batch_size=1, worker_config=config, **options)
    captions = {batch["txt"][0] for batch in get_savable_loader(dataset)}
    assert captions == {f"caption {i}" for i in range(20)}


def test_nothing_is_visible_before_the_end_and_a_later_writer_goes_on(tmp_path):
    samples = [sample(i) for i in range(20)]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    write(whole, samples, max_count=6)
    with pytest.raises(ZeroDivisionError), ShardWriter(cut, max_count=6) as writer:  # noqa: PT012
        for number, each in enumerate(samples):
            writer.write(each)
            if number == 14:
                raise ZeroDivisionError
    with pytest.raises(NotPreparedError):
        read_metadata(StoreSpec(str(cut)))
    assert ShardWriter(cut, max_count=6).written == 12
    for tar in cut.glob("*.tar"):
        tar.chmod(0)  # nothing reads or writes complete tars
    writer = write(cut, samples, max_count=6)
    assert writer.written == 20
    for tar in cut.glob("*.tar"):
        tar.chmod(0o644)
    assert content(cut) == content(whole)
    assert rows(cut) == rows(whole)


def test_a_tar_without_its_record_does_not_stay(tmp_path):
    samples = [sample(i) for i in range(12)]
    with pytest.raises(ZeroDivisionError), ShardWriter(tmp_path / "a", max_count=6) as writer:  # noqa: PT012
        for each in samples[:6]:
            writer.write(each)
        raise ZeroDivisionError
    (tmp_path / "a" / "data-000002.tar").write_bytes(b"of a writer that was killed")
    (tmp_path / "a" / WRITING / "00000-1.energon-tmp").write_bytes(b"the same")
    write(tmp_path / "a", samples, max_count=6)
    assert sorted(path.name for path in (tmp_path / "a").glob("*.tar")) == [
        "data-000000.tar",
        "data-000001.tar",
    ]


def test_writers_side_by_side_and_one_finish(tmp_path):
    def part(number):
        write(tmp_path / "a", [sample(i) for i in range(number, 50, 4)], max_count=5, part=number, parts=4)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(part, range(3)))
        with pytest.raises(ConfigError, match="1 of 4 parts are not complete, the first is part 3"):
            finish_dataset(str(tmp_path / "a"))
        part(3)
    counts = finish_dataset(str(tmp_path / "a"), split_patterns=["train:data-0000[0-2]", "val:data-00003"])
    assert sum(counts.values()) == 50
    assert list(counts) == sorted(counts)
    assert finish_dataset(str(tmp_path / "a")) == counts
    metadata = read_metadata(StoreSpec(str(tmp_path / "a")))
    assert [len(shards) for shards in metadata.split.split_parts.values()] == [9, 3]
    before = rows(tmp_path / "a")
    prepare_dataset(str(tmp_path / "a"), split_ratio=(1, 0, 0), force=True)
    assert rows(tmp_path / "a") == before


def test_on_a_store_by_multipart_upload(s3_server, tmp_path):
    options = s3_server.storage_options
    s3_server.create_bucket("bucket")
    samples = [{"__key__": f"{i}", "bin": random_bytes(3 << 20, "large", i), "cls": i} for i in range(9)]
    write("s3://bucket/a", samples, max_size=12 << 20, storage_options=options, tmp_path=tmp_path / "tmp")
    write(tmp_path / "b", samples, max_size=12 << 20)
    store = StoreSpec("s3://bucket/a", options).open()
    local = content(tmp_path / "b")
    assert {path: bytes(store.get(path).data) for path in local} == local
    assert not [entry.path for entry in store.list(WRITING)]
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"txt": "x"}, "the '__key__' of a sample is None"),
        ({"__key__": "a.b", "txt": "x"}, "cannot be a sample key"),
        ({"__key__": "../a", "txt": "x"}, "cannot be a sample key"),
        ({"__key__": "/a", "txt": "x"}, "cannot be a sample key"),
        ({"__key__": "__a__/b", "txt": "x"}, "cannot be a sample key"),
        ({"__key__": "", "txt": "x"}, "cannot be a sample key"),
        ({"__key__": "a\udcff", "txt": "x"}, "is not UTF-8"),
        ({"__key__": "a", "t\udcff": b"x"}, "is not UTF-8"),
        ({"__key__": "a", "a/b": b"x"}, "cannot be the name of a part"),
        ({"__key__": "a"}, "has no parts"),
        ({"__key__": "a", "jpg": "text"}, "the part 'jpg' cannot hold a value of type str"),
        ({"__key__": "a", "json": {1, 2}}, "it cannot hold a value of type set"),
        ({"__key__": "a", "npy": [object()]}, "array of Python objects"),
        ({"__key__": "a", "txt": "\udcff"}, "sample 'a'"),
    ],
)
def test_a_wrong_sample_is_named_and_the_writer_goes_on(tmp_path, wrong, message):
    with ShardWriter(tmp_path / "a") as writer:
        writer.write(sample(0))
        with pytest.raises(SampleError, match=message):
            writer.write(wrong)
        writer.write(sample(1))
    assert writer.shard_counts == {"data-000000.tar": 2}


@pytest.mark.parametrize("places", [(3, 4), (3, 9)])
def test_duplicate_keys_are_named(tmp_path, places):
    samples = [sample(i) for i in range(20)]
    samples[places[1]] = sample(places[0])
    with pytest.raises(DuplicateKeyError, match=r"'000003' appears twice: sample"):
        write(tmp_path / "a", samples, max_count=6)
    with pytest.raises(NotPreparedError):
        read_metadata(StoreSpec(str(tmp_path / "a")))


def test_duplicate_keys_of_parts_are_named_at_the_end(tmp_path):
    for part in range(2):
        write(tmp_path / "a", [sample(1)], part=part, parts=2)
    with pytest.raises(DuplicateKeyError, match=r"data-00000-000000.tar and sample 0 of data-00001"):
        finish_dataset(str(tmp_path / "a"))


def test_a_dataset_or_tars_at_the_place_are_left_alone(tmp_path):
    write(tmp_path / "a", [sample(1)])
    before = content(tmp_path / "a")
    with pytest.raises(ConfigError, match="has a dataset already"):
        ShardWriter(tmp_path / "a")
    assert content(tmp_path / "a") == before
    shutil.rmtree(tmp_path / "a" / ".nv-meta")
    with pytest.raises(ConfigError, match=r"tars already, such as 'data-000000\.tar'"):
        ShardWriter(tmp_path / "a")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"max_count": 5}, "max_count is 5, but it was 6 before"),
        ({"parts": 2}, "parts is 2, but it was 1 before"),
        ({"signature": "other"}, "the source is not the one"),
    ],
)
def test_another_writer_must_have_the_same_arguments(tmp_path, changed, message):
    ShardWriter(tmp_path / "a", max_count=6).abort()
    with pytest.raises(ConfigError, match=message):
        ShardWriter(tmp_path / "a", **{"max_count": 6, **changed})


@pytest.mark.parametrize(
    "wrong", [{"max_size": 0}, {"max_count": 0}, {"part": 2, "parts": 2}, {"name": "a/b"}]
)
def test_wrong_arguments(tmp_path, wrong):
    with pytest.raises(ConfigError):
        ShardWriter(tmp_path / "a", **wrong)
    assert not (tmp_path / "a").exists()


def test_no_samples(tmp_path):
    with pytest.raises(EmptyDatasetError):
        write(tmp_path / "a", [])


def test_a_damaged_record_is_named(tmp_path):
    with pytest.raises(ZeroDivisionError), ShardWriter(tmp_path / "a", max_count=2) as writer:  # noqa: PT012
        for i in range(3):
            writer.write(sample(i))
        raise ZeroDivisionError
    (tmp_path / "a" / WRITING / "data-000000.tar.scan").write_bytes(b"\x81")
    with pytest.raises(MetadataError, match=r"data-000000\.tar\.scan"):
        ShardWriter(tmp_path / "a", max_count=2)


def test_no_permission(tmp_path):
    def refuse(put, path, data):
        raise AccessDeniedError("the file system refused access", where=path)

    with pytest.raises(AccessDeniedError):
        ShardWriter(hooked(tmp_path / "a", put=refuse))


def test_a_full_disk_is_named_and_ends_the_writer(tmp_path):
    samples = [sample(i) for i in range(12)]
    samples[8]["bin"] = bytes(2 << 20)  # more than is held in memory
    with (  # noqa: PT012
        pytest.raises(StorageError, match=r"No space left on device.*Free some space"),
        ShardWriter(tmp_path / "a", max_count=6) as writer,
    ):
        for each in samples[:5]:
            writer.write(each)
        (first,) = (tmp_path / "a" / WRITING).glob("*-0.*")  # the second shard goes to a full device
        first.with_name(first.name.replace("-0.", "-1.")).symlink_to("/dev/full")
        for each in samples[5:8]:
            writer.write(each)
        writer.write(samples[8])
    with pytest.raises(ConfigError, match="has ended"):
        writer.write(samples[9])
    write(tmp_path / "a", samples, max_count=6)  # space was freed
    write(tmp_path / "b", samples, max_count=6)
    assert content(tmp_path / "a") == content(tmp_path / "b")


def test_a_shard_that_the_store_refuses_is_an_error_of_the_writer(tmp_path):
    def refuse(put_file, path, local, **how):
        if path.endswith("data-000001.tar"):
            raise StorageError("refused", where=path)
        put_file(path, local, **how)

    with pytest.raises(StorageError, match="refused"):
        write(hooked(tmp_path / "a", put_file=refuse), [sample(i) for i in range(12)], max_count=2)
    writer = ShardWriter(tmp_path / "a", max_count=2)
    assert writer.written == 2
    writer.abort()


def hold(url, ready, end):
    """Open a writer, and keep it open until the file ``end`` is there; for a process of its own."""
    with ShardWriter(url, max_count=2) as writer:
        for number in range(4):
            writer.write(sample(number))
        ready.touch()
        while not end.exists():
            time.sleep(0.01)
        writer.write(sample(4))


def test_a_second_process_cannot_write_the_same_part(tmp_path):
    url, ready, end = str(tmp_path / "data"), tmp_path / "ready", tmp_path / "end"
    first = children.submit(hold, url, ready, end)
    while not ready.exists():
        time.sleep(0.01)
    with pytest.raises(ConfigError, match=r"process \d+ on .* writes part 0.*another folder"):
        ShardWriter(url, max_count=2)
    end.touch()
    first.result(60)
    dataset = get_train_dataset(
        url, batch_size=1, repeat=False, shuffle_buffer_size=None, max_samples_per_sequence=None,
        worker_config=WorkerConfig(0, 1, 0),
    )  # fmt: skip
    assert sorted(batch["__key__"][0].rpartition("/")[2] for batch in get_savable_loader(dataset)) == [
        f"{number:06d}" for number in range(5)
    ]


def test_a_writer_that_lost_its_part_stops(tmp_path):
    store = StoreSpec(str(tmp_path / "data")).open()
    writer = ShardWriter(store.url)
    writer.write(sample(0))
    for entry in list(store.list(f"{WRITING}/00000.claims")):
        store.delete(entry.path)
    with pytest.raises(ConfigError, match="another process has taken over part 0"):
        writer.close()
    assert not list(store.list(".nv-meta/.info.json"))


def test_parts_side_by_side_have_claims_of_their_own(tmp_path):
    writers = [ShardWriter(tmp_path / "data", part=part, parts=3) for part in range(3)]
    for number, writer in enumerate(writers):
        writer.write(sample(number))
        writer.close()
    assert sum(finish_dataset(str(tmp_path / "data")).values()) == 3
