"""The parts of the page that need no server: ranges, kinds, filters, texts."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energon_stream.errors import ConfigError, RangeError
from energon_stream.storage import ByteRange
from energon_stream.tools.browse.app import requested_range
from energon_stream.tools.browse.guard import is_own_host
from energon_stream.tools.browse.shown_parts import (
    DOWNLOAD,
    PLAYED,
    Kind,
    Place,
    ShownPart,
    kind_of,
    media_type,
    pieces,
    texts_span,
)
from energon_stream.tools.browse.texts import MOST_TEXT, Filter, shown_text
from energon_stream.tools.browse.training import Run


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, None),
        ("bytes=0-", (0, 100)),
        ("bytes=0-0", (0, 1)),
        ("bytes=90-200", (90, 100)),
        ("bytes=-200", (0, 100)),
        ("bytes=-1", (99, 100)),
        ("bytes=-", None),
        ("bytes=5-2", None),
        ("bytes=0-1,5-6", None),
        ("pages=0-1", None),
        ("bytes=0x1-2", None),
        ("bytes=" + "9" * 30 + "-", None),
    ],
)
def test_range_headers(header, expected):
    found = requested_range(header, 100)
    assert (None if found is None else (found.start, found.stop)) == expected


@pytest.mark.parametrize("header", ["bytes=100-", "bytes=-0", "bytes=100-200"])
def test_ranges_outside_are_refused(header):
    with pytest.raises(RangeError):
        requested_range(header, 100)


@given(st.text(max_size=30), st.integers(0, 1000))
def test_no_header_reaches_outside(text, size):
    for header in (text, f"bytes={text}"):
        try:
            found = requested_range(header, size)
        except RangeError:
            continue
        assert found is None or 0 <= found.start < found.stop <= size


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(1, 50), st.integers(1, 100))
def test_pieces_are_the_range(start, length, first, most):
    found = list(pieces(ByteRange(start, start + length), first, most))
    assert sum(map(len, found)) == length
    assert [piece.start for piece in found[1:]] == [piece.stop for piece in found[:-1]]
    assert all(0 < len(piece) <= max(first, most) for piece in found)


def test_only_players_get_a_media_type():
    assert all(kind.startswith(("video/", "audio/")) for kind in PLAYED.values())
    for part in ("svg", "html", "htm", "js", "xml", "jpg", "png", "pdf", "", "mp4.html", "x" * 1000):
        assert media_type(part) == DOWNLOAD
    assert kind_of("svg") is kind_of("x.HTML") is Kind.TEXT


@pytest.mark.parametrize(
    ("field", "operator", "value", "expected"),
    [
        ("txt", "contains", "BROWN", True),
        ("txt", "equals", "A brown dog", True),
        ("txt", "equals", "brown", False),
        ("json.user.name", "equals", "Ann", True),
        ("json.tags.1", "equals", "b", True),
        ("json.tags.2", "contains", "", False),
        ("json.tags.-1", "equals", "b", False),
        ("json.n", "equals", "3", True),
        ("json.none", "equals", "null", True),
        ("json.user", "contains", '"ann"', True),
        ("json.missing", "contains", "", False),
        ("json", "contains", '"tags"', True),
        ("left.json.x", "equals", "1", True),
        ("key", "equals", "0001", True),
        ("shard", "contains", "data-", True),
        ("part", "equals", "jpg", True),
        ("part", "equals", "png", False),
        ("", "contains", "dog", True),
        ("", "contains", "cat", False),
        ("bad.x", "contains", "", False),
    ],
)
def test_filters(field, operator, value, expected):
    texts = {
        "txt": "A brown dog",
        "json": json.dumps({"user": {"name": "Ann"}, "tags": ["a", "b"], "n": 3, "none": None}),
        "left.json": '{"x": 1}',
        "bad": "[" * 100_000,
    }
    assert Filter(field, operator, value).matches("0001", "data-0.tar", texts, ("jpg",)) is expected


def test_unknown_operators_are_refused():
    with pytest.raises(ConfigError, match="operator"):
        Filter("txt", "runs", "x")


@pytest.mark.parametrize(
    "data", [b"[" * 100_000, b"[" * 700 + b"]" * 700, b"1" * 9999, b"\xff\xfe", b'{"a":']
)
def test_odd_json_is_shown_as_text(data):
    shown = shown_text(data, Kind.JSON, 100)
    assert shown.text
    assert len(shown.text) <= 4 * 100


def test_texts_are_cut_and_have_no_control_characters():
    shown = shown_text(b"a" * (MOST_TEXT + 10), Kind.TEXT, 50)
    assert (shown.text, shown.is_cut) == ("a" * 50, True)
    assert shown_text("\x00\x1b\u202e\n".encode(), Kind.TEXT, 50).text == "\\x00\\x1b\\u202e\n"


def test_the_span_of_texts_leaves_out_what_is_far():
    def part(name, start, size):
        return ShownPart(name, size, Place(None, start))

    assert texts_span([part("jpg", 512, 100)], 1000) is None
    assert texts_span([part("txt", 512, 5000)], 1000) is None
    near = [part("txt", 512, 100), part("jpg", 1024, 200), part("json", 2048, 50)]
    assert texts_span(near, 1000) == ByteRange(512, 2098)
    far = [part("txt", 512, 100), part("mp4", 1024, 90_000), part("json", 92_160, 50)]
    assert texts_span(far, 1000) == ByteRange(512, 612)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        (b"127.0.0.1:80", True),
        (b"localhost:9000", True),
        (b"LOCALHOST", True),
        (b"evil.example", False),
        (b"127.0.0.1.evil.example", False),
        (b"127.0.0.1@evil.example", False),
        (b"evil.example@127.0.0.1", False),
        (b"evil.example/127.0.0.1", False),
        (b"127.0.0.1/x", False),
        (b"127.0.0.1#x", False),
        (b"", False),
        (b"[", False),
        (b"\xff", False),
    ],
)
def test_hosts(host, expected):
    assert is_own_host([(b"host", host)]) is expected


def test_one_host_is_needed():
    assert not is_own_host([])
    assert not is_own_host([(b"host", b"localhost"), (b"host", b"localhost")])


@pytest.mark.parametrize("text", ["-1", "x", "1.5", "٣", "9" * 20, "1e9"])
def test_numbers_of_forms_are_checked(text):
    with pytest.raises(ConfigError, match="step is"):
        Run().changed({"step": text})


def test_a_form_changes_the_order_and_0_is_none():
    run = Run(options={"shuffle_buffer_size": 100, "packing": "x"})
    changed = run.changed(
        {"shuffle_buffer_size": "0", "max_samples_per_sequence": "7", "parallel_shard_iters": ""}
    )
    assert changed.options == {"shuffle_buffer_size": None, "max_samples_per_sequence": 7, "packing": "x"}
    assert changed.numbers()["max_samples_per_sequence"] == 7
    assert run.numbers()["shuffle_buffer_size"] == 100
    assert run.numbers()["parallel_shard_iters"] is None
