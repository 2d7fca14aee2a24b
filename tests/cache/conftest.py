"""A cache in a temporary folder, and an object."""

import pytest
from origins import BLOCK, PATIENCE, Origin

from energon_stream.cache import BlockCache, CacheConfig


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """A process that has to wait for a core must not be taken for one that hangs."""
    monkeypatch.setattr("energon_stream.cache.locks.PATIENCE", PATIENCE)


@pytest.fixture
def config(tmp_path):
    directory = str(tmp_path / "cache")
    return CacheConfig(directory, "64MB", min_free_bytes=0, block_bytes=BLOCK, wait_seconds=PATIENCE)


@pytest.fixture
def cache(config):
    return BlockCache(config)


@pytest.fixture
def origin():
    return Origin(3 * BLOCK + 12345)
