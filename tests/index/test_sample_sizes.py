"""The sizes of samples behind the database: what they hold, and when they are not used."""

import itertools
import sqlite3
from contextlib import closing
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energon_stream import WorkerConfig, get_train_dataset
from energon_stream.errors import IndexMismatchError
from energon_stream.index.dataset import open_webdataset
from energon_stream.index.sample_names import hash_names
from energon_stream.index.sample_sizes import (
    MOST_BYTES,
    SampleSizes,
    appended_bytes,
    bounds_of,
    decode_names,
    decode_sizes,
)
from energon_stream.index.shard_marks import trailer_bytes
from energon_stream.index.sqlite_index import INDEX_SQLITE
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.storage import StoreSpec
from energon_stream.testing.datasets import prepared_binary_dataset

INFO = b'{"shard_counts": {}}'
SHARDS = st.lists(
    st.lists(st.integers(1, 300), min_size=1, max_size=8)
    | st.lists(st.integers(1, 1 << 20), min_size=1, max_size=3),
    min_size=1,
    max_size=6,
)


def encoded(shards):
    sizes = SampleSizes()
    for blocks in shards:
        sizes.add(
            [1536, *(512 * end for end in itertools.accumulate(blocks))]
        )  # the first entry does not count
    return sizes.encode(INFO)


def decoded(data, samples, info=INFO):
    return decode_sizes(memoryview(data), samples, memoryview(info))


@given(SHARDS)
def test_the_bounds_of_all_samples_are_read_back(shards):
    blocks = list(itertools.chain(*shards))
    found = decoded(encoded(shards), len(blocks))
    assert bounds_of(found).tolist() == [512 * end for end in itertools.accumulate(blocks, initial=0)]


@given(SHARDS, st.data())
def test_damaged_sizes_are_not_used(shards, data):
    whole = encoded(shards)
    samples = sum(map(len, shards))
    at = data.draw(st.integers(0, len(whole) - 1))
    flipped = bytearray(whole)
    flipped[at] ^= data.draw(st.integers(1, 255))
    assert decoded(bytes(flipped), samples) is None
    assert decoded(whole[: data.draw(st.integers(0, len(whole) - 1))], samples) is None
    assert decoded(b"\0" * data.draw(st.integers(1, 40)) + whole, samples) is not None  # pages are before it
    assert decoded(whole, samples + 1) is None


def test_sizes_of_another_preparation_are_not_used():
    data = encoded([[1, 2], [3]])
    assert decoded(data, 3) is not None
    assert decoded(data, 3, info=INFO + b" ") is None


def test_large_datasets_and_odd_sizes_have_none():
    for width, blocks in ((1, 255), (2, 256), (4, 1 << 16)):
        assert len(encoded([[blocks] * 100])) == 100 * width + 40
        assert encoded([[blocks] * (MOST_BYTES // width - 40)]) is not None
        assert encoded([[blocks] * (MOST_BYTES // width)]) is None
    assert encoded([[1 << 33]]) is None
    odd = SampleSizes()
    odd.add([0, 700])
    assert odd.encode(INFO) is None


@given(SHARDS, st.data())
def test_names_are_beside_the_sizes(shards, data):
    counts = [len(blocks) for blocks in shards]
    names = [
        f"{number}.{data.draw(st.sampled_from(['jpg', 'é.txt', 'x' * 120]))}" for number in range(sum(counts))
    ]
    sizes, left = SampleSizes(), iter(names)
    for blocks in shards:
        offsets = [0, *(512 * end for end in itertools.accumulate(blocks))]
        sizes.add(offsets, list(islice(left, len(blocks))))
    whole = sizes.encode(INFO)
    tail = memoryview(b"pages" + whole)
    assert whole.endswith(encoded(shards))  # which earlier versions read
    assert appended_bytes(tail) == len(whole)
    assert decode_names(tail, len(names)).tolist() == hash_names(names).tolist()
    assert decode_names(memoryview(b"pages" + encoded(shards)), len(names)) is None
    at = data.draw(st.integers(0, len(whole) - len(encoded(shards)) - 1))
    flipped = bytearray(tail)
    flipped[len(b"pages") + at] ^= data.draw(st.integers(1, 255))
    assert decode_names(memoryview(flipped), len(names)) is None
    assert decoded(bytes(flipped), len(names)) is not None


def test_many_samples_have_sizes_and_no_names():
    for samples, named in ((21_000, True), (22_000, False)):
        sizes = SampleSizes()
        sizes.add(list(range(0, 512 * samples + 1, 512)), [f"{number}.txt" for number in range(samples)])
        tail = memoryview(sizes.encode(INFO))
        assert decoded(tail, samples) is not None
        assert len(tail) <= MOST_BYTES
        assert (decode_names(tail, samples) is not None) == named


@pytest.fixture
def prepared(tmp_path):
    prepared_binary_dataset(tmp_path / "data", samples=24, payload_bytes=900, shards=4)
    return tmp_path / "data"


@pytest.fixture
def own_options(s3_server, tmp_bucket):
    def upload(folder):
        s3_server.upload_folder(folder, f"{tmp_bucket}/data")
        return StoreSpec(f"{tmp_bucket}/data", s3_server.storage_options)

    return upload


def test_a_split_part_has_the_sizes_of_its_shards(prepared, own_options):
    meta = prepared / ".nv-meta"
    (meta / "other.yaml").write_text(
        "split_parts: {train: ['data-000003.tar', 'data-000001.tar']}\nexclude: []\n"
    )
    index = open_webdataset(own_options(prepared), split_part="train", split_config="other.yaml")
    assert index.shard_paths == ("data-000003.tar", "data-000001.tar")
    bounds = bounds_of(index.sizes)
    for shard in range(2):
        first, last = index.shard_starts[shard : shard + 2]
        entries = np.frombuffer(
            (prepared / index.shard_paths[shard]).with_suffix(".tar.idx").read_bytes(), "<u8"
        )
        assert (bounds[first : last + 1] - bounds[first]).tolist() == entries.tolist()


def test_local_datasets_and_those_without_sizes_are_read_by_their_indexes(prepared, own_options):
    assert open_webdataset(StoreSpec(str(prepared)), split_part="train").sizes is None
    assert open_webdataset(own_options(prepared), split_part="train").sizes is not None
    with closing(sqlite3.connect(prepared / INDEX_SQLITE, isolation_level=None)) as database:
        database.execute("VACUUM")
    assert open_webdataset(own_options(prepared), split_part="train").sizes is None
    (prepared / INDEX_SQLITE).unlink()
    assert open_webdataset(own_options(prepared), split_part="train").sizes is None


def test_the_database_is_whole_and_may_grow_over_the_sizes(prepared, own_options):
    path = prepared / INDEX_SQLITE
    assert path.stat().st_size % 4096
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        database.execute("CREATE TABLE more AS SELECT randomblob(3000) FROM samples")
        database.commit()
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert open_webdataset(own_options(prepared), split_part="train").sizes is None


def test_new_indexes_of_the_same_tars_keep_the_sizes(prepared, own_options):
    before = (prepared / INDEX_SQLITE).read_bytes()
    prepare_dataset(str(prepared), tar_index_only=True)
    assert (prepared / INDEX_SQLITE).read_bytes() == before
    # A database of an earlier version has no names.
    tail = memoryview(before)[-MOST_BYTES:]
    pages, sizes = before[: -trailer_bytes(tail)], 24 + 40
    (prepared / INDEX_SQLITE).write_bytes(pages + before[-sizes:])
    prepare_dataset(str(prepared), tar_index_only=True)
    assert (prepared / INDEX_SQLITE).read_bytes() == pages + before[-sizes:]


def changed(prepared):
    """Put tars of other sizes in the place of the prepared ones."""
    again = prepared.parent / "again"
    prepared_binary_dataset(again, samples=24, payload_bytes=2500, shards=4)
    for tar in again.glob("*.tar"):
        tar.replace(prepared / tar.name)
    return prepared


def read(spec):
    dataset = get_train_dataset(
        spec.url,
        worker_config=WorkerConfig(0, 1, 0),
        batch_size=None,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        storage_options=spec.storage_options,
    )
    return [len(sample["bin"]) for sample in islice(dataset, 24)]


def test_new_indexes_of_other_tars_end_the_use_of_the_sizes(prepared, own_options):
    prepare_dataset(str(changed(prepared)), tar_index_only=True)
    assert (prepared / INDEX_SQLITE).stat().st_size % 4096 == 0
    assert read(own_options(prepared)) == [2500] * 24


def test_sizes_of_other_tars_are_refused_by_name(prepared, own_options):
    with pytest.raises(IndexMismatchError, match="run `energon-stream prepare` again"):
        read(own_options(changed(prepared)))
