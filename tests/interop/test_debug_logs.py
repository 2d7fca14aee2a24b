"""Debug logs, both ways with Megatron-Energon 7.4.1; see ``test_megatron_energon.py``."""

import json
import sys

import numpy as np
import pytest
from PIL import Image
from test_megatron_energon import PYTHON, run

from energon_stream.testing.datasets import prepared_captioning_dataset

pytestmark = [
    pytest.mark.skipif(not PYTHON.exists(), reason="no Python with megatron-energon"),
]

LOADED = """
import sys
from {package} import WorkerConfig, get_savable_loader, get_train_dataset

for rank in (0, 1):
    for level in (0, 2):
        config = WorkerConfig(
            rank=rank, world_size=2, num_workers=1, worker_log_level=level,
            worker_debug_path=sys.argv[2] + "/level" + str(level) + "/{{worker_id}}.jsonl",
        )
        dataset = get_train_dataset(
            sys.argv[1], batch_size=2, shuffle_buffer_size=4, max_samples_per_sequence=4, worker_config=config,
            virtual_epoch_length=5,
        )
        batches = list(get_savable_loader(dataset))
"""

OURS = "energon_stream"
THEIRS = "megatron.energon"
SHARED = {
    "SavableLoader.__init__",
    "SavableDataLoader.iter",
    "SavableDataLoader.yield",
    "SavableDataLoader.StopIteration",
    "WebdatasetSampleLoaderDataset._slices_iter.yield",
    "yield_batch",
    "EpochizeDataset.epoch_start",
    "EpochizeDataset.epoch_end",
}
"""Types of lines that both write in these runs."""


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """Log folders of the same program with both libraries, by package."""
    folder = tmp_path_factory.mktemp("logs")
    prepared_captioning_dataset(folder / "data", shards=3, samples_per_shard=8, split_ratio=(1, 0, 0))
    found = {}
    for package, python in ((OURS, sys.executable), (THEIRS, PYTHON)):
        found[package] = folder / package
        found[package].mkdir()
        run(python, "-c", LOADED.format(package=package), folder / "data", found[package])
    return found


def lines(folder):
    """All lines of the logs in a folder, by type."""
    by_type = {}
    for path in sorted((folder / "level2").iterdir()):
        for text in path.read_text().splitlines():
            line = json.loads(text)
            by_type.setdefault(line["t"], []).append(line)
    return by_type


@pytest.mark.energon("WorkerConfig(worker_debug_path)", "WorkerConfig(worker_log_level)")
def test_the_same_files_types_and_fields(logs):
    ours, theirs = lines(logs[OURS]), lines(logs[THEIRS])
    for folder in logs.values():
        assert sorted(path.name for path in folder.iterdir()) == ["level2"]
        names = sorted(path.name for path in (folder / "level2").iterdir())
        assert names == ["0.jsonl", "1.jsonl", "2.jsonl", "3.jsonl"]
    assert ours.keys() == SHARED
    assert theirs.keys() >= SHARED
    for kind in SHARED - {"EpochizeDataset.epoch_start", "EpochizeDataset.epoch_end"}:
        assert ours[kind][0].keys() - {"leaf"} == theirs[kind][0].keys()
    numbers = ("r", "w", "worker_id", "worker_idx", "idx", "iter_idx", "global_idx")
    for kind in ("SavableDataLoader.yield", "yield_batch"):
        shown = [[[line.get(name) for name in numbers] for line in found[kind]] for found in (ours, theirs)]
        # Workers read ahead; how far, at the end of the program, is a matter of time.
        length = min(map(len, shown)) if kind == "SavableDataLoader.yield" else 3
        assert shown[0][:length] == shown[1][:length]
        assert length


def pixels(path):
    return np.array(Image.open(path))


@pytest.mark.parametrize("package", [OURS, THEIRS])
@pytest.mark.energon("cli: analyze-debug")
def test_each_analyzes_the_logs_of_both(logs, tmp_path, package):
    folder = logs[package] / "level2"
    ids = [line["id"] for line in lines(logs[package])["SavableLoader.__init__"]]
    assert len(ids) == 2  # one program ran both ranks, so they have numbers of their own
    for rank, file in enumerate(("0.jsonl", "2.jsonl")):
        shown = {}
        for name, command in {
            "ours": (sys.executable, "-c", "from energon_stream.cli import run; run()"),
            "theirs": (PYTHON.parent / "energon",),
        }.items():
            picture = tmp_path / f"{name}{rank}.png"
            options = ("--heatmap-path", picture, "--no-colors")
            output = run(*command, "analyze-debug", *options, folder / file)
            shown[name] = (
                next(line for line in output.splitlines() if line.startswith("Found")),
                pixels(picture).tolist(),
            )
        assert shown["ours"] == shown["theirs"]
