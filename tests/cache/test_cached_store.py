"""Stores read through a cache: the conformance suite, what goes over the wire, and versions."""

import logging
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from told import told

from energon_stream.cache import BlockCache, CacheConfig, CachedStore, CacheSnapshot
from energon_stream.errors import ObjectChangedError, UnsupportedStoreError
from energon_stream.storage import Body, ByteRange, Fetcher, ObjectMeta, StorageCounters, StoreSpec
from energon_stream.testing.s3server import Rule
from energon_stream.testing.store_suite import StoreConformance

SIZE = 30_000
COUNT = 400
OBJECT = bytes(range(251)) * (COUNT * SIZE // 251 + 1)


@dataclass(frozen=True)
class CachedSpec:
    """Opens a store with a cache before it."""

    spec: StoreSpec
    config: CacheConfig

    def open(self):
        return CachedStore(self.spec.open(), BlockCache(self.config))

    def join(self, relative):
        return CachedSpec(self.spec.join(relative), self.config)


class TestConformance(StoreConformance):
    @pytest.fixture
    def spec(self, s3_server, tmp_bucket, config):
        return CachedSpec(StoreSpec(f"{tmp_bucket}/some folder", s3_server.storage_options), config)

    @pytest.fixture
    def missing_root(self, spec):
        return CachedSpec(StoreSpec("s3://no-such-bucket", spec.spec.storage_options), spec.config)

    def test_replaced_object_is_noticed(self, store, filling):
        """What was kept of the old version may still be read as such; nothing else of it."""
        old = store.get("digits").etag
        filling.open().put("digits", b"a different text")
        fresh = filling.open()
        assert store.get("digits", etag=old).data == b"0123456789"
        for read in (fresh.get, lambda key, etag: fresh.get_suffix(key, 2, etag=etag)):
            with pytest.raises(ObjectChangedError, match="digits"):
                read("digits", etag='"neither"')
        new = store.head("digits").etag
        assert new != old
        assert store.get("digits", etag=new).data == b"a different text"
        assert fresh.get("digits").data == b"a different text"


@pytest.fixture
def counters():
    return StorageCounters()


@pytest.fixture
def remote(s3_server, tmp_bucket, counters):
    s3_server.put(f"{tmp_bucket}/key", OBJECT)
    return StoreSpec(tmp_bucket, s3_server.storage_options).open(counters=counters)


@pytest.fixture
def store(remote, cache):
    return CachedStore(remote, cache)


def gets(server):
    return server.counters().requests.get("GET", 0)


def test_the_first_answer_tells_the_version_and_is_kept(s3_server, store, cache):
    first = store.get_range("key", ByteRange(100, 200))
    assert (bytes(first.data), first.total_size) == (OBJECT[100:200], len(OBJECT))
    again = store.get_range("key", ByteRange(120, 180), etag=first.etag)
    assert (bytes(again.data), again.etag, again.total_size) == (OBJECT[120:180], first.etag, len(OBJECT))
    assert store.known("key").etag == first.etag
    assert gets(s3_server) == 1
    assert dict(s3_server.counters().requests) == {"GET": 1}  # no HEAD


@pytest.mark.parametrize("how", ["get", "suffix", "range"])
def test_every_way_of_reading_is_cached(s3_server, remote, cache, how):
    def read(store):
        if how == "get":
            return store.get("key").data
        if how == "suffix":
            return store.get_suffix("key", 5000).data
        return store.get_range("key", ByteRange(len(OBJECT) - 5000, len(OBJECT))).data

    expected = OBJECT if how == "get" else OBJECT[-5000:]
    meta = remote.head("key")
    for knows in (False, True):  # the second store finds what the first one kept
        store = CachedStore(remote, cache)
        if knows:
            store.remember("key", meta)
        for _ in range(2):
            assert read(store) == expected
    assert gets(s3_server) == 1


def test_a_suffix_longer_than_the_object_is_all_of_it(s3_server, store):
    for _ in range(2):
        assert store.get_suffix("key", 10**9).data == OBJECT
    assert gets(s3_server) == 1


def test_a_range_is_kept_without_a_reader(s3_server, remote, store, cache):
    assert store.keep("key", ByteRange(100, 5000))
    assert dict(s3_server.counters().requests) == {"HEAD": 1, "GET": 1}  # the version has to be known
    assert store.keep("key", ByteRange(100, 5000))
    assert store.get_range("key", ByteRange(200, 300)).data == OBJECT[200:300]
    assert gets(s3_server) == 1


def test_a_replaced_object_is_noticed_and_never_mixed(s3_server, tmp_bucket, remote, cache):
    """Old bytes that are there serve the old version; what is missing of it is an error, as without a
    cache.
    """
    store = CachedStore(remote, cache)
    old = store.get_range("key", ByteRange(0, 1000)).etag
    s3_server.put(f"{tmp_bucket}/key", OBJECT[::-1])
    assert store.get_range("key", ByteRange(0, 1000)).data == OBJECT[:1000]
    reads = [
        lambda store: store.get_range("key", ByteRange(500, 2000)),
        lambda store: store.get_range("key", ByteRange(500, 2000), etag=old),
        lambda store: store.get("key"),
        lambda store: store.keep("key", ByteRange(500, 2000)),
    ]
    for read in reads:
        with pytest.raises(ObjectChangedError, match=f"{tmp_bucket}/key"):
            read(store)
    with pytest.raises(ObjectChangedError, match=f"{tmp_bucket}/key"):
        remote.get_range("key", ByteRange(500, 2000), etag=old)
    new = CachedStore(remote, cache)
    assert new.get_range("key", ByteRange(500, 2000)).data == OBJECT[::-1][500:2000]
    assert new.get_range("key", ByteRange(500, 2000)).etag != old


class OtherAnswers:
    """A store that pays no heed to the version it is asked for, or tells none."""

    is_local = False
    url = "scripted://store"

    def __init__(self, etag, total_size=None):
        self.etag, self.total_size, self.requests = etag, total_size or len(OBJECT), 0

    def head(self, path):
        return ObjectMeta(self.total_size, self.etag)

    def get_range(self, path, byte_range, *, etag=None):
        self.requests += 1
        return Body(memoryview(OBJECT)[byte_range.start : byte_range.stop], self.etag, self.total_size)


@pytest.mark.parametrize("answers", [OtherAnswers('"2"'), OtherAnswers('"1"', 17), OtherAnswers(None, 17)])
def test_answers_of_another_version_are_not_kept(cache, answers):
    store = CachedStore(answers, cache)
    store.remember("key", ObjectMeta(len(OBJECT), '"1"'))
    with pytest.raises(ObjectChangedError, match="scripted://store/key"):
        store.get_range("key", ByteRange(0, 10))
    with pytest.raises(ObjectChangedError, match="scripted://store/key"):
        store.keep("key", ByteRange(0, 10))
    assert cache.counters().stored_bytes == 0


def test_objects_without_a_version_cannot_be_kept(cache):
    with pytest.raises(UnsupportedStoreError, match="scripted://store/key"):
        CachedStore(OtherAnswers(None), cache).keep("key", ByteRange(0, 10))


def test_objects_without_a_version_are_passed_through_with_one_warning(cache, caplog):
    answers = OtherAnswers(None)
    store = CachedStore(answers, cache)
    store.remember("key", ObjectMeta(len(OBJECT), None))
    for _ in range(3):
        assert store.get_range("key", ByteRange(0, 10)).data == OBJECT[:10]
    assert answers.requests == 3
    assert cache.counters() == CacheSnapshot()
    (warning,) = told(caplog)
    assert "returns no ETag for key" in warning


def test_writes_go_to_the_store_and_the_next_read_too(s3_server, store):
    store.get("key")
    store.put("key", b"another")
    assert store.get("key").data == b"another"
    store.delete("key")
    assert list(store.list()) == []


# The fetcher: hits are no answers of the network


def read_all(fetcher, store, count=COUNT):
    ranges = [ByteRange(n * SIZE, (n + 1) * SIZE) for n in range(count)]
    futures = [fetcher.submit(store, "key", wanted, deadline=n) for n, wanted in enumerate(ranges)]
    for wanted, future in zip(ranges, futures, strict=True):
        assert future.result().data == OBJECT[wanted.start : wanted.stop]


@pytest.mark.usefixtures("late_requests")
def test_hits_neither_make_requests_late_nor_pay_for_second_ones(s3_server, remote, store, cache, counters):
    """After hundreds of hits of microseconds, answers of 50 ms are as usual as they were."""
    store.remember("key", remote.head("key"))
    fetcher = Fetcher(16)
    read_all(fetcher, store, 40)  # some answers, so that a duration is known
    hedged, asked = counters.snapshot().hedges, counters.snapshot().requests
    s3_server.shape(first_byte_latency=0.2)
    for _ in range(20):
        read_all(fetcher, store, 40)
    scheduler = fetcher.scheduler
    assert cache.counters().hits >= 800  # a hit that a busy machine made late is a hit twice
    assert counters.snapshot().requests == asked
    assert scheduler.budget.earned == pytest.approx(0.03 * 40 * SIZE)
    assert sum(len(recent) for recent, _ in scheduler.to_end.seen.values()) == 40 + hedged
    fetcher.close()


@pytest.mark.usefixtures("late_requests")
def test_a_late_download_is_repeated_though_its_bytes_are_claimed(
    s3_server, tmp_bucket, remote, store, cache, counters
):
    s3_server.put(f"{tmp_bucket}/slow", OBJECT[:SIZE])
    for path in ("key", "slow"):
        store.remember(path, remote.head(path))
    s3_server.shape(first_byte_latency=0.01)
    fetcher = Fetcher(32)
    read_all(fetcher, store, 40)
    hedges = counters.snapshot().hedges
    s3_server.add_rule(Rule("delay", "*/slow", times=1, seconds=4.0))
    assert fetcher.submit(store, "slow", ByteRange(0, SIZE)).result().data == OBJECT[:SIZE]
    assert counters.snapshot().hedges == hedges + 1
    assert cache.missing(store.known("slow"), 0, SIZE) == []  # the second answer is kept
    fetcher.close()


def test_waiting_for_another_download_is_not_hedged(s3_server, remote, store, cache, counters):
    """Nothing is under way in this process that could be late."""
    store.remember("key", remote.head("key"))
    fetcher = Fetcher(32, hedged_share=1.0)
    read_all(fetcher, store, 40)
    known, wanted = store.known("key"), ByteRange(300 * SIZE, 301 * SIZE)
    started = counters.snapshot()

    def get_slowly(start, stop):
        future = fetcher.submit(store, "key", wanted)
        time.sleep(1.0)  # many times what an answer takes
        assert not future.done()
        futures.append(future)
        return memoryview(OBJECT)[start:stop]

    futures = []
    cache.fetch(known, wanted.start, wanted.stop, get_slowly)
    assert futures[0].result().data == OBJECT[wanted.start : wanted.stop]
    assert (counters.snapshot() - started).requests == {}
    assert cache.counters().waits == 1
    fetcher.close()


def test_nothing_is_logged_in_a_normal_run(store, caplog):
    with caplog.at_level(logging.WARNING):
        store.get("key")
        store.get("key")
    assert told(caplog, "energon_stream.cache") == []


def test_what_is_in_memory_is_answered_within_the_call(s3_server, store, cache):
    """Without a thread; whatever is missing or damaged is fetched the usual way, by the same call."""
    fetcher, part = Fetcher(1), ByteRange(100, 200_000)
    etag = store.get_range("key", ByteRange(0, 300_000)).etag
    gate = threading.Event()
    blocking = fetcher.call(lambda: gate.wait(300))  # the only slot
    answer = fetcher.submit(store, "key", part, etag=etag)
    assert answer.done()
    assert answer.result().data == OBJECT[100:200_000]
    waiting = fetcher.submit(store, "key", ByteRange(5, 400_000))
    assert not waiting.done()
    gate.set()
    assert blocking.result(300)
    assert waiting.result(300).data == OBJECT[5:400_000]
    assert store.get_at_hand("key", ByteRange(5, 400_001)) is None
    assert store.get_at_hand("key", part, etag='"other"') is None
    assert store.get_at_hand("absent", part) is None
    (block,) = sorted(Path(cache.config.directory).rglob("0.*"))[:1]
    with block.open("r+b") as file:
        file.seek(150)
        file.write(b"\xff\xff\xff")
    before = gets(s3_server)
    assert fetcher.submit(store, "key", part).result(300).data == OBJECT[100:200_000]
    assert gets(s3_server) == before + 1
    fetcher.close()
