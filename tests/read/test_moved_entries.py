"""An index entry that lies one member too early or too late: no sample comes short before the error."""

import io
import json
import os
import tarfile
import time

import numpy as np
import pytest

from energon_stream import (
    CacheConfig,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    prepare_metadataset,
)
from energon_stream.errors import ChecksumError, IndexMismatchError
from energon_stream.index.dataset import open_webdataset
from energon_stream.index.sqlite_index import INDEX_SQLITE
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.read.consume import ReaderGroup, SampleReader
from energon_stream.read.fetch import LOOKED_AT_EVERY
from energon_stream.read.read_options import ReadOptions
from energon_stream.read.tar_locator import TarLocator
from energon_stream.rng import derive_key
from energon_stream.schedule import LeafPlan, OrderSpec, RepeatPlan, build_schedule
from energon_stream.storage import Fetcher, StoreSpec
from energon_stream.testing.datasets import write_shards

CRUDE = {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}


def parts(number):
    few = {"a.txt": b"%d" % number, "b.bin": b"x" * number}
    return few if number % 3 else {**few, "c.txt": b"more"}


@pytest.fixture
def folder(tmp_path):
    write_shards(tmp_path / "data", shards=1, samples_per_shard=12, parts=parts)
    prepare_dataset(str(tmp_path / "data"), split_ratio=(1, 0, 0), dataset_yaml=CRUDE)
    with open(
        tmp_path / "data" / INDEX_SQLITE, "r+b"
    ) as index:  # without the sizes, as other programs write it
        index.truncate(index.seek(0, 2) - 1)
    return tmp_path / "data"


def read(url, slices, options=None, **changes):
    """Parts of the samples by key, until an error; and the error."""
    dataset = get_train_dataset(
        url, batch_size=1, shuffle_buffer_size=None, max_samples_per_sequence=slices, repeat=False,
        worker_config=WorkerConfig(0, 1, 0), storage_options=options, **changes,
    )  # fmt: skip
    found = {}
    try:
        for batch in get_savable_loader(dataset):
            found[batch["__key__"][0].rpartition("/")[2]] = {
                n: v[0] for n, v in batch.items() if n[:2] != "__"
            }
    except IndexMismatchError as error:
        return found, str(error)
    return found, ""


def members(folder):
    """Names and first bytes of the members, and the keys' parts, as tarfile finds them."""
    with tarfile.open(folder / "data-000000.tar") as tar:
        listed = [(member.name, member.offset) for member in tar]
    found = {}
    for name, _ in listed:
        key, _, part = name.partition(".")
        found.setdefault(key, set()).add(part)
    return listed, found


@pytest.mark.every(4)
@pytest.mark.parametrize(("slices", "by"), [(1, -1), (4, -1), (None, -1), (1, 1), (4, 1), (None, 1)])
@pytest.mark.parametrize("entry", [3, 4, 8])
def test_no_sample_is_short(folder, entry, by, slices):
    listed, expected = members(folder)
    starts = [offset for _, offset in listed]
    index = np.fromfile(folder / "data-000000.tar.idx", dtype="<u8")
    index[entry] = starts[starts.index(index[entry]) + by]
    index.tofile(folder / "data-000000.tar.idx")
    found, error = read(str(folder), slices)
    assert "the index and the tar disagree" in error
    assert {key: set(parts) for key, parts in found.items()} == {key: expected[key] for key in found}


class CountedStore:
    """A local store that counts how often whole files are looked at."""

    is_local = True

    def __init__(self, store):
        self.store, self.gets = store, 0

    def get(self, path, **options):
        self.gets += 1
        return self.store.get(path, **options)

    def __getattr__(self, name):
        return getattr(self.store, name)


def test_a_local_sample_is_compared_with_the_one_before_once(folder):
    """The requests are too small to be parsed as arrays; what a later pass needs is remembered."""
    locator = TarLocator(0, open_webdataset(StoreSpec(str(folder)), split_part="train"))
    locator.store = store = CountedStore(locator.store)
    leaf = LeafPlan(0, locator.index.shard_starts, OrderSpec(1, 12))
    schedule = build_schedule(RepeatPlan(leaf, 3), num_streams=1, stream=0, key=derive_key(3))
    reader = SampleReader(schedule, schedule.begin(), [locator], ReaderGroup(ReadOptions(), Fetcher(2)))
    with tarfile.open(folder / "data-000000.tar") as tar:
        expected = {member.name: tar.extractfile(member).read() for member in tar}
    gets = []
    for _ in range(3):
        samples = [reader.next() for _ in range(12)]
        found = {f"{each.key}.{name}": bytes(part) for each in samples for name, part in each.parts.items()}
        assert found == expected
        gets.append(store.gets)
    reader.close()
    assert gets[0] >= 12
    assert gets[1:] == gets[:1] * 2


@pytest.mark.parametrize(("samples", "slices"), [(12, 1), (12, 4), (12, None), (60, 40), (60, None)])
def test_a_local_tar_that_is_edited_in_place_gives_no_bytes_of_other_parts(tmp_path, samples, slices):
    """Within a pass and in later ones, although size and time stay, whether samples are parsed as arrays."""
    write_shards(
        tmp_path, shards=1, samples_per_shard=samples, parts=lambda at: {**parts(1), "b.bin": b"x" * at}
    )
    prepare_dataset(str(tmp_path), split_ratio=(1, 0, 0), dataset_yaml=CRUDE)
    tar = tmp_path / "data-000000.tar"
    dataset = get_train_dataset(
        str(tmp_path), batch_size=1, shuffle_buffer_size=None, max_samples_per_sequence=slices,
        worker_config=WorkerConfig(0, 1, 0),
    )  # fmt: skip
    batches = iter(get_savable_loader(dataset))
    for first in (samples + samples // 2, samples):
        for _ in range(first):
            next(batches)
        held = edit_in_place(tar)
        expected = {key: {member.name[len(key) + 1 :]: data for member, data in held[key]} for key in held}
        time.sleep(2 * LOOKED_AT_EVERY)
        for _ in range(samples):
            batch = next(batches)
            found = {name: value[0] for name, value in batch.items() if name[:2] != "__"}
            found = {name: data.encode() if isinstance(data, str) else data for name, data in found.items()}
            assert found == expected[batch["__key__"][0].rpartition("/")[2]]


def edit_in_place(tar):
    """Write the parts of each sample in the opposite order; return members and bytes as they were, by key."""
    held: dict[str, list[tuple[tarfile.TarInfo, bytes]]] = {}
    with tarfile.open(tar) as old:
        for member in old:
            key = member.name.partition(".")[0]
            held.setdefault(key, []).append((member, old.extractfile(member).read()))
    edited = io.BytesIO()
    with tarfile.open(fileobj=edited, mode="w", format=tarfile.USTAR_FORMAT) as new:
        for sample in held.values():
            for member, data in reversed(sample):
                new.addfile(member, io.BytesIO(data))
    times = os.stat(tar)
    with open(tar, "r+b") as file:
        file.write(edited.getvalue()[: times.st_size].ljust(times.st_size, b"\0"))
    os.utime(tar, ns=(times.st_atime_ns, times.st_mtime_ns))
    return held


def test_checksums_are_compared_again_after_an_edit(tmp_path):
    """Of a payload: no header and no size tells."""
    write_shards(tmp_path, shards=1, samples_per_shard=40, parts=lambda at: {"b.bin": b"%040d" % at})
    prepare_dataset(str(tmp_path), split_ratio=(1, 0, 0), dataset_yaml=CRUDE, checksums=True)
    dataset = get_train_dataset(
        str(tmp_path), batch_size=1, shuffle_buffer_size=None, max_samples_per_sequence=None,
        worker_config=WorkerConfig(0, 1, 0), read_options=ReadOptions(verify="always"),
    )  # fmt: skip
    batches = iter(get_savable_loader(dataset))
    for _ in range(60):
        next(batches)
    with tarfile.open(tmp_path / "data-000000.tar") as tar:
        place = tar.getmembers()[-1].offset_data
    with open(tmp_path / "data-000000.tar", "r+b") as file:
        file.seek(place)
        file.write(b"1")
    time.sleep(2 * LOOKED_AT_EVERY)
    for _ in range(19):
        next(batches)
    with pytest.raises(ChecksumError):
        next(batches)


FIRST = [(1, 1, 11), (2, -1, 11), (2, 1, 10), (3, -1, 10), (3, 1, 9), (4, -1, 9), (4, 1, 8), (6, 1, 6)]
"""Slices, by, and entry, where the sample that is read first is short."""


@pytest.mark.every(4)
@pytest.mark.parametrize(
    ("slices", "by", "entry"),
    [
        *FIRST,
        (None, -1, 1),
        *((1, by, entry) for by in (-1, 1) for entry in (3, 4, 5)),
        *((None, by, entry) for by in (-1, 1) for entry in (3, 5, 8)),
    ],
)
def test_over_a_store_unusual_samples_are_compared_with_their_neighbours(
    folder, s3_server, slices, by, entry
):
    """Once for each kind of sample: the first with what lies around it in the same answer."""
    listed, expected = members(folder)
    starts = [offset for _, offset in listed]
    index = np.fromfile(folder / "data-000000.tar.idx", dtype="<u8")
    index[entry] = starts[starts.index(index[entry]) + by]
    index.tofile(folder / "data-000000.tar.idx")
    s3_server.upload_folder(folder, "s3://bucket/moved")
    found, error = read("s3://bucket/moved", slices, s3_server.storage_options)
    assert "the index and the tar disagree" in error
    assert {key: set(parts) for key, parts in found.items()} == {key: expected[key] for key in found}


@pytest.mark.every(4)
@pytest.mark.parametrize(("slices", "by", "entry"), FIRST)
def test_with_a_disk_cache_the_first_sample_is_compared_too(folder, s3_server, tmp_path, slices, by, entry):
    """Without a request more, whether the cache is empty or has all; what was read is what is warm later."""
    listed, expected = members(folder)
    starts = [offset for _, offset in listed]
    right = np.fromfile(folder / "data-000000.tar.idx", dtype="<u8")
    cache = {"cache": CacheConfig(str(tmp_path / "cache"), "100MB", min_free_bytes=0)}
    s3_server.upload_folder(folder, "s3://bucket/cached")
    for _ in range(2):
        found, error = read("s3://bucket/cached", slices, s3_server.storage_options, **cache)
        assert not error
        assert {key: set(parts) for key, parts in found.items()} == expected
        asked = [entry for entry in s3_server.log() if entry.key.endswith(".tar")]
        s3_server.reset_counters()
    assert not asked
    moved = right.copy()
    moved[entry] = starts[starts.index(moved[entry]) + by]
    s3_server.put("s3://bucket/cached/data-000000.tar.idx", moved.tobytes())
    for each in (cache, {"cache": CacheConfig(str(tmp_path / "cold"), "100MB", min_free_bytes=0)}):
        found, error = read("s3://bucket/cached", slices, s3_server.storage_options, **each)
        assert "the index and the tar disagree" in error
        assert {key: set(parts) for key, parts in found.items()} == {key: expected[key] for key in found}


def test_kinds_of_a_sound_dataset_whose_neighbours_are_in_the_answer_cost_no_request(folder, s3_server):
    s3_server.upload_folder(folder, "s3://bucket/sound")
    found, error = read("s3://bucket/sound", 1, s3_server.storage_options)
    assert not error
    assert {key: set(parts) for key, parts in found.items()} == members(folder)[1]
    asked = [entry for entry in s3_server.log() if entry.key.endswith(".tar")]
    assert len(asked) == 3


@pytest.mark.every(4)
@pytest.mark.parametrize(("edge", "by"), [("start", -1), ("start", 1), ("stop", -1)])
@pytest.mark.parametrize("row", [1, 3, 8])
def test_rows_of_joins(folder, row, edge, by):
    """The same of a row of a join, whose neighbours are other samples than in the tar."""
    meta = folder.parent / "meta.yaml"
    source = {"join": [{"path": "data"}, {"path": "data"}], "joiner": {**CRUDE, "__class__": "TextSample"}}
    meta.write_text(json.dumps({**CRUDE, "__class__": "MetadatasetV2", "splits": {"train": source}}))
    config = {"sample_type": source["joiner"], "field_map": {"text": "b.bin"}}
    (folder / ".nv-meta" / "dataset.yaml").write_text(json.dumps(config))
    prepare_metadataset(meta)
    starts = [offset for _, offset in members(folder)[0]]
    (index,) = (folder.parent / "meta.yaml.cache").iterdir()
    rows = np.fromfile(index, dtype="<i8")
    _, start, size = rows[2 + 6 * row :][:3]
    moved = start if edge == "start" else start + size
    moved = starts[starts.index(moved) + by] - moved
    rows[2 + 6 * row :][1:3] += (moved, -moved) if edge == "start" else (0, moved)
    rows.tofile(index)
    dataset = get_train_dataset(
        meta, batch_size=None, shuffle_buffer_size=None, max_samples_per_sequence=4, repeat=False,
        worker_config=WorkerConfig(0, 1, 0),
    )  # fmt: skip
    seen = []
    with pytest.raises(IndexMismatchError, match="the index and the tar disagree"):
        seen.extend(int(sample.__key__.rpartition("/")[2]) for sample in get_savable_loader(dataset))
    assert row not in seen
