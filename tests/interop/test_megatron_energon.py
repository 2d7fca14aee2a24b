"""Both ways with Megatron-Energon 7.4.1, which lives in a Python of its own.

``ENERGON_STREAM_INTEROP_PYTHON`` names that Python; the default is ``.venv-energon`` in the checkout
(``python3 -m venv .venv-energon``, then ``pip install torch==2.13.0`` and ``megatron-energon==7.4.1``).
"""

import contextlib
import io
import itertools
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from energon_stream.auxiliary import WebdatasetFileStore
from energon_stream.index.dataset import open_webdataset
from energon_stream.index.index_files import read_offsets
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.storage import StoreSpec
from energon_stream.tar.format import sample_parts
from energon_stream.testing.datasets import (
    CAPTIONING_YAML,
    CRUDE_YAML,
    captioning_dataset,
    random_bytes,
    write_shards,
)

ROOT = Path(__file__).resolve().parents[2]
PYTHON = Path(os.environ.get("ENERGON_STREAM_INTEROP_PYTHON", ROOT / ".venv-energon" / "bin" / "python"))

pytestmark = [
    pytest.mark.skipif(not PYTHON.exists(), reason="no Python with megatron-energon"),
]

READ = """
import json, sys
from {package} import WorkerConfig, get_loader, get_train_dataset

dataset = get_train_dataset(
    sys.argv[1], split_part=sys.argv[2], batch_size=None, shuffle_buffer_size=None, max_samples_per_sequence=None,
    shuffle_over_epochs_multiplier=None, parallel_shard_iters=1, repeat=False,
    worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
)
samples = [
    [sample.__key__, sample.caption, list(sample.image.shape), int((sample.image * 255).round().sum())]
    for sample in get_loader(dataset)
]
print("RESULT" + json.dumps(samples))
"""


def run(*arguments):
    """Run a command; returns its standard output."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [str(item) for item in arguments],
        capture_output=True,
        text=True,
        env=environment,
        cwd=ROOT,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def prepare_there(folder, *options):
    run(PYTHON.parent / "energon", "prepare", folder, "--non-interactive", "--num-workers", 2, *options)


def train(python, package, folder, split_part):
    """One pass over a split part, in order, with the loaders of a package."""
    output = run(python, "-c", READ.replace("{package}", package), folder, split_part)
    return json.loads(output.rpartition("RESULT")[2])


def train_there(folder, split_part):
    return train(PYTHON, "megatron.energon", folder, split_part)


def train_here(folder, split_part):
    # Our keys begin with the shard, as the tutorials print them.
    samples = train(sys.executable, "energon_stream", folder, split_part)
    return [[key.rpartition(".tar/")[2], *rest] for key, *rest in samples]


def decode(key, caption, image):
    pixels = np.asarray(Image.open(io.BytesIO(image)).convert("RGB"))
    return [key, caption.decode(), [3, *pixels.shape[:2]], int(pixels.sum())]


def read_here(folder, split_part):
    """The samples of a split part, in order, by way of ``.tar.idx``."""
    index = open_webdataset(StoreSpec(str(folder)), split_part=split_part)
    store = index.spec.open()
    found = []
    for path, count in zip(index.shard_paths, index.shard_counts.tolist(), strict=True):
        tar = store.get(path).data
        offsets = read_offsets(store, path, count, 0, count).tolist()
        for start, stop in itertools.pairwise(offsets):
            cut = sample_parts(tar, start, stop)
            places = zip(cut.names, cut.starts, cut.stops, strict=True)
            parts = {name: bytes(tar[first:last]) for name, first, last in places}
            found.append(decode(cut.key, parts["txt"], parts["jpg"]))
    return found


def odd_members(folder, tar_format):
    """Write tars of names and members that a parser may treat differently."""
    names = ["./c", "d/__x__/a", "__top__x", "v1.0/a", "d/", "é", "a" * 80]
    long_names = [] if tar_format == tarfile.USTAR_FORMAT else ["n" * 140, "f" * 90 + "/" + "g" * 90]
    folder.mkdir()
    for number in range(2):
        with tarfile.open(folder / f"{number}.tar", "w", format=tar_format) as tar:
            for name in ("__meta__", "__top__/x.jpg", "noextension", ".hidden"):
                tar.addfile(tarfile.TarInfo(name))
            for name in [*names, *long_names]:
                for part in ("jpg", "left.txt"):
                    member = tarfile.TarInfo(
                        f"{number}{name}.{part}" if name[0] not in "._" else f"{name}{number}.{part}"
                    )
                    content = random_bytes(len(name) * 37, number, name, part)
                    member.size = len(content)
                    member.mtime = (
                        0.5 if tar_format == tarfile.PAX_FORMAT else 0
                    )  # as WebDataset's writer does
                    tar.addfile(member, io.BytesIO(content))
                directory = tarfile.TarInfo("directory")
                directory.type = tarfile.DIRTYPE
                tar.addfile(directory)


def numbered(*patterns):
    """A dataset builder: tars of two tiny samples with such names."""

    def build(folder):
        for count, (pattern, numbers) in enumerate(patterns):
            for number in numbers:
                write_shards(folder, shards=1, samples_per_shard=2, parts=lambda i: {"jpg": b"1", "txt": b"2"},
                             name=pattern.format(number), key=f"{count}-{number}-{{}}")  # fmt: skip

    return build


BUILDERS = {
    "ustar": lambda folder: odd_members(folder, tarfile.USTAR_FORMAT),
    "gnu": lambda folder: odd_members(folder, tarfile.GNU_FORMAT),
    "pax": lambda folder: odd_members(folder, tarfile.PAX_FORMAT),
    "names": numbered(("s/x_{:02d}.tar", range(8, 12)), ("s/x_{:02d}.tar", [14]), ("y{}.tar", range(1, 12)),
                      ("p_{0:02d}/s_{0:02d}.tar", range(3)), ("z-{}-1.tar", range(1, 3)), ("b {}.tar", range(2))),
    "captions": lambda folder: captioning_dataset(folder, shards=10, samples_per_shard=3, with_json=True),
}  # fmt: skip


@pytest.mark.parametrize("builder", sorted(BUILDERS))
@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        (["--split-ratio", "8,1,1"], {"split_ratio": (8, 1, 1)}),
        (["--split-ratio", "1,2,1", "--shuffle-tars"], {"split_ratio": (1, 2, 1), "shuffle_tars": True}),
        (["--split-parts", "train:.*[0-4]", "--split-parts", "rest:.*1", "--exclude", "0.tar"],
         {"split_patterns": ["train:.*[0-4]", "rest:.*1"], "exclude": "0.tar"}),
    ],
    ids=["ratio", "shuffled", "patterns"],
)  # fmt: skip
def test_the_files_are_the_same(tmp_path, monkeypatch, builder, options, arguments):
    """By its conventions, by which a share may get no tar."""
    monkeypatch.setenv("ENERGON_STREAM_CONVENTIONS", "energon")
    if options[0] == "--split-parts" and builder in ("ustar", "gnu", "pax"):
        options, arguments = options[:2], {"split_patterns": ["train:.*[0-4]"]}
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    BUILDERS[builder](ours)
    shutil.copytree(ours, theirs)
    prepare_there(theirs, *options, "--sample-type", "CrudeWebdataset")
    prepare_dataset(str(ours), dataset_yaml=CRUDE_YAML, **arguments)

    def files(folder):
        found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
        same = {
            name: path.read_bytes() for name, path in found.items() if path.suffix not in (".sqlite", ".uuid")
        }
        return found.keys(), same

    assert files(ours) == files(theirs)
    for query in (
        "SELECT * FROM samples",
        "SELECT * FROM sample_parts",
        "SELECT type, name, tbl_name FROM sqlite_master",
    ):
        rows = []
        for folder in (ours, theirs):
            database = sqlite3.connect(folder / ".nv-meta" / "index.sqlite")
            rows.append(sorted(database.execute(query), key=repr))
            database.close()
        assert rows[0] == rows[1]


def test_prepared_here_trains_there(tmp_path):
    captioning_dataset(tmp_path, shards=10, samples_per_shard=3)
    prepare_dataset(str(tmp_path), split_ratio=(8, 1, 1), dataset_yaml=CAPTIONING_YAML)
    found = train_there(tmp_path, "train")
    assert len(found) == 24
    assert found == read_here(tmp_path, "train") == train_here(tmp_path, "train")
    assert train_there(tmp_path, "val") == read_here(tmp_path, "val")
    assert "CaptioningSample" in run(PYTHON.parent / "energon", "info", tmp_path)


def test_prepared_there_trains_here(tmp_path):
    captioning_dataset(tmp_path, shards=10, samples_per_shard=3)
    field_map = json.dumps(CAPTIONING_YAML["field_map"])
    prepare_there(
        tmp_path, "--split-ratio", "6,3,1", "--sample-type", "CaptioningSample", "--field-map", field_map
    )
    index = open_webdataset(StoreSpec(str(tmp_path)), split_part="train")
    assert index.dataset_yaml == CAPTIONING_YAML
    assert train_there(tmp_path, "train") == read_here(tmp_path, "train") == train_here(tmp_path, "train")
    with contextlib.closing(sqlite3.connect(tmp_path / ".nv-meta" / "index.sqlite")) as database:
        find = "SELECT tar_file_id, sample_index FROM samples WHERE sample_key = '00000004'"
        assert database.execute(find).fetchone() == (1, 1)
    assert WebdatasetFileStore(index.spec)["00000004.txt"][0] == b"caption 4"
