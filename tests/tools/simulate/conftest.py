"""Small datasets in a folder of buckets, and a stand-in server for them."""

import json

import pytest

from energon_stream import prepare_metadataset
from energon_stream.index.yaml_io import dump_yaml
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.testing.datasets import CRUDE_YAML, random_bytes, write_shards
from energon_stream.testing.s3server import S3Server

V2 = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}


def parts(index):
    return {"bin": random_bytes(3000, "bin", index), "json": json.dumps({"text": index}).encode()}


def large(index):
    return {"bin": random_bytes(700_000, "bin", index)}


@pytest.fixture(scope="session")
def lake(tmp_path_factory):
    """The bucket ``bucket``: its folders are datasets."""
    lake = tmp_path_factory.mktemp("s3") / "bucket"
    for name, shards, samples, make in (
        ("whole", 5, 200, parts),
        ("few", 2, 100, parts),
        ("large", 2, 3, large),
    ):
        write_shards(lake / name, shards=shards, samples_per_shard=samples, parts=make)
        prepare_dataset(str(lake / name), split_ratio=(1, 0, 0), dataset_yaml=CRUDE_YAML)
    yaml = dump_yaml({**CRUDE_YAML, "parts": ["json"]})
    (lake / "whole" / ".nv-meta" / "json.yaml").write_bytes(yaml)
    node = {"blend_epochized": [{"path": "few", "repetitions": 2}, {"path": "whole"}]}
    (lake / "both.yaml").write_bytes(dump_yaml({**V2, "splits": {"train": node}}))
    prepare_metadataset(str(lake / "both.yaml"))
    return lake


@pytest.fixture
def server(lake):
    with S3Server(lake.parent) as server:
        yield server
