"""Readers of one process that share a budget, as where one rank has many streams."""

import functools

import numpy as np
import pytest
from reference_writer import write_reference_dataset

from energon_stream.errors import IndexMismatchError
from energon_stream.index.dataset import open_webdataset
from energon_stream.read.consume import ReaderGroup, SampleReader
from energon_stream.read.read_options import ReadOptions
from energon_stream.read.tar_locator import TarLocator
from energon_stream.rng import derive_key
from energon_stream.schedule import LeafPlan, OrderSpec, RepeatPlan, build_schedule
from energon_stream.storage import Fetcher, StoreSpec
from energon_stream.testing.datasets import random_bytes, write_shards
from energon_stream.testing.s3server import S3Server

SHARDS, PER_SHARD, PAYLOAD, STREAMS = 6, 80, 6_000, 8
SAMPLES = SHARDS * PER_SHARD
AT_ONCE = 7


@functools.cache
def parts(index):
    return {"bin": random_bytes(PAYLOAD, index), "txt": str(index).encode()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("allowance") / "data"
    tars = write_shards(folder, shards=SHARDS, samples_per_shard=PER_SHARD, parts=parts)
    write_reference_dataset(folder, tars, split={"train": [tar.name for tar in tars]}, exclude=[])
    return folder


def open_readers(url, options, storage_options=None, repeat=None):
    """Locator and readers of all streams, with one budget."""
    source = TarLocator(0, open_webdataset(StoreSpec(str(url), storage_options), split_part="train"))
    fetcher = Fetcher(8)
    share = options.share(STREAMS)
    group = ReaderGroup(share, fetcher, STREAMS)
    plan = RepeatPlan(LeafPlan(0, source.index.shard_starts, OrderSpec(20, 20, 4, 1)), repeat)
    schedules = [
        build_schedule(plan, num_streams=STREAMS, stream=stream, key=derive_key(5, stream))
        for stream in range(STREAMS)
    ]
    readers = [SampleReader(schedule, schedule.begin(), [source], group) for schedule in schedules]
    return group.budget, schedules, readers


def rotate(readers, count, look=lambda: None):
    """``count`` samples of each, some at a time."""
    found = [[] for _ in readers]
    while len(found[-1]) < count:
        for reader, mine in zip(readers, found, strict=True):
            for _ in range(min(AT_ONCE, count - len(mine))):
                sample = reader.next()
                look()
                mine.append(sample.index)
                assert {name: bytes(part) for name, part in sample.parts.items()} == parts(sample.index)
    return found


@pytest.mark.every(5)
@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize("budget", [4 << 20, 1 << 20, 500_000])
def test_each_gives_its_samples_within_one_budget(remote, budget, planned):
    options = ReadOptions(byte_budget=budget, first_samples=4)
    options = options.planned(SAMPLES, 20) if planned else options
    budget_of, schedules, readers = open_readers("s3://bucket/data", options, remote.storage_options)
    larger = 5 * 10_000  # the first samples, and one that is larger
    most = options.share(STREAMS).fetch_bytes * STREAMS + larger
    seen = []
    count = 2 * SAMPLES // STREAMS
    found = rotate(readers, count, lambda: seen.append(budget_of.outstanding_bytes))
    assert 0 < max(seen) <= most
    for schedule, mine in zip(schedules, found, strict=True):
        assert mine == schedule.take(schedule.begin(), count)[0].index.tolist()
    for reader in readers:
        reader.close()
    assert budget_of.outstanding_bytes == 0


def test_what_fits_together_is_asked_for_in_few_requests(remote):
    """A pass of each stream is about 60 samples; with a part of the budget for two plans each, it took 4
    times as many.
    """
    budget = SAMPLES * 8_192 * 16 // 15 * 2 * 10 // 9  # half of a small one is for the client
    options = ReadOptions(byte_budget=budget, first_samples=4)
    _, _, readers = open_readers("s3://bucket/data", options, remote.storage_options)
    remote.reset_counters()
    passes = 4
    rotate(readers, passes * SAMPLES // STREAMS)
    asked = sum(entry.key.endswith(".tar") for entry in remote.log())
    # A part of a stream lies in one or two shards; one pass is looked ahead; the first samples go one by one.
    assert asked <= (passes + 1) * 2 * STREAMS + 4 + 8


def test_one_that_stands_still_does_not_stop_the_others(remote):
    options = ReadOptions(byte_budget=1 << 20, first_samples=4)
    _, _, readers = open_readers("s3://bucket/data", options, remote.storage_options)
    rotate(readers, 10)
    rotate(readers[2:5], 120)  # 2.5 MB
    for reader in readers[5:]:
        reader.close()
    rotate(readers[:5], 40)


@pytest.mark.parametrize("planned", [False, True])
def test_a_sample_that_cannot_be_cut_is_met_in_its_place(folder, tmp_path, planned):
    """Also where its fetch was taken apart before, or has its bytes from a request for several readers."""
    source = TarLocator(0, open_webdataset(StoreSpec(str(folder)), split_part="train"))
    path = source.index.shard_paths[0]
    data = bytearray((folder / path).read_bytes())
    broken = 5
    _, starts, _ = (column[:, 0] for column in source.locate(np.arange(PER_SHARD)))
    data[starts[broken] : starts[broken] + 512] = b"?" * 512
    with S3Server() as server:
        server.upload_folder(folder, "s3://bucket/data")
        server.put(f"s3://bucket/data/{path}", bytes(data))
        options = ReadOptions(byte_budget=8 << 20, first_samples=1)
        options = options.planned(SAMPLES, 20) if planned else options
        _, _, readers = open_readers("s3://bucket/data", options, server.storage_options, repeat=1)
        seen, errors = [], 0
        left = list(readers)
        while left:
            for reader in list(left):
                for _ in range(AT_ONCE):
                    try:
                        sample = reader.next()
                    except IndexMismatchError:
                        errors += 1
                        continue
                    if sample is None:
                        left.remove(reader)
                        break
                    seen.append(sample.index)
        assert errors == 1
        assert sorted(seen) == [index for index in range(SAMPLES) if index != broken]
