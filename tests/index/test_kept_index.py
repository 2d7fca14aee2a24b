"""Indices that are kept on a node: found by version, verified, and where users want them."""

import os
import random

import pytest

from energon_stream.cache import CacheConfig, CacheLayer
from energon_stream.cache.kept_files import KeptFiles
from energon_stream.errors import IndexMismatchError, NotPreparedError
from energon_stream.index.index_files import encode_offsets
from energon_stream.index.kept_index import PlainTars, index_directory
from energon_stream.storage import ListEntry, ObjectMeta, StoreSpec

OFFSETS = [0, 1536, 4096, 4608, 9216]
MARK = 0xFEED
TAR = ListEntry("d/x.tar", ObjectMeta(10_240, '"1"'))


@pytest.fixture
def kept(tmp_path):
    found = PlainTars(KeptFiles(str(tmp_path), "indexes"), "root", (TAR,))
    found.kept.write(found.name(TAR), encode_offsets([*OFFSETS, MARK]))
    return found


def path_of(tars, tar):
    return tars.kept.path(tars.name(tar))


def test_what_was_written_is_read_whole_and_in_part(kept):
    assert kept.count(TAR) == 4
    assert kept.mark(TAR, 4) == MARK
    for first in range(5):
        for last in range(first, 5):
            assert kept.read_offsets(TAR, 4, first, last).tolist() == OFFSETS[first : last + 1]
    assert [name for name in os.listdir(kept.folder) if not name.endswith(".idx")] == []


@pytest.mark.parametrize(
    "other",
    [
        ListEntry("d/y.tar", TAR.meta),
        ListEntry("d/x.tar", ObjectMeta(10_240, '"2"')),
        ListEntry("d/x.tar", ObjectMeta(10_752, '"1"')),
        ListEntry("d/x.tar", ObjectMeta(10_240, None)),
    ],
)
def test_another_version_has_another_index(kept, other):
    assert kept.count(other) is None
    os.replace(path_of(kept, TAR), path_of(kept, other))  # and an index is no one else's
    assert kept.count(other) is None


def test_no_damage_goes_unnoticed(kept):
    with open(path_of(kept, TAR), "rb") as file:
        good = file.read()
    dice = random.Random(0)
    damaged = [good[:length] for length in range(len(good))] + [good + b"\0" * 8]
    flips = ((place, good[place] ^ (1 << dice.randrange(8))) for place in range(len(good)))
    damaged += [good[:place] + bytes([byte]) + good[place + 1 :] for place, byte in flips]
    for content in damaged:
        with open(path_of(kept, TAR), "wb") as file:
            file.write(content)
        assert kept.count(TAR) is None


def test_an_index_of_6a924e2_is_not_misread(kept):
    """Whose header was a mark, the number of samples and a hash."""
    with open(path_of(kept, TAR), "wb") as file:
        file.write(b"ES.idx.1" + encode_offsets([4, 99, *OFFSETS]))
    assert kept.count(TAR) is None


def test_an_index_that_vanishes_or_changes_while_it_is_in_use(kept):
    with pytest.raises(IndexMismatchError, match="3 samples"):
        kept.read_offsets(TAR, 3, 0, 1)
    os.unlink(path_of(kept, TAR))
    with pytest.raises(NotPreparedError, match=r"removed while it was in use.*d/x\.tar"):
        kept.read_offsets(TAR, 4, 0, 1)


@pytest.mark.parametrize(
    ("cache", "environment", "expected"),
    [
        ("/cache", {"ENERGON_STREAM_CACHE_DIR": "/env", "XDG_CACHE_HOME": "/xdg"}, "/cache"),
        (None, {"ENERGON_STREAM_CACHE_DIR": "/env", "XDG_CACHE_HOME": "/xdg"}, "/env"),
        (None, {"XDG_CACHE_HOME": "/xdg"}, "/xdg/energon_stream"),
        (None, {}, "/home/me/.cache/energon_stream"),
    ],
)
def test_where_they_are_kept(monkeypatch, cache, environment, expected):
    for name in ("ENERGON_STREAM_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/home/me", **environment}.items():
        monkeypatch.setenv(name, value)
    through = None if cache is None else CacheLayer(CacheConfig(cache))
    assert index_directory(StoreSpec("s3://b/d", through=through)) == expected
