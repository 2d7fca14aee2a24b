"""What users say about the cache, sensible or not."""

import pickle

import pytest

from energon_stream import CacheConfig
from energon_stream.cache import BlockCache, ObjectIdentity
from energon_stream.errors import ConfigError
from energon_stream.quantities import parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (0, 0),
        ("12345", 12345),
        ("12 B", 12),
        ("200GB", 200 * 10**9),
        ("1.5gib", 3 << 29),
        ("10k", 10_000),
        (" 2 TiB ", 2 << 40),
    ],
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1", -1, "1e", "1 000", "12 XB", 1.5, True, None])
def test_what_is_no_size(text):
    with pytest.raises(ConfigError, match="max_bytes is"):
        parse_size(text, "max_bytes")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"directory": ""}, "directory"),
        ({"directory": None}, "directory"),
        ({"policy": "fifo"}, "policy 'fifo'"),
        ({"max_bytes": "a lot"}, "max_bytes"),
        ({"max_bytes": 10}, "max_bytes is 10"),
        ({"min_free_bytes": -1}, "min_free_bytes"),
        ({"block_bytes": 1000}, "block_bytes is 1000"),
        ({"block_bytes": 0}, "block_bytes is 0"),
        ({"block_bytes": "2GiB"}, "block_bytes"),
        ({"wait_seconds": -1.0}, "wait_seconds"),
        ({"wait_seconds": float("nan")}, "wait_seconds"),
    ],
)
def test_nonsense_is_refused(tmp_path, options, message):
    with pytest.raises(ConfigError, match=message):
        CacheConfig(**{"directory": str(tmp_path), **options})


def test_a_config_is_a_value(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = CacheConfig("cache", "1GB", block_bytes="1MiB")
    assert config.directory == str(tmp_path / "cache")  # wherever a worker may be
    assert config == CacheConfig(str(tmp_path / "cache"), 10**9, block_bytes=1 << 20)
    assert pickle.loads(pickle.dumps(config)) == config


def test_environment(tmp_path):
    directory, size = {"ENERGON_STREAM_CACHE_DIR": str(tmp_path)}, {"ENERGON_STREAM_CACHE_SIZE": "200GB"}
    assert CacheConfig.from_environment({}) is None
    assert CacheConfig.from_environment(directory) == CacheConfig(str(tmp_path))
    assert CacheConfig.from_environment(directory | size) == CacheConfig(str(tmp_path), 200 * 10**9)
    with pytest.raises(ConfigError, match="CACHE_DIR is not"):
        CacheConfig.from_environment(size)
    with pytest.raises(ConfigError, match="max_bytes is 'much'"):
        CacheConfig.from_environment(directory | {"ENERGON_STREAM_CACHE_SIZE": "much"})


def test_a_directory_that_cannot_be_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be made"):
        BlockCache(CacheConfig(str(tmp_path / "file" / "cache")))


def test_credentials_are_not_part_of_an_identity():
    assert ObjectIdentity("s3://key:secret@bucket/x/", "a", '"1"', 1).root == "s3://bucket/x"
