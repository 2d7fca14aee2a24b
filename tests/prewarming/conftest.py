"""Datasets of all kinds, larger than what the readers of these tests look ahead, on a stand-in server."""

import json
import sqlite3
from contextlib import closing

import pytest

from energon_stream import CacheConfig, build_filter_index, prepare_metadataset
from energon_stream.index.jsonl_index import prepare_jsonl
from energon_stream.index.sqlite_index import INDEX_SQLITE
from energon_stream.index.yaml_io import dump_yaml
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.testing.datasets import CRUDE_YAML, random_bytes, write_shards
from energon_stream.testing.s3server import S3Server

TEXT = {"__module__": "megatron.energon", "__class__": "TextSample"}
V2 = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}


def parts(index):
    text = json.dumps({"text": f"text {index}"}).encode()
    return {"bin": random_bytes(5000, "bin", index), "json": text, "txt": f"text {index}".encode()}


def dataset(folder, yaml, shards=6, samples_per_shard=300):
    write_shards(folder, shards=shards, samples_per_shard=samples_per_shard, parts=parts)
    prepare_dataset(str(folder), split_ratio=(1, 0, 0), dataset_yaml=yaml)


@pytest.fixture(scope="session")
def root(tmp_path_factory):
    """A folder of buckets; ``s3://bucket/<kind>`` is a dataset of each kind."""
    root = tmp_path_factory.mktemp("s3")
    lake = root / "bucket"
    dataset(lake / "whole", CRUDE_YAML)
    with closing(sqlite3.connect(lake / "whole" / INDEX_SQLITE, isolation_level=None)) as database:
        database.execute("VACUUM")  # removes the sizes of samples, so that `.tar.idx` files are read
    for name, shards in (("few", 2), ("many", 5)):
        yaml = {"sample_type": TEXT, "field_map": {"text": "txt"}, "subflavors": {"of": name}}
        dataset(lake / name, yaml, shards)
    build_filter_index(lake / "whole", "some", range(0, 1800, 2))
    write_shards(lake / "plain", shards=4, samples_per_shard=300, parts=parts)
    meta = lake / "whole" / ".nv-meta"
    for name, yaml in {
        "json": {**CRUDE_YAML, "parts": ["json"]},
        "bin": {**CRUDE_YAML, "parts": ["bin"]},
        "field": {"sample_type": TEXT, "field_map": {"text": "txt"}},
    }.items():
        (meta / f"{name}.yaml").write_bytes(dump_yaml(yaml))
    lines = (json.dumps({"text": random_bytes(1500, "line", index).hex()}) for index in range(2000))
    (lake / "lines.jsonl").write_text("\n".join(lines))
    prepare_jsonl(str(lake / "lines.jsonl"))
    members = [{"path": "many"}, {"path": "few", "nonmatch": "none"}]
    mixed = [
        {"path": "whole", "weight": 3, "subset": {"range": ["10%", "70%"]}},
        {"path": "lines.jsonl", "weight": 1},
        {"join": members, "joiner": TEXT, "weight": 0.02},
    ]
    epochs = [{"path": "few", "repetitions": 2}, {"path": "whole", "repetitions": 1.5}]
    scheduled = [{"path": "few", "weight": {0: 1, 9: 0}}, {"path": "many", "weight": {0: 0, 9: 1}}]
    blends = {"mixed": {"blend": mixed}, "scheduled": {"blend": scheduled, "draws": "even"}}
    for name, node in {**blends, "epochs": {"blend_epochized": epochs}}.items():
        path = lake / f"{name}.yaml"
        path.write_bytes(dump_yaml({**V2, "splits": {"train": node}}))
        prepare_metadataset(str(path))
    return root


@pytest.fixture
def server(root):
    with S3Server(root) as server:
        yield server


@pytest.fixture
def cache(tmp_path):
    return CacheConfig(str(tmp_path / "cache"), min_free_bytes=0, wait_seconds=600.0)
