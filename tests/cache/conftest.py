"""A cache in a temporary folder, and an object."""

import fcntl
import os

import pytest
from origins import BLOCK, PATIENCE, Origin

from energon_stream.cache import BlockCache, CacheConfig


@pytest.fixture(autouse=True)
def patience(monkeypatch, request):
    """Seconds, the test's or so many: a process that has to wait for a core must not be taken for one that
    hangs.
    """
    monkeypatch.setattr("energon_stream.cache.locks.PATIENCE", getattr(request, "param", PATIENCE))


@pytest.fixture
def system(monkeypatch):
    """Replaces calls of the system by name: the kernel answers what the test says."""

    def answers(**calls):
        for name, answer in calls.items():
            monkeypatch.setattr(fcntl if name == "fcntl" else os, name, answer)

    return answers


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
