"""Documents to references: every key, every slip; nothing is read."""

from functools import partial
from itertools import pairwise

import pytest

from energon_stream.config.metadataset import parse_metadataset
from energon_stream.config.references import AuxRef, BlendRef, LeafRef, MetadatasetRef, inherit
from energon_stream.config.subset import Subset, parse_subset
from energon_stream.errors import ConfigError, MetadataError
from energon_stream.schedule import Knot
from energon_stream.storage import StoreSpec
from energon_stream.urls import join_url

FOLDER = "s3://bucket/metas"
spec_of = partial(join_url, FOLDER)


def at(path):
    return StoreSpec(spec_of(path))


def parse(document):
    return parse_metadataset(document, where="m.yaml", spec_of=at, file=at("m.yaml"))


def parse_v2(node):
    return parse({"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": {"train": node}})


def parse_v1(*entries):
    return parse({"splits": {"train": {"datasets": list(entries)}}})


def test_a_leaf_with_every_key():
    leaf = {
        "path": "../coco",
        "split_part": "val",
        "split_config": "s.yaml",
        "dataset_config": "d.yaml",
        "subflavor": "small",
        "subflavors": {"length": "short"},
        "shuffle_over_epochs_multiplier": None,
        "subset": {"range": [10, "end"]},
        "aux": {
            "plain": "imgs",
            "files": "filesystem://files",
            "remote": "filesystem+gs://other/files",
            "mapped": {"path": "imgs"},
            "folder": {"fs_path": "/abs"},
        },
    }
    assert parse_v2(leaf).split("train") == LeafRef(
        StoreSpec("s3://bucket/coco"),
        "val",
        "s.yaml",
        "d.yaml",
        {
            "plain": AuxRef(at("imgs"), "webdataset"),
            "files": AuxRef(at("files"), "filesystem"),
            "remote": AuxRef(StoreSpec("gs://other/files"), "filesystem"),
            "mapped": AuxRef(at("imgs"), "webdataset"),
            "folder": AuxRef(StoreSpec("/abs"), "filesystem"),
        },
        subflavors={"__subflavor__": "small", "length": "short"},
        subset=Subset(10),
        multiplier=None,
    )


def test_defaults_and_kinds_of_nodes():
    assert parse_v2({"path": "coco"}).split("train") == LeafRef(at("coco"), "train")
    nested = {"path": "inner.yaml", "subflavors": {"x": 1}, "subset": {"range": ["0%", "50%"]}}
    assert parse_v2(nested).split("train") == MetadatasetRef(
        at("inner.yaml"), "train", subflavors={"x": 1}, subset=Subset(upper=0.5)
    )
    for key, by in [("blend", "weight"), ("blend_epochized", "repetitions")]:
        node = parse_v2({key: [{"path": "a", by: 3}, {"path": "b"}], "subset": {"range": ["50%", "100%"]}})
        half = Subset(lower=0.5)
        assert node.split("train") == BlendRef(
            (LeafRef(at("a"), "train", subset=half), LeafRef(at("b"), "train", subset=half)),
            ((Knot(0, 3.0),), (Knot(0, 1.0),)),
            by,
            f"m.yaml: splits.train.{key}",
        )


def test_version_1_with_and_without_its_name():
    entries = {"path": "a", "weight": 2, "subflavor": "old", "split_part": "val"}, {"path": "b"}
    expected = BlendRef(
        (
            LeafRef(at("a"), "val", subflavors={"__subflavor__": "old"}),
            LeafRef(at("b"), "train"),
        ),
        ((Knot(0, 2.0),), (Knot(0, 1.0),)),
        "weight",
        "m.yaml: splits.train.datasets",
    )
    assert parse_v1(*entries).split("train") == expected
    named = {"__module__": "energon_stream", "__class__": "Metadataset"}
    document = parse({**named, "splits": {"train": {"datasets": list(entries)}}})
    assert (document.split("train"), document.version) == (expected, 1)


def test_joins_by_position_and_by_name():
    joiner = {"__module__": "m", "__class__": "Joined"}
    join = parse_v2(
        {
            "join": [{"path": "a", "subflavors": {"x": 1, "y": 1}}, {"path": "b", "nonmatch": "skip"}],
            "joiner": joiner,
            "split_part": "val",
            "subflavors": {"y": 2},
            "subset": {"range": [0, 5]},
            "shuffle_over_epochs_multiplier": 3,
        }
    ).split("train")
    assert [(m.leaf.path, m.leaf.split_part, m.nonmatch, m.name) for m in join.members] == [
        ("s3://bucket/metas/a", "val", "error", None),
        ("s3://bucket/metas/b", "val", "skip", None),
    ]
    assert (join.subflavors, join.subset, join.multiplier) == ({"x": 1, "y": 2}, Subset(0, 5), 3)
    assert (join.joiner.name, join.joiner.kind, join.metadataset) == ("Joined", "class", at("m.yaml"))
    function = {"__module__": "m", "__function__": "join"}
    join = parse_v2(
        {"join": {"l": {"path": "a"}, "r": {"path": "b"}}, "nonmatch": "none", "joiner": function}
    ).split("train")
    assert [(m.name, m.nonmatch) for m in join.members] == [("l", "none"), ("r", "none")]
    assert join.joiner.kind == "function"


BLEND = "m.yaml: splits.train.blend"


@pytest.mark.parametrize(
    ("node", "parts"),
    [
        ({"path": "a", "subflavour": "x"}, ["'subflavour'", "[m.yaml: splits.train]", "'subflavor"]),
        ({"blnd": [{"path": "a"}]}, ["'blnd'", "'blend'", "splits.train"]),
        ({"blend": [{"path": "a"}, {"path": "b", "wieght": 1}]}, ["'wieght'", f"{BLEND}[1]", "'weight'"]),
        ({"blend": [{"path": "a", "weight": -1.5}]}, ["'weight' is -1.5"]),
        ({"blend": [{"path": "a", "weight": "5"}]}, ["'weight' is '5'"]),
        ({"blend": [{"path": "a", "weight": float("inf")}]}, ["'weight' is inf"]),
        ({"blend_epochized": [{"path": "a", "repetitions": 0}]}, ["'repetitions' is 0", "positive"]),
        ({"blend": [{"path": "a"}], "draws": "odd"}, ["'draws' is 'odd'", "random, even"]),
        ({"blend_epochized": [{"path": "a", "weight": 1}]}, ["'weight'", "repetitions"]),
        ({"blend": []}, ["a list of datasets", BLEND]),
        ({"blend": [{"blend": [{"path": "a"}]}]}, ["one of the keys path, join", f"{BLEND}[0]"]),
        ({"path": "a", "blend": []}, ["path and blend"]),
        ({}, ["one of the keys", "has none"]),
        (None, ["a mapping is needed here, not None"]),
        ({"path": 3}, ["'path' is 3 [m.yaml: splits.train]", "string"]),
        ({"path": "a", "subflavors": ["x"]}, ["'subflavors' is ['x'] [m.yaml: splits.train]", "names"]),
        ({"path": "a", "shuffle_over_epochs_multiplier": 0}, ["shuffle_over_epochs_multiplier", "is 0"]),
        ({"path": "a", "subset": {"range": ["50%", "50%"]}}, ["is not a subset", "splits.train"]),
        ({"path": "a", "subset": {"range": ["10%", 20]}}, ["is not a subset"]),
        ({"blend": [{"path": "a"}], "subset": {"range": [0, 9]}}, ["[0, 9]", "percentages"]),
        ({"path": "a.yaml", "subset": {"range": [0, 9]}}, ["[0, 9]", "percentages"]),
        ({"path": "a.yaml", "dataset_config": "d.yaml"}, ["'dataset_config'", "a.yaml"]),
        ({"path": "a", "aux": {"x": "data.jsonl"}}, ["data.jsonl", "splits.train.aux.x"]),
        ({"path": "a", "aux": {"x": {"pth": "b"}}}, ["'pth'", "'path'"]),
        ({"join": [{"path": "a"}, {"path": "b"}]}, ["splits.train.joiner"]),
        (
            {"join": [{"path": "a"}], "joiner": {"__module__": "m", "__class__": "C"}},
            ["two or more datasets"],
        ),
        (
            {"join": [{"path": "a"}, {"path": "b", "nonmatch": "drop"}], "joiner": {}},
            ["'nonmatch' is 'drop'", "join[1]", "one of error, skip, none"],
        ),
    ],
)
def test_slips_are_named_with_their_place(node, parts):
    with pytest.raises((MetadataError, ConfigError)) as caught:
        parse_v2(node)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("document", "part"),
    [
        (
            {"__class__": "Metadataset", "splits": {"train": {"blend": [{"path": "a"}]}}},
            "MetadatasetV2 at the top",
        ),
        ({"splits": {"train": {"datasets": [{"path": "a", "subset": {}}]}}}, "'subset'"),
        ({"splits": {"train": {"datasets": [{"join": []}]}}}, "'join'"),
        ({"split": {}}, "Did you mean 'splits'"),
        ({"__module__": "os", "__class__": "MetadatasetV2", "splits": {}}, "os.MetadatasetV2"),
        ({"__module__": "megatron.energon", "__class__": "MetadatasetV3", "splits": {}}, "MetadatasetV3"),
    ],
)
def test_slips_of_whole_documents(document, part):
    with pytest.raises(MetadataError, match=part):
        parse(document)


def test_subsets_compose_from_the_inside():
    def of(outer, inner):
        return parse_subset(outer, "").of(parse_subset(inner, ""))

    assert of(["50%", "100%"], ["0%", "50%"]).bounds(100, "") == (25, 50)
    assert of(["0%", "50%"], [10, 20]).bounds(100, "") == (10, 15)
    assert of(["50%", "100%"], [90, "end"]).bounds(100, "") == (95, 100)
    assert of([5, 10], None).bounds(100, "") == (5, 10)
    thirds = [of([low, high], ["10%", "70%"]).bounds(1000, "") for low, high in _neighbours(3)]
    assert [thirds[0][0], thirds[-1][1]] == [100, 700]
    assert thirds[0][1] == thirds[1][0]
    assert thirds[1][1] == thirds[2][0]
    with pytest.raises(ConfigError, match="sample numbers"):
        of([0, 5], ["0%", "50%"])
    with pytest.raises(ConfigError, match="empty or too long"):
        of(["0%", "50%"], [0, 200]).bounds(20, "here")


@pytest.mark.parametrize(
    ("inner", "outer", "both"),
    [(1, 1, 1), (2, 3, 6), (None, 2, None), (-1, 2, -1), (3, -1, -1), (-1, None, None), (-1, -1, -1)],
)
def test_multipliers_multiply_down_the_tree(inner, outer, both):
    leaf = parse_v2({"path": "a", "shuffle_over_epochs_multiplier": inner}).split("train")
    assert inherit(leaf, {}, Subset(), outer).multiplier == both


def _neighbours(count):
    ends = [f"{100 * number / count}%" for number in range(count)] + ["100%"]
    return list(pairwise(ends))
