"""Saves states of an earlier version of the library, as fixtures of ``test_saved_states.py``.

Run it from the root of this checkout, with the path of a checkout of the earlier version::

    PYTHONPATH=$PWD python tests/state/save_states.py PATH_OF_EARLIER_CHECKOUT

The current library writes the datasets. The earlier one, in a process of its own, runs each pipeline of
``saved_pipelines.py``, saves the states of all ranks and restores them, and notes which samples come next.
It writes five files to ``saved_states/``, whose names begin with the version of the format:

* ``V-states.msgpack``: by name, for each rank the bytes of what ``save_state_rank()`` returned
* ``V-states.pt``: by name, the states of all ranks in a list, written by ``torch.save``
* ``V-state-dicts.pt``: by name, what ``state_dict()`` of rank 0 returned, written by ``torch.save``
* ``V-expected.json``: by name, for each rank that goes on, the texts of the next batches
* ``V-datasets.tar.xz``: the datasets as the earlier version writes and prepares them, with a table
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from saved_pipelines import (
    DATASETS,
    LESS_GROWN,
    PIPELINES,
    go_on,
    open_loader,
    take,
    write_mixtures,
)

HERE = Path(__file__).parent
BATCHES = 12


def write_datasets(folder: Path, datasets: dict[str, tuple[int, int]] = DATASETS) -> None:
    """Write and prepare the datasets; texts are the dataset's letter and the sample's number."""
    from energon_stream import prepare_metadataset
    from energon_stream.testing.datasets import prepared_text_dataset

    for name, (shards, per_shard) in datasets.items():
        text = name[0] + "{}"
        prepared_text_dataset(folder / name, shards=shards, samples_per_shard=per_shard, text=text)
    write_mixtures(folder)
    prepare_metadataset(folder / "joined.yaml")


def pack_datasets(into: Path, folder: Path) -> None:
    """Write and prepare the datasets with whatever version is imported, and put them into an archive."""
    import pyarrow
    from pyarrow import parquet

    from energon_stream import add_table

    write_datasets(folder)
    shards, per_shard = DATASETS["a"]
    parquet.write_table(pyarrow.table({"score": range(shards * per_shard)}), folder / "scores.parquet")
    add_table(folder / "a", folder / "scores.parquet")
    (folder / "scores.parquet").unlink()
    with tarfile.open(into, "w:xz") as archive:
        archive.add(folder, ".")


def save(before: Path, after: Path, into: Path) -> None:
    """Save the states of all pipelines, with whatever version is imported."""
    import torch

    from energon_stream.state import VERSION, dumps

    ranks: dict[str, list[Any]] = {}
    state_dicts, expected = {}, {}
    for name, saved in PIPELINES.items():
        ranks[name] = []
        for rank in range(saved.world):
            with open_loader(saved, before, rank, saved.world, saved.workers) as loader:
                take(loader, saved.steps)
                ranks[name].append(loader.save_state_rank())
                if rank == 0:
                    state_dicts[name] = loader.state_dict()
        expected[name] = go_on(saved, after, ranks[name], BATCHES)
    pack_datasets(into / f"{VERSION}-datasets.tar.xz", after.parent / "packed")
    saved = PIPELINES["grown"]
    with open_loader(saved, after, 0, 1) as loader:  # saved again, while passes end in earlier shares
        loader.restore_state_global(ranks["grown"], on_change="continue")
        take(loader, 9)
        ranks["grown-again"] = [loader.save_state_rank()]
    expected["grown-again"] = go_on(saved, after, ranks["grown-again"], BATCHES)
    packed = {name: [dumps(state) for state in states] for name, states in ranks.items()}
    (into / f"{VERSION}-states.msgpack").write_bytes(dumps(packed))
    torch.save(ranks, into / f"{VERSION}-states.pt")
    torch.save(state_dicts, into / f"{VERSION}-state-dicts.pt")
    (into / f"{VERSION}-expected.json").write_text(json.dumps(expected, separators=(",", ":")) + "\n")


def main(checkout: str) -> None:
    """Write the datasets, then save the states in a process that imports the earlier version."""
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder) / "before", Path(folder) / "after"
        write_datasets(after)
        write_datasets(before, {**DATASETS, "grown": (LESS_GROWN, DATASETS["grown"][1])})
        subprocess.run(
            [sys.executable, __file__, "--save", str(before), str(after), str(HERE / "saved_states")],
            env={**os.environ, "PYTHONPATH": os.path.abspath(checkout)},
            check=True,
        )


if __name__ == "__main__":
    if sys.argv[1] == "--save":
        save(*map(Path, sys.argv[2:]))
    else:
        main(sys.argv[1])
