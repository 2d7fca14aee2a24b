"""Our ``energon`` beside that of Megatron-Energon 7.4.1, on the same datasets."""

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from PIL import Image

from energon_stream.index.yaml_io import load_yaml
from energon_stream.testing.datasets import captioning_dataset, write_shards

ROOT = Path(__file__).resolve().parents[2]
PYTHON = Path(os.environ.get("ENERGON_STREAM_INTEROP_PYTHON", ROOT / ".venv-energon" / "bin" / "python"))
OURS = [sys.executable, "-c", "from energon_stream.cli import run_energon as run; run()"]
THEIRS = [str(PYTHON.parent / "energon")]
CAPTIONS = ["--sample-type", "CaptioningSample", "--field-map", '{"image": "jpg", "caption": "txt"}']
HOW = ["--non-interactive", "--no-progress", "--split-ratio", "1,1,0", *CAPTIONS]

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="no Python with megatron-energon")


def run(command, *arguments, answers=""):
    return subprocess.run(
        [*command, *map(str, arguments)],
        input=answers, capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT) if command is OURS else "", "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip


def picture(index):
    """A sample with a gradient: theirs cannot show an image of one colour."""
    buffer = io.BytesIO()
    Image.linear_gradient("L").convert("RGB").save(buffer, "JPEG")
    return {"jpg": buffer.getvalue(), "txt": f"caption {index}".encode()}


@pytest.mark.energon("cli: prepare", "cli: lint", "cli: preview")
def test_both_commands_end_and_ask_alike(tmp_path):
    outputs = {}
    for name, command, wrong in (("ours", OURS, 2), ("theirs", THEIRS, 1)):  # theirs ends by an assertion
        write_shards(tmp_path / name, shards=2, samples_per_shard=2, parts=picture)
        prepared = run(command, "prepare", tmp_path / name, *HOW)
        assert (prepared.returncode, prepared.stdout.splitlines()[-1]) == (0, "Done"), prepared.stderr
        linted = run(command, "lint", tmp_path / name, "--split-parts", "train")
        for each in ("lint", "preview"):
            refused = run(command, each, tmp_path / name, "--split-parts", "none")
            assert (refused.returncode, "'none'" in refused.stderr) == (wrong, True), refused.stderr
        shown = run(command, "preview", tmp_path / name, "--split-parts", "val,train", answers="y\ny\nn\n")
        assert shown.returncode == 0, shown.stderr
        # A part of a tensor's description, and the picture below it, are their own.
        lines = [line for line in shown.stdout.splitlines() if line.startswith((" - ", "Sample", "Continue"))]
        lines = [line.partition("Tensor(")[0] for line in lines]
        outputs[name] = linted.returncode, linted.stdout.splitlines()[0], lines
    assert outputs["ours"] == outputs["theirs"]


@pytest.mark.energon("cli: prepare --split-parts", "cli: prepare --non-interactive")
def test_both_prepare_without_a_type_and_with_a_pattern_for_no_tar(tmp_path):
    splits = {}
    for name, command in (("ours", OURS), ("theirs", THEIRS)):
        write_shards(tmp_path / name, shards=2, samples_per_shard=2, parts=picture)
        patterns = "--split-parts", "train:data-000000.tar", "--split-parts", "val:none.tar"
        done = run(command, "prepare", tmp_path / name, "--non-interactive", *patterns)
        assert done.returncode == 0, done.stderr
        assert not (tmp_path / name / ".nv-meta" / "dataset.yaml").exists()
        splits[name] = (tmp_path / name / ".nv-meta" / "split.yaml").read_bytes()
    assert load_yaml(splits["ours"], "") == load_yaml(splits["theirs"], "")


@pytest.mark.energon("cli: prepare --fix-duplicates")
def test_they_read_what_we_rename(tmp_path):
    captioning_dataset(tmp_path, shards=1, samples_per_shard=2)
    (tmp_path / "other.tar").write_bytes((tmp_path / "data-000000.tar").read_bytes())
    with (
        tarfile.open(tmp_path / "third.tar", "w", format=tarfile.GNU_FORMAT) as tar,
        tarfile.open(tmp_path / "other.tar") as other,
    ):
        for member in other:
            data = other.extractfile(member).read()
            member.name = member.name.replace("0000000", "0" * 98)
            tar.addfile(member, io.BytesIO(data))
    assert run(THEIRS, "prepare", tmp_path, *HOW).returncode == 1
    fixed = run(OURS, "prepare", tmp_path, *HOW, "--fix-duplicates")
    assert fixed.returncode == 0, fixed.stderr
    assert run(THEIRS, "lint", tmp_path, "--split-parts", "train,val").returncode == 0
    again = run(THEIRS, "prepare", tmp_path, *HOW, "--force-overwrite")
    assert again.returncode == 0, again.stderr
