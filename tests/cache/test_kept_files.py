"""Files that are kept on a node: whole or not at all, and made by one process at a time."""

import os
import stat

import pytest
import xxhash

from energon_stream.cache.kept_files import KeptFiles

CONTENT = b"what was kept"


@pytest.fixture
def views(tmp_path):
    return KeptFiles(str(tmp_path / "cache"), "views")


def test_what_was_written_is_read_whole_and_in_part(views):
    assert views.read("folder/x.bits") is None
    views.write("folder/x.bits", CONTENT)
    assert views.read("folder/x.bits") == CONTENT
    assert views.read_part("folder/x.bits", 5, 3) == (b"was", len(CONTENT))
    assert os.listdir(os.path.dirname(views.path("folder/x.bits"))) == ["x.bits"]
    assert stat.S_IMODE(os.stat(views.path("folder/x.bits")).st_mode) == 0o600
    views.remove("folder/x.bits")
    assert views.read("folder/x.bits") is None


def test_damage_is_noticed_and_told_once(views, caplog):
    views.write("x", CONTENT)
    with open(views.path("x"), "rb") as file:
        good = file.read()
    damaged = [good[:length] for length in range(len(good))] + [good + b"x"]
    damaged += [good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :] for place in range(len(good))]
    for content in damaged:
        with open(views.path("x"), "wb") as file:
            file.write(content)
        assert views.read("x") is None
    assert caplog.text.count("is damaged") == 1
    views.write("x", CONTENT)
    os.rename(views.path("x"), views.path("y"))  # a file is no other one's
    assert views.read("y") is None


@pytest.mark.parametrize(
    "old",
    [
        b"ES.idx.1" + (1).to_bytes(8, "little") + xxhash.xxh3_64_digest(CONTENT)[::-1] + CONTENT,
        b"ES.av.1\n" + xxhash.xxh3_64_digest(b"x" + CONTENT) + CONTENT,
        b"ES.view1" + xxhash.xxh3_64_intdigest(CONTENT).to_bytes(8, "little") + CONTENT,
        xxhash.xxh3_128_digest(CONTENT) + CONTENT,
    ],
    ids=["index", "opening", "view", "versions"],
)
def test_files_as_6a924e2_wrote_them_are_not_misread(views, old):
    views.write("x", CONTENT)
    with open(views.path("x"), "wb") as file:
        file.write(old)
    assert views.read("x") is None


def test_one_makes_a_file_at_a_time(views):
    with views.making("a/x") as is_mine:
        assert is_mine
        with views.making("a/x") as others, views.making("a/y") as another_file:
            assert (others, another_file) == (False, True)
    with views.making("a/x") as is_mine:
        assert is_mine
        with open(f"{views.path('a/x')}.new", "wb") as file:
            file.write(b"what a killed process left")
        views.write("a/x", CONTENT, alone=True)
    assert sorted(os.listdir(os.path.dirname(views.path("a/x")))) == ["lock", "x"]
