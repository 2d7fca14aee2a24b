"""Datasets of other formats, converted here, are read by Megatron-Energon 7.4.1 with equal samples."""

import hashlib
import importlib.util
import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from test_megatron_energon import PYTHON, run, train_there

from energon_stream import LocalEngine, convert_dataset

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "convert"))

import foreign

pytestmark = [pytest.mark.skipif(not PYTHON.exists(), reason="no Python with megatron-energon")]

PACKAGES = {"mds": "streaming", "litdata": "litdata", "parquet": "pyarrow", "huggingface": "datasets"}
ROWS = 30

COOK = """
import hashlib, json, sys
from megatron.energon import (
    Cooker, DefaultTaskEncoder, Sample, SampleDecoder, WorkerConfig, basic_sample_keys, edataclass, get_loader,
    get_train_dataset, stateless,
)

@edataclass
class Row(Sample):
    pixels: str
    caption: str
    values: dict

@stateless
def cook(sample):
    pixels = hashlib.sha256(sample["jpg"].tobytes()).hexdigest()
    return Row(**basic_sample_keys(sample), pixels=pixels, caption=sample["txt"], values=sample["json"])

class Encoder(DefaultTaskEncoder):
    cookers = [Cooker(cook)]
    decoder = SampleDecoder(image_decode="pil")

dataset = get_train_dataset(
    sys.argv[1], split_part="train", batch_size=None, shuffle_buffer_size=None, max_samples_per_sequence=None,
    shuffle_over_epochs_multiplier=None, parallel_shard_iters=1, repeat=False, task_encoder=Encoder(),
    worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
)
rows = [[row.__key__, row.pixels, row.caption, row.values] for row in get_loader(dataset)]
print("RESULT" + json.dumps(rows))
"""


def needs(kind):
    """A parameter that is skipped without the package that reads the format."""
    is_missing = kind in PACKAGES and importlib.util.find_spec(PACKAGES[kind]) is None
    return pytest.param(kind, marks=pytest.mark.skipif(is_missing, reason=f"needs {PACKAGES.get(kind)}"))


def rows_of_the_source():
    """Each row as the program above prints it, from the values that the source was written from."""
    found = []
    for number in range(ROWS):
        row = foreign.row(number)
        image = Image.open(io.BytesIO(row["image"]))
        pixels = hashlib.sha256(np.asarray(image).tobytes()).hexdigest()
        values = {name: row[name] for name in ("number", "score", "tags")}
        found.append([f"{number:09d}", pixels, row["caption"], values])
    return found


@pytest.mark.parametrize("kind", [*map(needs, PACKAGES), "jsonl", "folder"])
def test_rows_are_equal_there(tmp_path, kind):
    source = tmp_path / "source" / ("table.parquet" if kind == "parquet" else kind)
    source.parent.mkdir()
    getattr(foreign, f"write_{kind}")(source, ROWS)
    convert_dataset(source, tmp_path / "new", max_size=30_000, engine=LocalEngine(0))
    output = run(PYTHON, "-c", COOK, tmp_path / "new")
    rows = json.loads(output.rpartition("RESULT")[2])
    assert sorted([key.rpartition("/")[2], *rest] for key, *rest in rows) == rows_of_the_source()


def test_a_guessed_sample_type_is_understood_there(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for number in range(ROWS):
        (source / f"{number:03d}.jpg").write_bytes(foreign.image_bytes(number))
        (source / f"{number:03d}.txt").write_text(f"caption {number}")
    convert_dataset(source, tmp_path / "new", split_ratio=(1, 0, 0), engine=LocalEngine(0))
    found = [[key, caption] for key, caption, _, _ in train_there(tmp_path / "new", "train")]
    assert sorted(found) == [[f"{number:03d}", f"caption {number}"] for number in range(ROWS)]


def test_classes_are_understood_there(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / "source" / name).mkdir(parents=True)
        for number in range(3):
            (tmp_path / "source" / name / f"{number}.png").write_bytes(foreign.image_bytes(number, "PNG"))
    convert_dataset(tmp_path / "source", tmp_path / "new", engine=LocalEngine(0))
    program = (
        COOK.partition("@edataclass")[0]
        + """
dataset = get_train_dataset(
    sys.argv[1], split_part="train", batch_size=None, shuffle_buffer_size=None, max_samples_per_sequence=None,
    shuffle_over_epochs_multiplier=None, parallel_shard_iters=1, repeat=False,
    worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
)
print("RESULT" + json.dumps([[row.__key__, int(row.label), row.label_name] for row in get_loader(dataset)]))
"""
    )
    output = run(PYTHON, "-c", program, tmp_path / "new")
    rows = json.loads(output.rpartition("RESULT")[2])
    assert sorted(rows) == [
        [f"{name}/{n}", label, name] for label, name in enumerate(("cat", "dog")) for n in range(3)
    ]
