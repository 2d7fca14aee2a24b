"""Paths and URLs."""

import pytest

from energon_stream.errors import ConfigError
from energon_stream.printable import strip_credentials
from energon_stream.urls import is_local, is_url, join_url, parent_url


@pytest.mark.parametrize(
    ("path", "url", "local"),
    [
        ("/data/x", False, True),
        ("data/s3:x", False, True),
        ("file:///data/x", True, True),
        ("s3://bucket/x", True, False),
        ("memory://x", True, False),
        ("msc://profile/x", True, False),
        ("simplecache::s3://bucket/x", True, False),
        ("zip://in.tar::file:///data/a.zip", True, False),
    ],
)
def test_kinds_of_paths(path, url, local):
    assert (is_url(path), is_local(path)) == (url, local)


@pytest.mark.parametrize(
    ("base", "relative", "joined"),
    [
        ("/data/set", "a/./b.tar", "/data/set/a/b.tar"),
        ("/data/set", "../other", "/data/other"),
        ("s3://bucket", "a.tar", "s3://bucket/a.tar"),
        ("s3://bucket/set/", "../other//x", "s3://bucket/other/x"),
        ("s3://bucket/a?b", "c", "s3://bucket/a?b/c"),
        ("s3://bucket/set", "/local/x", "/local/x"),
        ("s3://bucket/set", "gs://else/x", "gs://else/x"),
        ("https://host/set?sig=1", "a.tar", "https://host/set/a.tar?sig=1"),
        ("simplecache::s3://bucket/set", "a", "simplecache::s3://bucket/set/a"),
        ("zip://in::s3://bucket/a.zip", "x", "zip://in/x::s3://bucket/a.zip"),
    ],
)
def test_join(base, relative, joined):
    assert join_url(base, relative) == joined


def test_parent_and_the_limit_of_a_bucket():
    assert parent_url("s3://bucket/a/b.tar") == "s3://bucket/a"
    assert parent_url("/a/b.tar") == "/a"
    with pytest.raises(ConfigError, match="above the bucket"):
        join_url("s3://bucket/a", "../../x")


@pytest.mark.parametrize(
    "secret",
    [
        "https://user:SECRET@host/x",
        "GET https://host/x?X-Amz-Credential=a&X-Amz-Signature=SECRET failed",
        "https://host/x?sv=2020&sig=SECRET",
        "https://host/x?access_token=SECRET",
        "https://host/x?v=1&anything=SECRET",
        "https://host/x#access_token=SECRET",
        "https://user:SEC@RET@host/x",
        "https://key:SEC/RET@host/x",
        "cannot open https://host/x and /x?api_key=SECRET",
    ],
)
def test_credentials_never_show(secret):
    shown = strip_credentials(secret)
    assert "SECRET" not in shown
    assert "https://host/x" in shown
