"""Joins and JSONL files, both ways with Megatron-Energon 7.4.1; see ``test_megatron_energon.py``."""

import json
import sys

import pytest
from test_megatron_energon import PYTHON, run

from energon_stream import prepare_metadataset
from energon_stream.index.jsonl_index import prepare_jsonl
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.testing.datasets import write_shards

pytestmark = [
    pytest.mark.skipif(not PYTHON.exists(), reason="no Python with megatron-energon"),
]

TEXT = {"__module__": "megatron.energon", "__class__": "TextSample"}

PREPARE = """
import sys
from megatron.energon.epathlib import EPath
from megatron.energon.metadataset.loader import prepare_metadataset
prepare_metadataset(EPath(sys.argv[1]))
"""

READ = """
import json, sys
from {package} import (
    Cooker, DefaultTaskEncoder, TextSample, WorkerConfig, basic_sample_keys, get_loader, get_train_dataset, stateless
)

@stateless
def cook(sample):
    return TextSample(**basic_sample_keys(sample), text=sample["json"])

class Encoder(DefaultTaskEncoder):
    cookers = [Cooker(cook)]

dataset = get_train_dataset(
    sys.argv[1], batch_size=None, shuffle_buffer_size=None, max_samples_per_sequence=None,
    shuffle_over_epochs_multiplier=None, parallel_shard_iters=1, repeat=False,
    worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0), task_encoder=Encoder(),
)
samples = [
    [sample.__key__.rpartition("/")[2], sample.text, len(sample.__sources__)] for sample in get_loader(dataset)
]
print("RESULT" + json.dumps(samples))
"""


def read(python, package, path):
    output = run(python, "-c", READ.replace("{package}", package), path)
    return json.loads(output.rpartition("RESULT")[2])


@pytest.fixture
def lake(tmp_path):
    for name, shards in {"a": 4, "b": 3}.items():
        write_shards(
            tmp_path / name,
            shards=shards,
            samples_per_shard=5,
            parts=lambda i, name=name: {"txt": f"{name}{i}".encode()},
        )
        yaml = {"sample_type": TEXT, "field_map": {"text": "txt"}}
        prepare_dataset(str(tmp_path / name), split_ratio=(1, 0, 0), dataset_yaml=yaml)
    split = tmp_path / "b" / ".nv-meta" / "split.yaml"
    split.write_text(split.read_text().replace("exclude: []", "exclude:\n- data-000001.tar/00000007"))
    return tmp_path


def write(lake, nonmatch):
    path = lake / f"{nonmatch}.yaml"
    join = {"join": [{"path": "a"}, {"path": "b", "nonmatch": nonmatch}], "joiner": TEXT}
    document = {"__module__": TEXT["__module__"], "__class__": "MetadatasetV2", "splits": {"train": join}}
    path.write_text(json.dumps(document))
    return path


def index(path):
    (file,) = path.with_name(f"{path.name}.cache").glob("*.bin")
    return file


def rows(file):
    content = file.read_bytes()
    return content[:16], sorted(content[at : at + 48] for at in range(16, len(content), 48))


@pytest.mark.parametrize("nonmatch", ["skip", "none"])
def test_join_indices_are_the_same_and_read_both_ways(lake, nonmatch):
    path = write(lake, nonmatch)
    prepare_metadataset(path)
    ours = index(path)
    content = rows(ours)
    read_there = read(PYTHON, "megatron.energon", path) if nonmatch == "skip" else None  # "none" breaks there
    ours.unlink()
    run(PYTHON, "-c", PREPARE, path)
    assert index(path) == ours  # the name says which datasets, excludes and modes
    assert rows(index(path)) == content  # there the order of rows is SQLite's mood
    found = read(sys.executable, "energon_stream", path)
    partners = [i for i in range(15) if i != 7]
    assert sorted(text for _, text, _ in found) == sorted(
        f"b{i}" if i in partners else f"a{i}" for i in (partners if nonmatch == "skip" else range(20))
    )
    if read_there is not None:
        # There the primary is listed twice among the sources.
        assert [sample[:2] for sample in read_there] == [[f"{i:08d}", f"b{i}"] for i in partners]
        assert {sample[2] for sample in found} == {2}


def test_jsonl_indices_are_the_same_and_read_both_ways(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text("\n \n" + "".join(json.dumps({"n": i}) + "\n" * (1 + i % 3) for i in range(20)))
    prepare_jsonl(str(path))
    ours = path.with_name("x.jsonl.idx")
    content = ours.read_bytes()
    expected = [[str(i), {"n": i}, 1] for i in range(20)]
    assert read(sys.executable, "energon_stream", path) == expected
    assert read(PYTHON, "megatron.energon", path) == expected
    ours.unlink()
    run(PYTHON.parent / "energon", "prepare", path)
    assert ours.read_bytes() == content
