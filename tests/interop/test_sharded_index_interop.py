"""Megatron-Energon 7.4.1 reads an `index.sqlite` that many processes built: parts by key, and all samples."""

import json
import os
import subprocess
from functools import partial
from pathlib import Path

import pytest

from energon_stream.engine.processes import LocalEngine
from energon_stream.index.listing import find_shards
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.prepare.sharded_index import ShardGroup, build_index
from energon_stream.storage import StoreSpec
from energon_stream.tar.scan import scan_shard
from energon_stream.testing.datasets import CRUDE_YAML, write_shards

ROOT = Path(__file__).resolve().parents[2]
PYTHON = Path(os.environ.get("ENERGON_STREAM_INTEROP_PYTHON", ROOT / ".venv-energon" / "bin" / "python"))

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="no Python with megatron-energon")

PROGRAM = """
import json, sys
from megatron.energon import (
    Cooker, DefaultTaskEncoder, TextSample, WorkerConfig, basic_sample_keys, cooker, get_loader, get_val_dataset, stateless,
)

@stateless
@cooker(need_primary=True)
def cook(crude, primary):
    number = int(crude["__key__"].rpartition("/")[2])
    other = f"{(number * 7 + 3) % int(sys.argv[2]):08d}"  # a sample of another piece of the index
    return TextSample(**basic_sample_keys(crude), text=[crude["txt"], primary.get(f"{other}.txt", crude)])

class Cooks(DefaultTaskEncoder):
    cookers = [Cooker(cook)]

config = WorkerConfig(rank=0, world_size=1, num_workers=0)
dataset = get_val_dataset(
    sys.argv[1], split_part="train", batch_size=None, worker_config=config, task_encoder=Cooks()
)
print("RESULT" + json.dumps([sample.text for sample in get_loader(dataset)]))
"""


def scans(folder, names):
    store = StoreSpec(folder, None).open()
    return [scan_shard(store, entry) for entry in find_shards(store) if entry.path in names]


def test_parts_are_found_by_key(tmp_path):
    shards, samples = 6, 300
    write_shards(
        tmp_path, shards=shards, samples_per_shard=samples, parts=lambda i: {"txt": b"%d" % i, "bin": b"x"}
    )
    report = prepare_dataset(str(tmp_path), split_ratio=(1, 0, 0), dataset_yaml=CRUDE_YAML)
    names = list(report.shard_counts)
    groups = [
        ShardGroup(partial(scans, str(tmp_path), names[at : at + 2]), at, at * samples, 2 * at * samples)
        for at in range(0, shards, 2)
    ]
    index = tmp_path / ".nv-meta" / "index.sqlite"
    index.unlink()
    build_index(str(index), names, groups, LocalEngine(0), str(tmp_path / ".nv-meta"))
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    total = shards * samples
    done = subprocess.run(
        [PYTHON, program, tmp_path, str(total)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.partition("RESULT")[2])
    assert found == [[str(number), str((number * 7 + 3) % total)] for number in range(total)]
