"""Systems that lack what Linux has: reads are answered, and what cannot work says so."""

import fcntl
import os
import subprocess
import sys

import pytest
from origins import BLOCK
from told import told

from energon_stream.cache import BlockCache, CacheLayer
from energon_stream.cache.cached_store import CachedStore
from energon_stream.errors import ConfigError
from energon_stream.storage import ByteRange, StoreSpec


@pytest.fixture
def without_locks(monkeypatch):
    monkeypatch.delattr(fcntl, "F_OFD_SETLK")


@pytest.mark.usefixtures("without_locks")
def test_without_locks_everything_is_read_from_the_store(s3_server, tmp_bucket, config, caplog):
    s3_server.put(f"{tmp_bucket}/key", bytes(1000))
    for _ in range(2):
        store = StoreSpec(tmp_bucket, s3_server.storage_options, through=CacheLayer(config)).open()
        for _ in range(2):
            assert store.get_range("key", ByteRange(0, 10)).data == bytes(10)
            assert not isinstance(store, CachedStore)
    assert s3_server.counters().requests["GET"] == 4
    (warning,) = told(caplog)
    assert warning.startswith("the disk cache needs Linux; everything is read from the store")
    assert not os.path.exists(config.directory)


@pytest.mark.usefixtures("without_locks")
def test_without_locks_a_cache_is_refused(config):
    with pytest.raises(ConfigError, match=r"only Linux has.*unset ENERGON_STREAM_CACHE_DIR"):
        BlockCache(config)


def test_without_nowait_nothing_is_at_hand(cache, origin, monkeypatch):
    origin.read(cache)
    assert cache.read(origin.identity, 0, BLOCK, at_hand=True) is not None
    monkeypatch.delattr(os, "RWF_NOWAIT")
    assert cache.read(origin.identity, 0, BLOCK, at_hand=True) is None
    assert cache.read(origin.identity, 0, BLOCK) == origin.data[:BLOCK]


def test_the_cache_imports_neither_torch_nor_samples():
    """In a fresh interpreter."""
    program = (
        "import sys; sys.modules.update(dict.fromkeys(['torch', 'energon_stream.samples']));"
        "import energon_stream.cache.maintenance, energon_stream.cli.cache"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
