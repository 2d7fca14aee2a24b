"""Sizes of saved states for typical pipelines; the table of docs/state.md."""

from __future__ import annotations

import tempfile

from energon_stream import (
    BlendDataset,
    DefaultTaskEncoder,
    ShuffleBufferDataset,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
)
from energon_stream.state import dumps
from energon_stream.testing.datasets import prepared_captioning_dataset


class Packs(DefaultTaskEncoder):
    def select_samples_to_pack(self, samples):
        return [samples[i : i + 4] for i in range(0, len(samples), 4)]

    def pack_selected_samples(self, samples):
        return samples[0]


def size(dataset, batches=7):
    with get_savable_loader(dataset) as loader:
        for _ in zip(range(batches), loader, strict=False):
            pass
        return len(dumps(loader.save_state_rank()))


def main():
    with tempfile.TemporaryDirectory() as folder:
        prepared_captioning_dataset(folder, shards=8, samples_per_shard=200, split_ratio=(1, 0, 0))

        def train(**kwargs):
            options = {"batch_size": 4, "shuffle_buffer_size": 100, "max_samples_per_sequence": 100}
            return get_train_dataset(folder, worker_config=WorkerConfig(0, 1, 0), **{**options, **kwargs})

        rows = {
            "one dataset, batches of 4, shuffle window 100": train(),
            "the same, shuffle window 10,000": train(shuffle_buffer_size=10_000),
            "packing buffer of 100, about 25 groups pending": train(
                packing_buffer_size=100, task_encoder=Packs()
            ),
            "blend of three datasets": BlendDataset(*[(train(), 1.0) for _ in range(3)]),
            "blend of 1,000 datasets in a metadataset": get_train_dataset(
                {
                    "__module__": "megatron.energon",
                    "__class__": "MetadatasetV2",
                    "splits": {"train": {"blend": [{"path": folder}] * 1000}},
                },
                worker_config=WorkerConfig(0, 1, 0),
                batch_size=4,
                shuffle_buffer_size=100,
                max_samples_per_sequence=100,
            ),
            "shuffle buffer of 100 batches of 4 (operator on batches)": ShuffleBufferDataset(train(), 100),
        }
        print("| pipeline | bytes |\n|---|--:|")
        for name, dataset in rows.items():
            print(f"| {name} | {size(dataset):,} |")


if __name__ == "__main__":
    main()
