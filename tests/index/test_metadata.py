"""Metadata files: golden bytes, round trips, and what is wrong is named."""

import itertools
import json
import re

import braceexpand
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from energon_stream.errors import (
    ConfigError,
    DatasetError,
    EmptyDatasetError,
    IndexMismatchError,
    LimitError,
    MetadataError,
    NotPreparedError,
    ObjectNotFoundError,
)
from energon_stream.index.dataset import open_webdataset
from energon_stream.index.index_files import (
    decode_offsets,
    encode_offsets,
    index_path,
    read_offsets,
)
from energon_stream.index.info_files import encode_info, encode_split, parse_info, parse_split
from energon_stream.index.shard_names import collapse, expand, split_by_patterns, split_by_ratio
from energon_stream.index.yaml_io import load_yaml
from energon_stream.limits import Limits
from energon_stream.storage import StoreSpec

INFO = b"""{
  "energon_version": "7.4.1",
  "shard_counts": {
    "shards/shard_000.tar": 3,
    "shards/shard_001.tar": 3
  }
}"""
SPLIT = b"""split_parts:
  train:
  - shards/shard_{000..007}.tar
  val:
  - shards/shard_008.tar
  test: []
exclude: []
"""


def test_the_writers_give_megatron_energons_bytes():
    counts = {"shards/shard_000.tar": 3, "shards/shard_001.tar": 3}
    assert encode_info(counts) == INFO
    assert parse_info(INFO, "x.json") == parse_info(encode_info(counts, as_yaml=True), "x.yaml") == counts
    shards = [f"shards/shard_{i:03d}.tar" for i in range(9)]
    assert encode_split({"train": shards[:8], "val": shards[8:], "test": []}) == SPLIT
    assert parse_split(SPLIT, "x.yaml").split_parts == {
        "train": tuple(shards[:8]),
        "val": (shards[8],),
        "test": (),
    }
    assert encode_offsets([0, 2048, 4096, 6144]).hex() == "".join(
        f"00{i:02x}000000000000" for i in (0, 8, 16, 24)
    )


@pytest.mark.parametrize(
    ("names", "patterns"),
    [
        (["a-1-1", "a-2-1", "a-3-1", "b1"], ["a-{1..3}-1", "b1"]),
        (["c01_k01", "c02_k02"], ["c01_k01", "c02_k02"]),  # two numbers change
        (["p_0/s_0", "p_0/s_1", "p_1/s_0", "p_1/s_1"], ["p_0/s_{0..1}", "p_1/s_{0..1}"]),
        (["n9", "n10", "n11"], ["n9", "n{10..11}"]),  # another width
        (["m098", "m099", "m100"], ["m{098..100}"]),
        (["x3", "x2", "x1", "x5", "x7"], ["x3", "x2", "x1", "x5", "x7"]),
        ([], []),
    ],
)
def test_shard_names_collapse_as_megatron_energons(names, patterns):
    assert collapse(names) == patterns


@given(
    st.lists(st.from_regex(r"[ab]?[0-9]{1,3}[-/][0-9]{1,2}\.tar", fullmatch=True))
    | st.integers(0, 1200).flatmap(lambda first: st.just([f"s_{i}.tar" for i in range(first, first + 15)]))
)
def test_collapsed_names_expand_to_themselves(names):
    assert expand(collapse(names), "") == names


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0x10", "0x10"), ("1e3", 1000.0), ("012", 12), ("on", "on"), ("yes", True), ("2020-01-01", "2020-01-01"),
        ("", None), ("~", None), ("'1'", "1"), ("!!python/name:os.system x", "x"), ("-.5", -0.5), (".inf", float("inf")),
        ("1_000", "1_000"), ("inf", "inf"),
    ],
)  # fmt: skip
def test_scalars_follow_yaml_1_2(text, value):
    assert load_yaml(f"key: {text}".encode(), "f") == {"key": value}
    assert load_yaml(b"1: {on: 2}", "f") == {"1": {"on": 2}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("# nothing", "empty"),
        ("a: [", "not valid YAML"),
        ("split_parts: {}\nsplit_parts: {}", "'split_parts' appears twice, again in line 2"),
        ("a: &x [1]\nb: *x", "line 2 .*alias"),
        ("a: 1\n---\nb: 2", "more than one document"),
        ("split_parts: {[a]: 1}", "is not a string"),
        ("[1]", "mapping"),
        ("split_parts: {}\nexcludes: []", "Did you mean 'exclude'"),
        ("split_parts: [a]", "'split_parts' must map"),
        ("split_parts: {train: [1]}", "'train' must be a list of strings"),
        ("split_parts: {train: ['a{b']}", "braces"),
    ],
)
def test_a_wrong_split_file_is_named(text, message):
    with pytest.raises(MetadataError, match=message) as caught:
        parse_split(text.encode(), "s3://b/d/.nv-meta/split.yaml")
    assert "s3://b/d/.nv-meta/split.yaml" in str(caught.value)


@pytest.mark.parametrize("ratio", [(8, 1, 1), (7, 2, 1), (6, 3, 1), (1, 0, 0), (0, 1, 0), (0.5, 0.25, 0.25)])
def test_a_ratio_loses_no_shard(ratio):
    for count in range(1, 40):
        shards = [str(i) for i in range(count)]
        parts = split_by_ratio(shards, ratio)
        assert [shard for part in parts.values() for shard in part] == shards
        assert [not parts[name] for name, share in zip(parts, ratio, strict=True) if not share] == [
            True
        ] * ratio.count(0)
    assert [len(part) for part in split_by_ratio([""] * 100, (8, 1, 1)).values()] == [80, 10, 10]


@given(
    st.text("ab{}0129.,-\\", max_size=9)
    | st.from_regex(r"[ab]?\{[0-9]{1,3}\.\.[0-9]{1,3}\}[ab{]?", fullmatch=True)
)
@example("{1..3}")
@example("a{09..11}b")
@example("{11..09}")
@example("{00..0}")
def test_what_is_expanded_here_is_what_the_library_expands(pattern):
    try:
        expected = list(braceexpand.braceexpand(pattern))
        depths = itertools.accumulate(
            (sign == "{") - (sign == "}") for sign in re.sub(r"\\.", "", pattern, flags=re.DOTALL)
        )
        if min(depths, default=0) < 0:
            raise ValueError("the library takes }{ for text")
    except ValueError:
        with pytest.raises(MetadataError):
            expand([pattern], "f")
    else:
        assert expand([pattern], "f", Limits(names=max(1, len(expected)))) == expected
        if len(expected) > 1:
            with pytest.raises(LimitError):
                expand([pattern], "f", Limits(names=len(expected) - 1))


def test_split_patterns_are_regular_expressions_globs_or_braces():
    shards = ["a/0.tar", "a/1.tar", "b/0.tar", "b/1.tar"]
    parts = split_by_patterns(shards, ["train:a/[0-9]", "train:b/0", "val:*/1.tar", "test:{a,b}/{0..0}.tar"])
    assert parts == {
        "train": ("a/0.tar", "a/1.tar", "b/0.tar"),
        "val": ("a/1.tar", "b/1.tar"),
        "test": ("a/0.tar", "b/0.tar"),
    }
    for wrong in ("train", "train:", ":x", "train:nothing"):
        with pytest.raises(ConfigError, match="split pattern"):
            split_by_patterns(shards, [wrong])
    for ratio in ((1, 1), (0, 0, 0), (1, -1, 1)):
        with pytest.raises(ConfigError, match="split ratio"):
            split_by_ratio(shards, ratio)


@given(st.lists(st.integers(1, 2**40), min_size=1, max_size=50))
def test_offsets_survive_the_round_trip(steps):
    offsets = [0, *np.cumsum(steps).tolist()]
    assert decode_offsets(encode_offsets(offsets), 0, "x").tolist() == offsets


@pytest.mark.parametrize("count", [1, 100, 8191, 8192, 30_000])
def test_index_entries_are_read_as_needed(tmp_path, count):
    store = StoreSpec(str(tmp_path)).open()
    offsets = np.arange(count + 1) * 1024
    offsets[0] = 512  # what lies before sample 0 belongs to it
    store.put(index_path("d/a.tar"), encode_offsets(offsets))
    offsets[0] = 0
    for first, last in ((0, 1), (count - 1, count), (count // 2, count), (0, count)):
        found = read_offsets(store, "d/a.tar", count, first, last)
        np.testing.assert_array_equal(found, offsets[first : last + 1])
    for wrong in (count + 1, count - 1):
        with pytest.raises(IndexMismatchError, match=r"run `energon-stream prepare` again"):
            read_offsets(store, "d/a.tar", wrong, max(0, wrong - 1), wrong)
    with pytest.raises(NotPreparedError):
        read_offsets(store, "d/b.tar", count, 0, 1)
    store.put(index_path("d/a.tar"), encode_offsets(offsets[::-1]))
    with pytest.raises(IndexMismatchError, match="does not lie after"):
        read_offsets(store, "d/a.tar", count, 0, count)


COUNTS = {"a.tar": 3, "b.tar": 4, "c.tar": 5}


def write_meta(folder, files):
    meta = folder / ".nv-meta"
    meta.mkdir()
    for name, content in files.items():
        (meta / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return StoreSpec(str(folder))


SPLIT_TEXT = (
    "split_parts: {train: [c.tar, 'a.tar', b.tar], val: [], odd: [x.tar]}\nexclude: [b.tar, a.tar/k.1/x]"
)


@pytest.mark.parametrize("info", [".info.json", ".info.yaml"])
@pytest.mark.parametrize("split", ["split.yaml", "split.json"])
def test_a_part_is_opened(tmp_path, info, split):
    text = SPLIT_TEXT if split.endswith("yaml") else load_yaml(SPLIT_TEXT.encode(), "")
    spec = write_meta(
        tmp_path, {info: {"shard_counts": COUNTS}, split: text, "dataset.yaml": "subflavors: {a: 1}"}
    )
    index = open_webdataset(spec, split_part="train")
    assert index.shard_paths == ("c.tar", "a.tar")
    assert index.shard_starts.tolist() == [0, 5, 8]
    assert index.num_samples == 8  # the excluded sample counts
    assert index.dataset_yaml == {"subflavors": {"a": 1}}
    assert index.is_excluded(1, "k.1/x")
    assert not index.is_excluded(0, "k.1/x")


@pytest.mark.parametrize(
    ("files", "part", "error", "message"),
    [
        ({}, "train", NotPreparedError, "Check the path"),
        ({"index.sqlite": ""}, "train", NotPreparedError, "auxiliary"),
        ({".info.json": {"shard_counts": COUNTS}}, "train", NotPreparedError, "split.yaml"),
        ({".info.json": {"shard_counts": COUNTS}, "split.yaml": SPLIT_TEXT}, "tran", ConfigError, "train, val, odd"),
        ({".info.json": {"shard_counts": COUNTS}, "split.yaml": SPLIT_TEXT}, "val", EmptyDatasetError, "Name one of train, or"),
        ({".info.json": {"shard_counts": COUNTS}, "split.yaml": SPLIT_TEXT}, "odd", MetadataError, "'x.tar'"),
        ({".info.json": {"shard_count": {}}, "split.yaml": SPLIT_TEXT}, "train", MetadataError, "shard_counts"),
        ({".info.json": {"shard_counts": {"a.tar": "3"}}, "split.yaml": SPLIT_TEXT}, "train", MetadataError, "'3'"),
        ({".info.json": "{", "split.yaml": SPLIT_TEXT}, "train", MetadataError, "not valid JSON"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_dataset_is_named(tmp_path, files, part, error, message):
    spec = write_meta(tmp_path, files)
    with pytest.raises(error, match=message) as caught:
        open_webdataset(spec, split_part=part)
    assert str(tmp_path) in str(caught.value)
    assert isinstance(caught.value, (DatasetError, ConfigError))


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(ObjectNotFoundError, match="nowhere"):
        open_webdataset(StoreSpec(str(tmp_path / "nowhere")), split_part="train")
