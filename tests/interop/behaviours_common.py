"""What the programs of the behaviours share: small datasets, and the registry of cases."""

import io
import json
import pickle
import sys
import tarfile
import warnings
from pathlib import Path

from megatron.energon import WorkerConfig, get_train_dataset, get_val_dataset
from megatron.energon.flavors import BaseWebdatasetFactory

warnings.simplefilter("ignore")
FOLDER = Path(sys.argv[1])
CONFIG = WorkerConfig(rank=0, world_size=1, num_workers=0)
SHUFFLING = {"shuffle_buffer_size": None, "max_samples_per_sequence": None}
TEXTS = {
    "sample_type": {"__module__": "megatron.energon", "__class__": "TextSample"},
    "field_map": {"text": "txt"},
}
CRUDE = {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}


def write_tars(name, dataset_yaml, *, samples=12, first=0, parts=None):
    """Write and prepare a folder of two tars."""
    folder = FOLDER / name
    folder.mkdir()
    numbers = range(first, first + samples)
    for shard, chosen in enumerate((numbers[: samples // 2], numbers[samples // 2 :])):
        with tarfile.open(folder / f"shard-{shard}.tar", "w") as tar:
            for number in chosen:
                for extension, data in (parts or {"txt": lambda n: f"text {n}".encode()}).items():
                    info = tarfile.TarInfo(f"{number:04d}.{extension}")
                    payload = data(number)
                    info.size = len(payload)
                    tar.addfile(info, io.BytesIO(payload))
    BaseWebdatasetFactory.prepare_dataset(
        folder, ["shard-{0..1}.tar"], split_parts_ratio=[("train", 1.0)], shuffle_seed=None, workers=1
    )
    (folder / ".nv-meta" / "dataset.yaml").write_text(json.dumps(dataset_yaml))
    return folder


def write_yaml(name, train):
    path = FOLDER / name
    splits = {"train": train}
    path.write_text(
        json.dumps({"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": splits})
    )
    return path


def train(path, encoder=None, batch_size=None, workers=0, **options):
    config = options.pop("worker_config", None) or WorkerConfig(rank=0, world_size=1, num_workers=workers)
    if encoder is not None:
        options["task_encoder"] = encoder
    return get_train_dataset(path, worker_config=config, batch_size=batch_size, **SHUFFLING, **options)


def validate(path, encoder=None, batch_size=None, **options):
    if encoder is not None:
        options["task_encoder"] = encoder
    return get_val_dataset(path, split_part="train", worker_config=CONFIG, batch_size=batch_size, **options)


def failure(function):
    try:
        function()
    except Exception as error:
        return [
            kind.__name__ for kind in type(error).__mro__ if kind.__name__ in ("FatalSampleError", "KeyError")
        ]
    return "no error"


CASES = {}


def case(*names, differs=None):
    """Register a case, which proves public names, options or methods; see ``compatibility.py``."""

    def register(function):
        CASES[function.__name__] = function
        return function

    return register


def run_cases():
    """Run all cases, and print the result of each as JSON."""
    results = {}
    for name, function in CASES.items():
        try:
            results[name] = function()
        except Exception as error:
            results[name] = f"{type(error).__name__}: {error}"
    sys.stdout.write("RESULT" + json.dumps(results) + "\n")


texts = write_tars("texts", TEXTS)
more = write_tars("more", TEXTS, parts={"txt": lambda number: f"more {number}".encode()})
pickles = write_tars(
    "pickles",
    CRUDE,
    parts={"txt": lambda n: f"text {n}".encode(), "pickle": lambda n: pickle.dumps({"n": n})},
)
overridden = write_tars(
    "overridden", {"__module__": "behaviours_classes", "__class__": "OddTexts", "field_map": {"text": "txt"}}
)
mixture = write_yaml(
    "mixture.yaml",
    {"blend": [{"weight": 1, "path": "./texts", "subflavors": {"x": 1}}, {"weight": 3, "path": "./more"}]},
)
