"""Pipelines of which an earlier version of the library saved states; see ``save_states.py``.

This module runs with the current library and with the earlier one. It imports public names only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energon_stream import (
    BatchDataset,
    BlendDataset,
    ConcatDataset,
    DefaultTaskEncoder,
    PlannedPacking,
    ReadOptions,
    ShuffleBufferDataset,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    stateless,
)

V2 = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
TEXT = {"__module__": "megatron.energon", "__class__": "TextSample"}
DATASETS = {"a": (6, 12), "b": (5, 9), "c": (7, 6), "grown": (8, 6)}
"""Shards, and samples of each, by folder."""
LESS_GROWN = 5
"""Shards that "grown" had when the first states were saved."""


def document(node: dict[str, Any]) -> dict[str, Any]:
    """A metadataset whose training split is a node."""
    return {**V2, "splits": {"train": node}}


def many(number: int, first: str = "a") -> dict[str, Any]:
    """A blend of many datasets with unequal weights, as children whose cursors are packed."""
    names = [first] + ["abc"[child % 3] for child in range(1, number)]
    return {"blend": [{"path": name, "weight": 1 + child % 5} for child, name in enumerate(names)]}


MIXTURES = {
    "two.yaml": document({"blend": [{"path": "a", "weight": 3}, {"path": "b", "weight": 1}]}),
    "many.yaml": document(many(24)),
    "twenty.yaml": document(many(20)),
    "nested.yaml": document({"blend": [{"path": "twenty.yaml", "weight": 2}, {"path": "c", "weight": 1}]}),
    "epochized.yaml": document(
        {"blend_epochized": [{"path": "b", "repetitions": 2}, {"path": "c", "repetitions": 1.5}]}
    ),
    "joined.yaml": document(
        {"join": [{"path": "a"}, {"path": "b", "nonmatch": "skip"}], "joiner": TEXT},
    ),
    "grown.yaml": document(many(20, "grown")),
}


class Packs(DefaultTaskEncoder):
    """Packs of three samples."""

    @stateless
    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples[i : i + 3] for i in range(0, len(samples), 3)]

    @stateless
    def pack_selected_samples(self, samples: list[Any]) -> Any:
        samples[0].text = " ".join(sample.text for sample in samples)
        return samples[0]


class OnePack(DefaultTaskEncoder):
    """Packs that are planned."""

    pack_selected_samples = Packs.pack_selected_samples


class Parts(DefaultTaskEncoder):
    """Packs that a generator yields: a state lies between two elements of one pack."""

    @stateless
    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples[i : i + 5] for i in range(0, len(samples), 5)]

    @stateless
    def pack_selected_samples(self, samples: list[Any]) -> Any:
        yield from samples


class Groups(DefaultTaskEncoder):
    """Batches of samples whose numbers are alike."""

    @stateless
    def batch_group_criterion(self, sample: Any) -> tuple[int, int | None]:
        return int(sample.text[1:]) % 4, None


def texts(samples: Sequence[Any]) -> list[str]:
    """Batch of single samples, for operators that are put together by hand."""
    return [sample.text for sample in samples]


@dataclass(frozen=True)
class Saved:
    """One pipeline, and when its states are saved.

    Attributes:
        build: Makes the dataset of a folder and a configuration.
        streams: Number of streams.
        world: Ranks that save.
        steps: Batches of each rank before the states are saved.
        next_world: Ranks that go on; they share out the states with ``restore_state_global``.
        on_change: Argument of the restore.
        workers: Worker processes of each rank that saves; ranks that go on have none.
    """

    build: Callable[[Path, WorkerConfig], Any]
    streams: int = 2
    world: int = 1
    steps: int = 7
    next_world: int = 1
    on_change: str = "error"
    workers: int = 0


def train(path: str, **changes: Any) -> Callable[[Path, WorkerConfig], Any]:
    """Function that opens one dataset for training."""
    arguments = {
        "batch_size": 3,
        "shuffle_buffer_size": 10,
        "max_samples_per_sequence": 4,
        "read_options": ReadOptions(max_ahead=64),
        **changes,
    }
    return lambda folder, config: get_train_dataset(folder / path, worker_config=config, **arguments)


def combined(kind: str) -> Callable[[Path, WorkerConfig], Any]:
    """Function that makes a pipeline of operators by hand."""

    def build(folder: Path, config: WorkerConfig) -> Any:
        packs = train("a", packing_buffer_size=6, task_encoder=Packs())(folder, config)
        if kind == "shuffled":
            return ShuffleBufferDataset(packs, 4)
        if kind == "concatenated":
            once = {"repeat": False, "batch_size": 5}
            return ConcatDataset(train("b", **once)(folder, config), train("c", **once)(folder, config))
        singles = BatchDataset(train("two.yaml", batch_size=None)(folder, config), 4, texts)
        return BlendDataset((packs, 2.0), (singles, 1.0))

    return build


PIPELINES = {
    "plain": Saved(train("a")),
    "unshuffled": Saved(train("a", shuffle_buffer_size=None, shuffle_over_epochs_multiplier=None)),
    "with-replacement": Saved(train("a", shuffle_over_epochs_multiplier=-1)),
    "two": Saved(train("two.yaml")),
    "many": Saved(train("many.yaml"), steps=500),
    "many-early": Saved(train("many.yaml"), steps=2),
    "nested": Saved(train("nested.yaml"), steps=200),
    "epochized": Saved(train("epochized.yaml"), steps=20),
    "joined": Saved(train("joined.yaml"), steps=12),
    "packed": Saved(train("a", packing_buffer_size=10, task_encoder=Packs())),
    "packed-parts": Saved(train("b", packing_buffer_size=10, task_encoder=Parts()), steps=4),
    "grouped": Saved(train("a", task_encoder=Groups())),
    "elastic": Saved(train("many.yaml"), streams=12, world=4, steps=6, next_world=3),
    "virtual-epochs": Saved(train("two.yaml", virtual_epoch_length=10), world=2, steps=13, next_world=2),
    "workers": Saved(train("nested.yaml"), streams=4, steps=30, workers=2),
    "planned": Saved(train("a", packing=PlannedPacking([3] * 72, 10), task_encoder=OnePack())),
    "shuffled": Saved(combined("shuffled")),
    "concatenated": Saved(combined("concatenated"), steps=10),
    "blended-batches": Saved(combined("blended")),
    # Saved before "grown" grew, restored after: the cursors of passes that end in the earlier shares.
    "grown": Saved(train("grown.yaml"), steps=300, on_change="continue"),
}
"""By name, with which the files of its states begin."""


def open_loader(saved: Saved, folder: Path, rank: int, world: int, workers: int = 0) -> Any:
    """Loader of one rank."""
    config = WorkerConfig(rank, world, workers, num_streams=saved.streams)
    return get_savable_loader(saved.build(folder, config))


def take(loader: Any, count: int) -> list[list[str]]:
    """The texts of some batches, over the ends of passes."""
    found: list[list[str]] = []
    while len(found) < count:
        for batch in loader:
            found.append(batch if isinstance(batch, list) else batch.text)
            if len(found) == count:
                break
    return found


def go_on(saved: Saved, folder: Path, states: list[Any], count: int) -> list[list[list[str]]]:
    """Next batches of each rank after a restore."""
    found = []
    for rank in range(saved.next_world):
        with open_loader(saved, folder, rank, saved.next_world) as loader:
            loader.restore_state_global(states, on_change=saved.on_change)
            found.append(take(loader, count))
    return found


def write_mixtures(folder: Path) -> None:
    """Write the metadatasets; JSON is YAML."""
    for name, content in MIXTURES.items():
        (folder / name).write_text(json.dumps(content))
