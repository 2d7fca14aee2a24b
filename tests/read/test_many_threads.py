"""Threads that share one cache, one pool of requests and one index; ``make free-threaded`` runs this without
the GIL.
"""

import functools
import random
import sys
import threading

import pytest
from reference_writer import write_reference_dataset

from energon_stream.cache import CacheConfig, cache_counters
from energon_stream.cache.cached_store import CacheLayer
from energon_stream.index.dataset import open_webdataset
from energon_stream.read.consume import ReaderGroup, SampleReader
from energon_stream.read.read_options import ReadOptions
from energon_stream.read.tar_locator import TarLocator
from energon_stream.rng import derive_key
from energon_stream.schedule import LeafPlan, OrderSpec, RepeatPlan, build_schedule
from energon_stream.storage import ByteRange, Fetcher, StoreSpec, default_counters
from energon_stream.testing.datasets import random_bytes, write_shards
from energon_stream.testing.s3server import S3Server

SHARDS, PER_SHARD, PAYLOAD, THREADS, RANGES = 3, 20, 20_000, 6, 20


@functools.cache
def parts(index):
    return {"bin": random_bytes(PAYLOAD, index), "txt": str(index).encode()}


@pytest.fixture
def switching():
    """Let threads that share the GIL change often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.fixture(scope="module")
def remote(tmp_path_factory):
    folder = tmp_path_factory.mktemp("threads") / "data"
    tars = write_shards(folder, shards=SHARDS, samples_per_shard=PER_SHARD, parts=parts)
    write_reference_dataset(folder, tars, split={"train": [tar.name for tar in tars]}, exclude=[])
    with S3Server() as server:
        server.upload_folder(folder, "s3://bucket/data")
        yield server, {tar.name: tar.read_bytes() for tar in tars}


def run_all(function):
    """Call ``function(thread)`` in all threads at the same time, and raise the first error."""
    begin, errors = threading.Barrier(THREADS), []

    def run(number):
        begin.wait()
        try:
            function(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.mark.every(2)
@pytest.mark.parametrize(("policy", "room"), [("pin", "64MB"), ("lru", "1500kB")])
def test_readers_share_a_cache_a_pool_and_an_index(remote, switching, tmp_path, policy, room):
    server, tars = remote
    config = CacheConfig(str(tmp_path / "cache"), room, policy=policy, min_free_bytes=0, block_bytes="256KiB")
    spec = StoreSpec("s3://bucket/data", server.storage_options, through=CacheLayer(config))
    index = open_webdataset(spec, split_part="train")
    fetcher, counted, cached = Fetcher(6), default_counters().snapshot(), cache_counters()
    found = [[] for _ in range(THREADS)]

    def read(thread):
        """One pass in an order of this thread's own; then ranges of the tars."""
        source = TarLocator(0, index)
        plan = RepeatPlan(LeafPlan(0, index.shard_starts, OrderSpec(20, 20, 4, 1)), 1)
        schedule = build_schedule(plan, num_streams=1, stream=0, key=derive_key(thread, 0))
        group = ReaderGroup(ReadOptions(byte_budget=1 << 20, first_samples=4), fetcher, 1)
        reader = SampleReader(schedule, schedule.begin(), [source], group)
        for _ in range(SHARDS * PER_SHARD):
            sample = reader.next()
            found[thread].append(sample.index)
            assert {name: bytes(part) for name, part in sample.parts.items()} == parts(sample.index)
        reader.close()
        draw, store = random.Random(thread), spec.open()
        for _ in range(RANGES):
            name = draw.choice(sorted(tars))
            start = draw.randrange(len(tars[name]) - 1)
            stop = min(start + draw.randrange(1, 600_000), len(tars[name]))
            body = fetcher.submit(store, name, ByteRange(start, stop)).result()
            assert body.data == tars[name][start:stop]

    run_all(read)
    for mine in found:
        assert sorted(mine) == list(range(SHARDS * PER_SHARD))
    assert len({tuple(mine) for mine in found}) == THREADS
    fetcher.close()
    # Counters lose nothing: what was received is what the cache asked for, and all else came from it.
    received = (default_counters().snapshot() - counted).bytes_received
    cache = cache_counters() - cached
    assert cache.hits > 0
    assert cache.missed_bytes <= received <= cache.missed_bytes + (1 << 20)  # and the index
    if policy == "pin":
        assert cache.missed_bytes <= 1.3 * sum(map(len, tars.values()))  # fetched once, by one of them
