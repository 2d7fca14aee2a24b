"""Damaged files of a cache are misses or made anew: never an exception, never a wrong byte."""

import os

import msgpack
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from origins import BLOCK, Origin, block_files
from repetitions import examples

from energon_stream.cache import BlockCache, CacheConfig
from energon_stream.cache.cached_store import Versions
from energon_stream.cache.kept_files import KeptFiles
from energon_stream.cache.ledger import CacheLimits, Ledger
from energon_stream.cache.maintenance import list_datasets, verify_cache
from energon_stream.cache.object_identity import root_name
from energon_stream.cache.records import LARGEST_BLOCK, RecordTable
from energon_stream.storage import ListEntry, ObjectMeta

KEEP = {"suppress_health_check": [HealthCheck.function_scoped_fixture], "deadline": None}


@st.composite
def damages(draw):
    """A change of a file's bytes: flipped bits, other bytes, cut off, longer, moved, empty, random."""
    kind = draw(st.sampled_from(["flip", "bytes", "cut", "longer", "swap", "zero", "random"]))
    place, other = draw(st.floats(0, 1)), draw(st.floats(0, 1))
    more = draw(st.binary(min_size=1, max_size=80))

    def apply(raw):
        at, to = int(place * max(0, len(raw) - 1)), int(other * max(0, len(raw) - 1))
        if kind == "random" or not raw:
            return more
        if kind == "flip":
            return raw[:at] + bytes([raw[at] ^ (1 << more[0] % 8)]) + raw[at + 1 :]
        if kind == "bytes":
            return raw[:at] + more + raw[at + len(more) :]
        if kind == "cut":
            return raw[:at]
        if kind == "longer":
            return raw + more
        if kind == "swap":
            return raw[:at] + raw[to : to + 64] + raw[at + 64 :]
        return raw[:at] + bytes(min(64, len(raw) - at)) + raw[at + 64 :]

    return apply


def rewrite(path, change):
    with open(path, "r+b") as file:
        changed = change(file.read())
        file.seek(0)
        file.truncate()
        file.write(changed)


@given(st.binary(max_size=400), st.integers(0, 2**64 - 1))
def test_any_bytes_decode_to_records_that_make_sense(raw, key):
    table = RecordTable.decode(key, raw)
    for start, stop in zip(table.starts.tolist(), table.stops.tolist(), strict=True):
        assert 0 <= start < stop <= LARGEST_BLOCK
    assert table.gaps(0, BLOCK)[:1] == [(0, BLOCK)] or len(table.starts)


@examples(60, **KEEP)
@given(data=st.data())
def test_damaged_files_cost_a_download_and_no_more(tmp_path_factory, data):
    """All files of a cache: the ledger, counts, descriptions, blocks."""
    directory = str(tmp_path_factory.mktemp("damage") / "cache")
    config = CacheConfig(directory, "64MB", min_free_bytes=0, block_bytes=BLOCK)
    origin = Origin(BLOCK + 12345)
    origin.read(BlockCache(config))
    paths = sorted(os.path.join(folder, name) for folder, _, names in os.walk(directory) for name in names)
    assert len(paths) == 6
    for path, change in data.draw(st.lists(st.tuples(st.sampled_from(paths), damages()), max_size=4)):
        rewrite(path, change)
    cache = BlockCache(config)
    origin.read(cache)
    Origin(BLOCK, path="other.tar").read(cache)
    assert [found.bytes >= 0 for found in list_datasets(cache.directory)]
    cache.close()
    verify_cache(cache.directory)
    asked = origin.asked_bytes
    again = BlockCache(config)
    origin.read(again)
    origin.read(again)
    assert origin.asked_bytes - asked <= 2 * len(origin.data)
    assert len(block_files(config)) >= 2


@examples(100, **KEEP)
@given(change=damages())
def test_a_damaged_ledger_is_measured_anew(tmp_path_factory, change):
    path = str(tmp_path_factory.mktemp("ledger") / "usage")
    ledger = Ledger(path, CacheLimits())
    ledger.recount(dict)
    right = ledger.usage()
    rewrite(path, change)
    assert Ledger(path, CacheLimits()).usage() in (None, right)
    assert ledger.recount(dict)
    assert ledger.usage() == right


class Listed:
    """A store with one listing."""

    url = "s3://bucket/data"

    def __init__(self):
        self.listings = 0

    def list(self):
        self.listings += 1
        return iter([ListEntry(f"shard-{i}.tar", ObjectMeta(1000 + i, f'"{i}"')) for i in range(5)])


def versions_path(directory):
    return KeptFiles(str(directory), "versions").path(root_name(Listed.url))


@examples(100, **KEEP)
@given(change=damages())
def test_a_damaged_list_of_versions_is_listed_anew(tmp_path_factory, change):
    directory, store = str(tmp_path_factory.mktemp("versions")), Listed()
    right = Versions(directory, store, 0).of("shard-3.tar")
    rewrite(versions_path(directory), change)
    assert Versions(directory, store, 0).of("shard-3.tar") == right == ObjectMeta(1003, '"3"')
    assert store.listings <= 2
    assert Versions(directory, store, 0).of("shard-3.tar") == right
    assert store.listings <= 2


def test_a_list_of_versions_of_an_earlier_format_is_listed_anew(tmp_path):
    store = Listed()
    os.makedirs(tmp_path / "v1" / "versions")
    versions = Versions(str(tmp_path), store, 0)
    old = msgpack.packb({"listed": 2**40, "objects": {"shard-3.tar": ["x", 1]}})
    with open(versions_path(tmp_path), "wb") as file:
        file.write(old)
    assert versions.of("shard-3.tar") == ObjectMeta(1003, '"3"')
