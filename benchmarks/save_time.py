"""Milliseconds that saving a rank's state takes in the main process; quoted by docs/benchmarks/state.md."""

from __future__ import annotations

import statistics
import tempfile
import time
from itertools import islice

from energon_stream import WorkerConfig, get_savable_loader, get_train_dataset
from energon_stream.state import dumps
from energon_stream.testing.datasets import prepared_captioning_dataset

ROUNDS, WORKERS = 200, 2


def blend(folder, sources):
    return {
        "__module__": "megatron.energon",
        "__class__": "MetadatasetV2",
        "splits": {"train": {"blend": [{"path": folder}] * sources}},
    }


def milliseconds(function):
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        function()
        times.append(1000 * (time.perf_counter() - begin))
    return f"{statistics.median(times):.3f} ({min(times):.3f} to {max(times):.3f})"


def main():
    print(
        "| sources | streams of the rank | save_state_rank, ms | state_dict, ms | state, bytes |\n|--:|--:|--:|--:|--:|"
    )
    with tempfile.TemporaryDirectory() as folder:
        prepared_captioning_dataset(folder, shards=8, samples_per_shard=200, split_ratio=(1, 0, 0))
        for sources in (1, 1000):
            for streams in (1, 24):
                dataset = get_train_dataset(
                    blend(folder, sources),
                    worker_config=WorkerConfig(0, 1, WORKERS, num_streams=streams),
                    batch_size=4,
                    shuffle_buffer_size=100,
                    max_samples_per_sequence=100,
                )
                with get_savable_loader(dataset) as loader:
                    for _ in islice(loader, 3 * streams):
                        pass
                    saved, by_stream = milliseconds(loader.save_state_rank), milliseconds(loader.state_dict)
                    size = len(dumps(loader.save_state_rank()))
                print(f"| {sources:,} | {streams} | {saved} | {by_stream} | {size:,} |", flush=True)


if __name__ == "__main__":
    main()
