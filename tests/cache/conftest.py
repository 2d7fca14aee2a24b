"""A cache in a temporary folder, and an object."""

import pytest
from origins import BLOCK, Origin

from energon_stream.cache import BlockCache, CacheConfig


@pytest.fixture
def config(tmp_path):
    return CacheConfig(str(tmp_path / "cache"), "64MB", min_free_bytes=0, block_bytes=BLOCK)


@pytest.fixture
def cache(config):
    return BlockCache(config)


@pytest.fixture
def origin():
    return Origin(3 * BLOCK + 12345)
