"""Paths that name tars."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energon_stream.errors import ConfigError
from energon_stream.index.dataset import dataset_kind
from energon_stream.index.shard_names import collapse, parse_tar_paths


@pytest.mark.parametrize(
    ("path", "root", "paths"),
    [
        ("s3://b/x.tar", "s3://b", ["x.tar"]),
        ("s3://b/d/x-{08..11}.tar", "s3://b/d", ["x-08.tar", "x-09.tar", "x-10.tar", "x-11.tar"]),
        ("s3://b/d/{b,a}/x{1,2}.tar", "s3://b/d", ["b/x1.tar", "b/x2.tar", "a/x1.tar", "a/x2.tar"]),
        ("s3://b/d/{x.tar,sub/y.tar}", "s3://b/d", ["x.tar", "sub/y.tar"]),
        ("/d/x.tar", "/d", ["x.tar"]),
        ("/x{0..1}.tar", "/", ["x0.tar", "x1.tar"]),
        ("file:///d/x.tar", "/d", ["x.tar"]),
        ("d/x.tar", os.path.abspath("d"), ["x.tar"]),
        ("{0..1}.tar", os.getcwd(), ["0.tar", "1.tar"]),
        ("~/x.tar", os.path.expanduser("~"), ["x.tar"]),
        ("simplecache::s3://b/x.tar", "simplecache::s3://b", ["x.tar"]),
    ],
)
def test_root_and_tars(path, root, paths):
    assert dataset_kind(path) == "tars"
    assert parse_tar_paths(path) == (root, paths)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("s3://bucket-{a,b}/x.tar", "common bucket"),
        ("s3://b/x{0..3.tar", "are not balanced"),
        ("s3://b/{a,a}.tar", "'a.tar' is named twice"),
        ("s3://b/{a,b.tar}", "'a' is not a tar"),
        ("s3://b/x-{0..3}.tar.gz", r"'x-0\.tar\.gz' is compressed"),
        ("s3://b/x.tgz", "is compressed"),
    ],
)
def test_paths_that_cannot_be(path, message):
    assert dataset_kind(path) == "tars"
    with pytest.raises(ConfigError, match=message):
        parse_tar_paths(path)


@pytest.mark.parametrize(
    "path", ["s3://b/folder", "s3://b/folder.tars", "s3://b/x.tar/", "d/{a,b}", "s3://b/tar"]
)
def test_other_paths_are_folders(path):
    assert dataset_kind(path) == "webdataset"


@given(st.sets(st.integers(0, 300), min_size=1).map(sorted))
def test_what_collapses_to_one_pattern_expands_to_the_same_tars(numbers):
    names = [f"x-{number:03d}.tar" for number in numbers]
    pattern = ",".join(name.removesuffix(".tar") for name in collapse(names))
    path = f"s3://b/{{{pattern}}}.tar" if len(numbers) > 1 and "," in pattern else f"s3://b/{pattern}.tar"
    assert parse_tar_paths(path)[1] == names
