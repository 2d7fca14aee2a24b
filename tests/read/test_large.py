"""Samples larger than the budget: streamed, each part to its own bytes."""

import itertools
import tarfile
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference_writer import write_reference_dataset

from energon_stream.arrays import as_bytes
from energon_stream.errors import IndexMismatchError, ObjectChangedError
from energon_stream.index.dataset import open_webdataset
from energon_stream.read.large import read_large_sample
from energon_stream.read.range_stream import piece_sizes
from energon_stream.read.read_options import ReadOptions
from energon_stream.read.tar_locator import TarLocator
from energon_stream.storage import Fetcher, StoreSpec
from energon_stream.testing.datasets import random_bytes, write_shards
from energon_stream.testing.s3server import S3Server

MB = 1 << 20
BUDGET = ReadOptions(byte_budget=4 * MB)
SIZES = {"mp4": 20 * MB + 3, "json": 70, "wav": 3 * MB, "empty": 0}


def parts(index):
    return {name: random_bytes(size + (index if size else 0), index) for name, size in SIZES.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("large") / "bucket" / "data"
    tars = write_shards(folder, shards=1, samples_per_shard=2, parts=parts)
    write_reference_dataset(folder, tars, split={"train": [tar.name for tar in tars]}, exclude=[])
    return folder


@pytest.fixture
def remote(folder):
    with S3Server(folder.parent.parent) as server:
        yield server


@pytest.fixture
def source(remote):
    return open_locator("s3://bucket/data", remote)


@pytest.fixture
def fetcher():
    fetcher = Fetcher(8)
    yield fetcher
    fetcher.close()


def open_locator(url, server, transport="auto"):
    spec = StoreSpec(url, server.storage_options, transport)
    source = TarLocator(0, open_webdataset(spec, split_part="train"))
    for load in source.claim_loads(np.arange(2)):
        load.run()
    server.reset_counters()
    return source


def ranges_of(source, sample):
    objects, starts, stops = source.locate(np.array([sample]))
    return list(zip(objects[0].tolist(), starts[0].tolist(), stops[0].tolist(), strict=True))


def read(source, sample, fetcher, options=BUDGET):
    return read_large_sample(source, sample, ranges_of(source, sample), fetcher=fetcher, options=options)


def check(raw, sample):
    assert (raw.leaf, raw.index, raw.key) == (0, sample, f"{sample:08d}")
    assert raw.parts == parts(sample)
    # Samples get these objects without a copy, and a small part keeps nothing larger alive.
    assert all(isinstance(part, bytes) for part in raw.parts.values())


@pytest.mark.every(2)
@pytest.mark.parametrize("transport", ["obstore", "fsspec"])
def test_each_byte_is_read_once_in_a_bounded_number_of_pieces(remote, fetcher, transport):
    source = open_locator("s3://bucket/data", remote, transport)
    for sample in (1, 0):
        check(read(source, sample, fetcher), sample)
    sizes = [stop - start for sample in (0, 1) for _, start, stop in ranges_of(source, sample)]
    assert sum(entry.bytes for entry in remote.log()) == sum(sizes)
    pieces = [piece_sizes(size, BUDGET) for size in sizes]
    counters = remote.counters()
    assert counters.requests == {
        "GET": sum(-(-size // piece.size) for size, piece in zip(sizes, pieces, strict=True))
    }
    assert all(piece.size * piece.ahead <= size // 16 for size, piece in zip(sizes, pieces, strict=True))


@pytest.fixture
def in_memory(folder):
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.put(str(folder), "/large", recursive=True)
    source = TarLocator(0, open_webdataset(StoreSpec("memory://large"), split_part="train"))
    for load in source.claim_loads(np.arange(2)):
        load.run()
    yield source
    memory.rm("/large", recursive=True)


def test_any_fsspec_store_is_read_in_pieces(in_memory, fetcher):
    check(read(in_memory, 1, fetcher), 1)


def test_there_is_the_sample_once_and_a_tenth_more(in_memory, fetcher):
    """This store's bodies are Python's bytes, so that tracemalloc sees all of them."""
    size = sum(stop - start for _, start, stop in ranges_of(in_memory, 0))
    tracemalloc.start()
    try:
        raw = read(in_memory, 0, fetcher)
        kept = {name: as_bytes(view) for name, view in raw.parts.items()}
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sum(map(len, kept.values())) > 0.99 * size
    assert peak < 1.1 * size


def test_faults_are_retried(source, remote, fetcher):
    remote.shape(share_503=0.1, share_reset=0.03, share_truncate=0.03, seed=3)
    check(read(source, 0, fetcher), 0)
    assert sum(remote.counters().faults.values()) > 5


def test_an_object_that_is_replaced_meanwhile_is_an_error(folder, fetcher):
    with S3Server() as server:
        server.upload_folder(folder, "s3://bucket/data")
        source = open_locator("s3://bucket/data", server)
        url = f"s3://bucket/data/{source.index.shard_paths[0]}"
        content = server.get(url)
        asked = itertools.count()

        class Replacing:
            """Replaces the object before the twentieth request."""

            is_local = False

            def get_range(self, path, byte_range, *, etag=None):
                if next(asked) == 20:
                    server.replace(url, content[::-1])
                return store.get_range(path, byte_range, etag=etag)

        store, source.store = source.store, Replacing()
        with pytest.raises(ObjectChangedError, match=r"data-000000\.tar"):
            read(source, 0, fetcher)


def test_a_missing_end_is_an_error_and_nothing_goes_on(source, remote, fetcher):
    (shard, start, stop), *_ = ranges_of(source, 1)
    beyond = [(shard, start, stop + 5000 * MB)]
    with pytest.raises(IndexMismatchError, match=r"data-000000\.tar"):
        read_large_sample(source, 1, beyond, fetcher=fetcher, options=BUDGET)
    fetcher.close()  # waits for what is under way
    asked = remote.counters().requests["GET"]
    assert asked < 100


LONG = "folder/" * 20 + "key"


@pytest.mark.parametrize("tar_format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("piece", [100, 700, 1 << 20])
def test_a_stream_is_cut_like_a_fetch(tmp_path, tar_format, piece):
    """Headers and payloads across the borders of pieces, extended headers, parts of no bytes."""
    content = {"txt": b"text", "empty": b"", "a.b": random_bytes(5000), "bin": random_bytes(512)}
    tars = write_shards(
        tmp_path,
        shards=1,
        samples_per_shard=3,
        parts=lambda index: content,
        key=LONG[: 200 if tar_format != tarfile.USTAR_FORMAT else 90] + "{}",
        tar_format=tar_format,
    )
    write_reference_dataset(tmp_path, tars, split={"train": [tars[0].name]}, exclude=[])
    source = TarLocator(0, open_webdataset(StoreSpec(str(tmp_path)), split_part="train"))
    options = ReadOptions(byte_budget=1, max_request=piece)
    for sample in range(3):
        raw = read(source, sample, Fetcher(1), options)
        assert {name: bytes(view) for name, view in raw.parts.items()} == content
        assert raw.key == LONG[: 200 if tar_format != tarfile.USTAR_FORMAT else 90] + str(sample)
    (shard, start, _), (_, _, stop) = ranges_of(source, 0)[0], ranges_of(source, 1)[0]
    for wrong, what in ((stop, "more than one"), (start + 512, "beyond the end|ends inside|exactly one")):
        with pytest.raises(IndexMismatchError, match=what):
            read_large_sample(source, 0, [(shard, start, wrong)], fetcher=Fetcher(1), options=options)


@given(st.integers(1, 1 << 40), st.integers(1, 1 << 34), st.integers(1, 1 << 24), st.integers(1, 64))
def test_pieces_fit_beside_the_sample(sample, budget, max_request, max_in_flight):
    options = ReadOptions(byte_budget=budget, max_request=max_request, max_in_flight=max_in_flight)
    size, ahead = piece_sizes(sample, options)
    assert 1 <= size <= max_request
    assert 1 <= ahead <= max_in_flight
    least = 64 << 10  # smaller ones would only be more requests
    assert sample + size * ahead <= max(max(sample, budget) * 1.1, sample + least)
