"""Which requests are made, and when: early ones, and small ones at the end."""

from concurrent.futures import Future

import pytest
from calls import counted
from warming import ORDER, config, warm

from energon_stream import ReadOptions, get_train_dataset
from energon_stream.pipeline.reader_dataset import ReaderDataset
from energon_stream.prewarming.amount import StreamAmount
from energon_stream.prewarming.fill import LEAST_BYTES
from energon_stream.prewarming.spans import total_bytes
from energon_stream.prewarming.wanted import WantedBytes
from energon_stream.testing.datasets import prepared_binary_dataset
from energon_stream.testing.s3server import S3Server

URL = "s3://bucket/data"
IN_FLIGHT = 8
OPTIONS = ReadOptions(max_in_flight=IN_FLIGHT)


@pytest.fixture
def large(tmp_path):
    prepared_binary_dataset(tmp_path / "s3" / "bucket" / "data", samples=2000, shards=5)
    with S3Server(tmp_path / "s3", rate=5e6) as server:
        yield server


def test_the_last_requests_are_small_and_ask_for_nothing_twice(large, cache):
    """So that connections do not idle while others fetch the last large ranges."""
    order = {"batch_size": 8, "shuffle_buffer_size": 1, "max_samples_per_sequence": 100}
    done = warm(large, URL, cache, steps=None, epochs=1, **order, read_options=OPTIONS)
    assert done.is_complete
    requests = [entry for entry in large.log() if entry.key.endswith(".tar")]
    assert len(requests) == done.requests > done.plan.requests > 1.5 * IN_FLIGHT
    assert sum(entry.bytes for entry in requests) == done.fetched_bytes == done.plan.bytes
    sizes = [entry.bytes for entry in requests]
    # Not by their order in the log: a large answer may end late on a busy machine.
    assert max(sizes) > 2 * LEAST_BYTES
    assert sum(size < 1.5 * LEAST_BYTES for size in sizes) >= IN_FLIGHT


class Loads:
    """A fetcher that runs what it is asked for at once, and counts."""

    def __init__(self):
        self.count = 0

    def ask(self, store, request, **_options):
        self.count += 1
        future = Future()
        future.set_result(request(store))
        return future


def test_ranges_are_wanted_as_soon_as_the_first_are_located(server):
    order = ORDER | {"shuffle_buffer_size": 1}
    dataset = get_train_dataset(
        "s3://bucket/whole", worker_config=config(1), storage_options=server.storage_options, **order
    )
    while not isinstance(dataset, ReaderDataset):
        (dataset,) = dataset.inputs
    loads = Loads()
    # A slice has 40 samples, and is of one shard, so that its index is enough.
    wanted = WantedBytes(dataset, {0: StreamAmount(1800, 1816)}, 8, loads, lambda store: not store.is_local)
    found = wanted.windows()
    first = next(found)
    assert total_bytes(first.rows)
    early = loads.count
    assert early < 6
    assert first.samples + sum(each.samples for each in found) == 1800
    assert loads.count == 6


def test_few_samples_are_not_walked_over_in_thousands_of_passes(tmp_path):
    """Of 3 samples, 24,578 passes were located, though a reader looks 64 samples ahead."""
    prepared_binary_dataset(tmp_path / "few", samples=3, shards=1)
    dataset = get_train_dataset(tmp_path / "few", worker_config=config(1), **ORDER)
    while not isinstance(dataset, ReaderDataset):
        (dataset,) = dataset.inputs
    with counted("energon_stream.schedule", "leaf_order.take") as taken:
        wanted = list(WantedBytes(dataset, {0: StreamAmount(3, 5)}, 1, Loads(), lambda store: True).windows())
    assert sum(each.samples for each in wanted) == 3
    assert 0 < 3 * taken.total() < 1000
