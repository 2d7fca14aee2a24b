"""Files that stay open between reads: as many as allowed, and never another block than the one that is there
now.
"""

import os
from pathlib import Path

import pytest
from origins import Origin, block_files

from energon_stream.cache import BlockCache, CacheConfig
from energon_stream.cache.block_file import BlockFile
from energon_stream.cache.block_reader import OpenBlocks
from energon_stream.cache.object_identity import block_at
from energon_stream.storage import run_isolated

MAPPED = 2 << 20  # reads of a megabyte and more get a map


def open_files(folder):
    """Descriptors of this process that lie below a folder; a map has one of its own."""
    links = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
    return [
        path for path in (os.readlink(link) for link in links if os.path.islink(link)) if str(folder) in path
    ]


@pytest.fixture
def places(cache, origin):
    """Four blocks."""
    origin.read(cache)
    cache.close()
    return [block_at(str(path)) for path in sorted(block_files(cache.config))]


def test_the_last_ones_stay_open(places):
    blocks = OpenBlocks(2)
    first = blocks.open(places[0])
    assert blocks.open(places[0]) is first
    blocks.open(places[1])
    assert blocks.open(places[0]) is first  # used again, so the other one is older
    blocks.open(places[2])
    assert sorted(open_files(places[0].root_folder)) == [places[0].path, places[2].path]
    blocks.release()
    assert open_files(places[0].root_folder) == [places[0].path]  # somebody has it
    del first
    assert not open_files(places[0].root_folder)


def test_none_stays_open_if_none_may(places):
    blocks = OpenBlocks(0)
    assert blocks.open(places[0]) is not None
    assert not open_files(places[0].root_folder)


def test_a_block_that_was_removed_is_opened_anew(places):
    blocks = OpenBlocks(4)
    data = Path(places[0].path).read_bytes()
    first = blocks.open(places[0])
    os.unlink(places[0].path)
    assert blocks.open(places[0]) is None
    Path(places[0].path).write_bytes(data)
    again = blocks.open(places[0])
    assert again is not None
    assert again is not first


def test_what_is_open_is_not_removed(places):
    blocks = OpenBlocks(4)
    blocks.open(places[0])
    assert BlockFile.open(places[0], writable=True, alone=True) is None
    blocks.release()
    unused = BlockFile.open(places[0], writable=True, alone=True)
    assert unused is not None
    unused.close()


def test_what_another_cache_adds_is_found(config):
    """Of two processes, in effect: each cache opens files of its own."""
    origin = Origin(8 << 20)
    config = CacheConfig(config.directory, min_free_bytes=0)
    one, other = BlockCache(config), BlockCache(config)
    origin.read(one, 0, MAPPED)
    assert bytes(other.read(origin.identity, 0, MAPPED)) == origin.data[:MAPPED]
    assert other.read(origin.identity, 0, 2 * MAPPED) is None
    origin.read(one, 0, 2 * MAPPED)
    assert bytes(other.read(origin.identity, 0, 2 * MAPPED)) == origin.data[: 2 * MAPPED]


def test_every_hit_of_an_open_block_is_verified(config):
    origin = Origin(4 << 20)
    cache = BlockCache(CacheConfig(config.directory, min_free_bytes=0))
    origin.read(cache)
    for _ in range(2):
        assert cache.read(origin.identity, 0, MAPPED) is not None
    (path,) = block_files(cache.config)
    with open(path, "r+b") as file:
        file.seek(1_000_000)
        byte = file.read(1)[0]
        file.seek(1_000_000)
        file.write(bytes([byte ^ 1]))
    assert cache.read(origin.identity, 0, MAPPED) is None
    assert cache.counters().damaged == 1
    assert bytes(origin.read(cache)) == origin.data


def test_a_forked_child_keeps_nothing_open(config):
    origin = Origin(4 << 20)
    cache = BlockCache(CacheConfig(config.directory, min_free_bytes=0))
    origin.read(cache)
    assert cache.read(origin.identity, 0, MAPPED) is not None
    assert open_files(config.directory)
    assert not run_isolated(open_files, config.directory)


def test_least_recently_used_keeps_nothing_open(config):
    origin = Origin(4 << 20)
    cache = BlockCache(CacheConfig(config.directory, policy="lru", min_free_bytes=0))
    origin.read(cache)
    assert cache.read(origin.identity, 0, MAPPED) is not None
    assert not [path for path in open_files(config.directory) if not path.endswith((".json", "/usage"))]
