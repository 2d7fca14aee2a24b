"""What a loader did, how long the loop waited, and the verdict."""

import gc
import json
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energon_stream import (
    DefaultTaskEncoder,
    JobStats,
    LoaderStats,
    MapDataset,
    WorkerConfig,
    get_loader,
    get_train_dataset,
)
from energon_stream.cache import CacheSnapshot
from energon_stream.loader.observe import profile
from energon_stream.loader.observe.meter import percentile, samples_in
from energon_stream.loader.observe.profile import CAUSES, Profile, Profiler, describe
from energon_stream.storage import CounterSnapshot
from energon_stream.testing.datasets import prepared_binary_dataset
from energon_stream.testing.operator_suite import NumbersDataset

SAMPLES = 200


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return prepared_binary_dataset(
        tmp_path_factory.mktemp("stats") / "data", shards=4, samples=SAMPLES, payload_bytes=500
    )


class Slow(DefaultTaskEncoder):
    def encode_sample(self, sample):
        time.sleep(0.002)
        return sample


def read(folder, workers, encoder, **options):
    dataset = get_train_dataset(
        folder,
        batch_size=10,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        worker_config=WorkerConfig(0, 1, workers),
        task_encoder=encoder,
        repeat=False,
        **options,
    )
    with get_loader(dataset) as loader:
        assert loader.stats().batches == 0
        list(loader)
        running = loader.stats()
    return running, loader.stats()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_slow_function_is_named(folder, workers):
    running, closed = read(folder, workers, Slow())
    assert running.profile.causes == closed.profile.causes
    assert (closed.batches, closed.samples, closed.num_workers) == (20, SAMPLES, workers)
    assert closed.verdict.cause == "encode"
    assert "Slow.encode_sample" in closed.verdict.text
    assert closed.waits[50] <= closed.waits[90] <= closed.waits[99] <= closed.wait_seconds <= closed.seconds
    assert 0.9 < sum(closed.shares.values()) < 1.1
    assert json.loads(json.dumps(closed.as_json()))["verdict"]["cause"] == "encode"
    assert "Slow.encode_sample" in str(closed)


@pytest.mark.parametrize("workers", [0, 1])
def test_requests_have_reasons(folder, s3_server, tmp_bucket, workers):
    s3_server.upload_folder(folder, f"{tmp_bucket}/data")
    options = {"storage_options": s3_server.storage_options}
    stats, _ = read(f"{tmp_bucket}/data", workers, DefaultTaskEncoder(), **options)
    assert stats.io.bytes_received >= SAMPLES * 500
    assert sum(stats.io.reasons.values()) > 0
    assert set(stats.io.reasons) <= {"first_batch", "max_request", "generation_end", "gap", "parts"}
    assert stats.io.reads >= sum(stats.io.reasons.values())
    assert 0 < stats.io.latency <= stats.io.read_seconds


def test_no_thread_is_left(folder):
    before = set(threading.enumerate())
    read(folder, 0, DefaultTaskEncoder())
    assert not {thread for thread in set(threading.enumerate()) - before if "profile" in thread.name}


def test_a_profiler_may_be_closed_in_its_own_thread(monkeypatch):
    made, closed = threading.Event(), threading.Event()

    def close_there(_frame):
        made.wait()
        profiler.close()
        closed.set()
        return None, None

    monkeypatch.setattr(profile, "describe", close_there)
    profiler = Profiler(threading.get_ident())
    made.set()
    assert closed.wait(300)
    profiler.close()


@pytest.mark.parametrize("kind", ["main", "thread"])
def test_looks_keep_no_batch_alive(kind):
    """A look meets functions that are about to return with a batch, and the collector does not run."""

    class Value:
        pass

    def made(_):
        seen = loader.stats().profile.looks
        while len(values) < 6 and loader.stats().profile.looks <= seen:
            time.sleep(0.001)
        value = Value()
        values.append(weakref.ref(value))
        return value

    values = []
    dataset = MapDataset(NumbersDataset(9, WorkerConfig(0, 1, 1)), made)
    gc.disable()
    try:
        with get_loader(dataset, worker_type=kind) as loader:
            for _ in loader:
                pass
            del _
        assert sum(value() is not None for value in values) == 0
    finally:
        gc.enable()
    assert len(values) == 9


def test_a_stack_outside_of_loaders_has_no_cause():
    profiler = Profiler(threading.get_ident())
    time.sleep(0.2)
    profiler.close()
    assert profiler.snapshot() == Profile()
    assert describe(None) == (None, None)


def test_a_function_that_waits_for_threads_of_its_own_is_no_wait_for_the_store(folder):
    class Threads(DefaultTaskEncoder):
        def encode_sample(self, sample):
            with ThreadPoolExecutor(1) as pool:
                pool.submit(time.sleep, 0.003).result()
            return sample

    stats, _ = read(folder, 0, Threads())
    assert stats.verdict.cause == "encode"


def stats_of(rank=0, workers=2, waited=8.0, causes=(), io=None, cache=None, functions=()):
    return LoaderStats(
        rank=rank,
        num_workers=workers,
        batches=101,
        samples=1010,
        first_batch_seconds=1.0,
        seconds=10.0,
        wait_seconds=waited,
        waits={50: 0.1, 90: 0.1, 99: 0.1},
        io=io or CounterSnapshot(),
        cache=cache or CacheSnapshot(),
        profile=Profile(dict(causes), dict(functions)),
        restarts=0,
        first_samples=10,
    )


def reads(latency, rate, sizes=(1000, 100_000, 5_000_000), **more):
    """Counters of reads that take a time plus one that grows with the size."""
    seconds = [latency + size / rate for size in sizes]
    return CounterSnapshot(
        requests={"get": len(sizes)},
        bytes_received=sum(sizes),
        reads=len(sizes),
        read_seconds=sum(seconds),
        squared_bytes=sum(size**2 for size in sizes),
        byte_seconds=sum(size * second for size, second in zip(sizes, seconds, strict=True)),
        **more,
    )


@pytest.mark.parametrize(
    ("stats", "cause", "said"),
    [
        (stats_of(waited=0.5, causes={"store": 9}), "consumer", "keeps up: the training loop waits 5%"),
        (stats_of(waited=2.0, workers=0, causes={"loader": 9}), "consumer", "works 80% of the time"),
        (stats_of(waited=2.0, workers=1, causes={"loader": 9}), "loader", "waiting 20%"),
        (stats_of(waited=3.0, workers=0, causes={"loader": 9}), "loader", "use workers"),
        (stats_of(causes={"store": 9}, io=reads(0.2, 1e9)), "store latency", "200 ms a request"),
        (stats_of(causes={"store": 9}, io=reads(0.01, 1e6)), "store rate", "0.5 MB/s"),
        (stats_of(causes={"store": 9}, io=reads(0.2, 1e9, retries=1)), "throttling", "refuses 33%"),
        (
            stats_of(causes={"store": 9}, cache=CacheSnapshot(hit_bytes=10, missed_bytes=90)),
            "cold cache",
            "10% of the bytes",
        ),
        (stats_of(causes={"decode": 6, "encode": 3}), "decode", "67% of the workers' time"),
        (stats_of(causes={"encode": 9}, functions={"f": 2, "g": 7}), "encode", "g, 100%"),
        (
            stats_of(causes={"collate": 9, "consumer": 90}, workers=0),
            "collate",
            "100% of the time of loading",
        ),
        (stats_of(causes={"channel": 9}), "channel", "main process"),
        (stats_of(causes={"loader": 9}), "loader", "own work"),
        (stats_of(), "unknown", "no cause was observed"),
    ],
)
def test_verdicts(stats, cause, said):
    assert stats.verdict.cause == cause
    assert said in stats.verdict.text
    assert str(stats.verdict) == stats.verdict.text
    assert stats.gather() == JobStats((stats,))


def test_one_slow_rank_is_named():
    store = {"causes": {"store": 9}, "io": reads(0.2, 1e9)}
    ranks = [stats_of(rank, waited=1.0, **store) for rank in range(3)]
    job = JobStats((*ranks, stats_of(3, **store)))
    assert (job.verdict.cause, job.slowest.rank) == ("slow rank", 3)
    assert "rank 3 is slow" in job.verdict.text
    assert "200 ms a request" in job.verdict.text
    assert JobStats(tuple(ranks)).verdict.cause == "store latency"
    assert job.samples_per_second == pytest.approx(400.0)
    assert json.loads(json.dumps(job.as_json()))["slowest"] == 3


@given(st.lists(st.floats(0, 100), min_size=1, max_size=50), st.floats(0, 100))
def test_percentiles_are_values_with_enough_below_them(values, number):
    found = percentile(sorted(values), number)
    assert found in values
    assert sum(value <= found for value in values) >= number / 100 * len(values) - 1e-9


def test_latency_is_within_the_mean():
    assert CounterSnapshot().latency == 0.0
    assert reads(0.1, 1e6, sizes=(1000,)).latency == pytest.approx(0.101)
    assert reads(0.1, 1e6, sizes=(1000, 1000)).latency == pytest.approx(0.101)
    assert reads(0.1, 1e6).latency == pytest.approx(0.1)
    assert (reads(0.1, 1e6) - reads(0.1, 1e6)).latency == 0.0


def test_samples_are_counted_by_their_keys():
    assert samples_in({"__key__": ["a", "b"]}) == 2
    assert samples_in({"__key__": "a"}) == samples_in([1, 2]) == samples_in(None) == 1


def test_profiles_add_up():
    first, second = Profile({"store": 2, "consumer": 1}, {"f": 1}), Profile({"store": 1, "decode": 1})
    both = first + second
    assert both == Profile({"store": 3, "consumer": 1, "decode": 1}, {"f": 1})
    assert (both.looks, both.idle, both.share("store")) == (5, 0.2, 0.75)
    assert set(both.causes) <= set(CAUSES)
