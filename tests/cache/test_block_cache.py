"""One process: exactly what was fetched is kept, and only what was written is given out."""

import os
import pickle
import shutil
import threading
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from origins import BLOCK, Origin, block_files, counted, disk_bytes
from repetitions import examples
from told import told

from energon_stream.cache import BlockCache, CacheSnapshot
from energon_stream.cache.block_file import MOST_RECORDS
from energon_stream.errors import RangeError
from energon_stream.storage import ByteRange, run_isolated

LINE = 64 << 10


def test_exactly_what_is_missing_is_fetched(cache, origin):
    origin.read(cache, 1000, 2000)
    origin.read(cache, 1000, 2000)
    origin.read(cache, 1200, 1300)
    assert origin.asked == [(1000, 2000)]
    origin.read(cache, 0, 2 * BLOCK)  # what was there is read over: one request is cheaper than two
    assert origin.asked[1:] == [(0, 2 * BLOCK)]
    origin.read(cache, BLOCK - 5, BLOCK + 5)
    assert len(origin.asked) == 2
    last = 2 * BLOCK + 100_000
    origin.read(cache, last, last + LINE)
    origin.asked.clear()
    origin.read(cache)
    assert origin.asked == [(2 * BLOCK, last), (last + LINE, len(origin.data))]


def test_one_request_for_gaps_that_are_large_beside_what_is_there(cache, origin):
    """A gap costs a round trip. Cached bytes above a sixteenth of what is missing are not read again."""
    size = len(origin.data)
    origin.read(cache, 100_000, 140_000)
    origin.asked.clear()
    origin.read(cache)
    assert origin.asked == [(0, size)]
    other = Origin(size, seed=1, path="other.tar")
    other.read(cache, 100_000, 100_000 + size // 8)
    other.asked.clear()
    other.read(cache)
    assert other.asked == [(0, 100_000), (100_000 + size // 8, size)]


def test_one_request_for_what_lies_in_several_blocks(cache, origin):
    origin.read(cache)
    assert origin.asked == [(0, len(origin.data))]
    assert len(block_files(cache.config)) == 4


def test_hits_of_one_block_and_misses_are_not_copied(cache, origin):
    data = origin.read(cache, 10, BLOCK)
    assert data.obj is origin.data
    assert data.readonly
    big = Origin(9 << 20, path="big")
    large = BlockCache(type(cache.config)(cache.config.directory, min_free_bytes=0))  # blocks of 32 MiB
    big.read(large)
    assert type(big.read(large, 1, 8 << 20).obj).__name__ == "mmap"
    assert len(big.asked) == 1


def test_counters(cache, origin):
    origin.read(cache, 0, 1000)
    origin.read(cache, 0, 1000)
    origin.read(cache, 0, 100_000)
    assert cache.read(origin.identity, 0, 10) is not None
    assert cache.read(origin.identity, 0, 100_001) is None
    expected = CacheSnapshot(hits=2, hit_bytes=2010, misses=2, missed_bytes=100_000, stored_bytes=100_000)
    assert cache.counters() == expected
    assert cache.counters() - expected == CacheSnapshot()
    assert (expected + expected).hit_bytes == 4020


def test_missing_tells_what_would_be_fetched(cache, origin):
    assert cache.missing(origin.identity, 0, len(origin.data)) == [ByteRange(0, len(origin.data))]
    origin.read(cache, 100, BLOCK + 100)
    assert cache.missing(origin.identity, 0, 2 * BLOCK) == [
        ByteRange(0, 100),
        ByteRange(BLOCK + 100, 2 * BLOCK),
    ]
    assert cache.missing(origin.identity, 200, 300) == []


def test_publish_keeps_what_was_fetched_elsewhere(cache, origin):
    cache.publish(origin.identity, 5, memoryview(origin.data)[5 : BLOCK + 5])
    origin.read(cache, 5, BLOCK + 5)
    assert origin.asked == []


def test_only_what_lies_around_cached_bytes_is_fetched(cache, origin):
    origin.read(cache, 100_000, 200_000)
    origin.asked.clear()
    for _ in range(2):
        assert cache.fetch(origin.identity, 1, len(origin.data), origin.get) == origin.data[1:]
    assert origin.asked == [(1, 100_000), (200_000, len(origin.data))]


@pytest.mark.parametrize("bounds", [(-1, 5), (5, 4), (0, 10**9)])
def test_bytes_that_are_none(cache, origin, bounds):
    for ask in (cache.missing, cache.read):
        with pytest.raises(RangeError, match=r"s3://bucket/data/shard.tar"):
            ask(origin.identity, *bounds)
    with pytest.raises(RangeError, match="the object has"):
        cache.fetch(origin.identity, *bounds, origin.get)


def test_no_bytes(cache):
    empty = Origin(0)
    assert bytes(empty.read(cache)) == b""
    assert bytes(empty.read(cache, 0, 0)) == b""
    assert empty.asked == []


def test_an_error_of_get_is_raised_and_the_next_one_tries_again(cache, origin):
    def fail(start, stop):
        raise ConnectionError("no network")

    with pytest.raises(ConnectionError, match="no network"):
        cache.fetch(origin.identity, 0, 10, fail)
    with pytest.raises(ValueError, match="10 bytes were to be fetched, and 9 came"):
        cache.fetch(origin.identity, 0, 10, lambda start, stop: origin.get(start, stop - 1))
    origin.asked.clear()
    origin.read(cache, 0, 10)
    assert origin.asked == [(0, 10)]


def test_two_versions_are_two_objects(cache):
    old, new = Origin(BLOCK, seed=1), Origin(BLOCK, seed=2, etag='"2"')
    longer = Origin(BLOCK + 1, seed=3, etag='"2"')
    for origin in (old, new, longer):
        origin.read(cache)
    for origin in (old, new, longer):
        origin.read(cache)
        assert len(origin.asked) == 1


def test_other_blocks_are_other_files(cache, config, origin):
    origin.read(cache)
    other = BlockCache(type(config)(config.directory, min_free_bytes=0, block_bytes=2 * BLOCK))
    origin.read(other)
    origin.read(other)
    assert len(origin.asked) == 2


def test_another_layout_lies_beside(cache, config, origin):
    """The version is the name of a folder: what an older or newer release left is neither read nor
    changed.
    """
    origin.read(cache)
    cache.close()
    os.rename(f"{config.directory}/v1", f"{config.directory}/v0")
    before = {path: os.stat(path).st_mtime_ns for path in block_files(config)}
    origin.read(BlockCache(config))
    assert len(origin.asked) == 2
    assert before.items() <= {path: os.stat(path).st_mtime_ns for path in block_files(config)}.items()


def test_the_directory_may_move(cache, config, origin, tmp_path):
    origin.read(cache)
    cache.close()
    shutil.move(config.directory, tmp_path / "elsewhere")
    moved = BlockCache(type(config)(str(tmp_path / "elsewhere"), "64MB", min_free_bytes=0, block_bytes=BLOCK))
    origin.read(moved)
    assert len(origin.asked) == 1


def flip(path, place):
    """Flip a bit of a file."""
    with open(path, "r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("size", [1000, 3 << 20], ids=["copied", "mapped"])
def test_a_flipped_byte_is_a_miss_and_a_warning(config, caplog, size):
    cache = BlockCache(type(config)(config.directory, min_free_bytes=0))
    origin = Origin(4 << 20)
    origin.read(cache, 100, 100 + size)
    (path,) = block_files(config)
    flip(path, 600)
    for _ in range(3):
        origin.read(cache, 100, 100 + size)
    assert origin.asked == [(100, 100 + size)] * 2  # and kept again
    assert cache.counters().damaged == 1
    (warning,) = told(caplog)
    assert "shard.tar are not those that were written" in warning


def test_a_file_that_was_cut_off_or_filled_with_rubbish_is_a_miss(cache, config, origin):
    for damage in (lambda size: 0, lambda size: size // 2, lambda size: size - 1):
        origin.read(cache, 0, BLOCK)
        (path,) = block_files(config)
        os.truncate(path, damage(os.path.getsize(path)))
        origin.read(cache, 0, BLOCK)
    with open(path, "wb") as file:
        file.write(os.urandom(BLOCK + 3200))
    origin.read(cache, 0, BLOCK)


def test_an_unfinished_record_is_written_over(cache, config, origin):
    """What a writer leaves that was killed within its last write."""
    origin.read(cache, 0, 1000)
    (path,) = block_files(config)
    with open(path, "ab") as file:
        file.write(b"half a record")
    origin.read(cache, 2000, 3000)
    origin.asked.clear()
    origin.read(cache, 0, 1000)
    origin.read(cache, 2000, 3000)
    assert origin.asked == []


def test_views_outlive_removal(cache, config):
    origin = Origin(4 << 20)
    large = BlockCache(type(config)(config.directory, min_free_bytes=0))
    origin.read(large)
    view = origin.read(large)
    shutil.rmtree(config.directory)
    assert view == origin.data


def test_it_travels_by_pickle_and_through_forks(cache, origin):
    origin.read(cache)
    copy = pickle.loads(pickle.dumps(cache))
    assert copy.config == cache.config
    origin.read(copy)

    def child():
        origin.read(cache)
        return cache.counters()

    assert run_isolated(child) == CacheSnapshot(hits=1, hit_bytes=len(origin.data))
    assert len(origin.asked) == 1


def test_a_fork_in_the_middle_of_a_fetch_keeps_no_lock(cache, origin):
    """The child lives on; the parent's bytes must be free for others when the parent is done with them."""
    pids = []

    def get(start, stop):
        pid = os.fork()
        if not pid:
            threading.Event().wait(300)
            os._exit(0)
        pids.append(pid)
        raise ConnectionError

    with pytest.raises(ConnectionError):
        cache.fetch(origin.identity, 0, 100, get)
    try:
        origin.read(cache, 0, 100)
        assert cache.counters().waits == 0
    finally:
        os.kill(pids[0], 9)
        os.waitpid(pids[0], 0)


def test_usable_again_after_close(cache, origin):
    origin.read(cache)
    cache.close()
    origin.read(cache)
    assert len(origin.asked) == 1


def test_records_do_not_grow_for_ever(cache, config):
    origin = Origin(BLOCK)
    origin.read(cache, 0, 1)
    (path,) = block_files(config)
    os.truncate(path, BLOCK + 32 * (MOST_RECORDS - 9))  # as if there were all but nine; invalid ones count
    for start in range(1, 30):
        origin.read(cache, 10 * start, 10 * start + 1)
    assert os.path.getsize(path) == BLOCK + 32 * MOST_RECORDS
    origin.asked.clear()
    for start in range(30):
        origin.read(cache, 10 * start, 10 * start + 1)
    assert len(origin.asked) == 20


ranges = st.tuples(st.integers(0, 2 * BLOCK), st.integers(0, BLOCK)).map(lambda pair: (pair[0], sum(pair)))


@examples(30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(ranges, max_size=12))
def test_any_reads_in_any_order(config, wanted):
    shutil.rmtree(config.directory, ignore_errors=True)
    cache, origin = BlockCache(config), Origin(3 * BLOCK)
    for start, stop in wanted:
        before = {
            byte for gap in cache.missing(origin.identity, start, stop) for byte in (gap.start, gap.stop - 1)
        }
        origin.asked.clear()
        origin.read(cache, start, stop)
        asked = [range(*span) for span in origin.asked]
        assert all(any(byte in span for span in asked) for byte in before)
        assert cache.missing(origin.identity, start, stop) == []
        assert disk_bytes(config) <= counted(cache).bytes
        assert counted(cache).pending == 0
    total = counted(cache)
    assert cache.directory.recount(always=True)
    assert counted(cache) == total


def test_what_is_to_be_kept_is_fetched_and_what_is_there_is_not_read(cache, origin):
    origin.read(cache, BLOCK, BLOCK + LINE)
    (path,) = block_files(cache.config)
    flip(path, 600)  # whoever reads these bytes notices, and removes them
    origin.asked.clear()
    assert cache.keep(origin.identity, 0, 2 * BLOCK, origin.get)
    assert origin.asked == [(0, BLOCK), (BLOCK + LINE, 2 * BLOCK)]
    before = cache.counters()
    assert cache.keep(origin.identity, 0, 2 * BLOCK, origin.get)
    assert cache.counters() == before
    assert before.damaged == 0
    flip(path, 600)
    assert cache.read(origin.identity, 0, 2 * BLOCK) == origin.data[: 2 * BLOCK]


def test_what_there_is_no_room_for_is_not_fetched_to_be_kept(config, origin):
    cache = BlockCache(replace(config, max_bytes=300_000))
    assert not cache.keep(origin.identity, 0, 3 * BLOCK, origin.get)
    assert not origin.asked
    assert cache.keep(origin.identity, 0, 1000, origin.get)


def test_what_another_one_fetched_meanwhile_is_kept(cache, origin):
    def get(start, stop):
        cache.publish(origin.identity, start, memoryview(origin.data)[start:stop])
        return origin.get(start, stop)

    assert cache.keep(origin.identity, 0, BLOCK, get)


def test_what_was_to_be_kept_and_is_not(config, origin):
    """There was room, and another one took it meanwhile."""
    cache = BlockCache(replace(config, max_bytes=500_000))

    def get(start, stop):
        Origin(200_000, path="other.tar").read(BlockCache(replace(config, max_bytes=500_000)))
        return origin.get(start, stop)

    assert not cache.keep(origin.identity, 0, BLOCK, get)
    assert origin.asked
