"""Sizes of saved states for typical pipelines, and of large blends far into training; the tables of
docs/benchmarks/state.md.
"""

from __future__ import annotations

import statistics
import tempfile
import time

import numpy as np

from energon_stream import (
    BlendDataset,
    DefaultTaskEncoder,
    ShuffleBufferDataset,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
)
from energon_stream.index.dataset import WebDatasetIndex
from energon_stream.pipeline import BatchDataset
from energon_stream.pipeline.leaf import DatasetLeaf
from energon_stream.pipeline.reader_dataset import ReaderDataset
from energon_stream.schedule import BlendPlan, CursorCodec, LeafPlan, OrderSpec, RepeatPlan
from energon_stream.state import dumps
from energon_stream.state.digest import with_digest
from energon_stream.storage import StoreSpec
from energon_stream.testing.datasets import prepared_captioning_dataset

SOURCES, ROUNDS = 1000, 60


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


def typical():
    """Name of a pipeline to the bytes of its state."""
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
                    "splits": {"train": {"blend": [{"path": folder}] * SOURCES}},
                },
                worker_config=WorkerConfig(0, 1, 0),
                batch_size=4,
                shuffle_buffer_size=100,
                max_samples_per_sequence=100,
            ),
            "shuffle buffer of 100 batches of 4 (operator on batches)": ShuffleBufferDataset(train(), 100),
        }
        return {name: size(dataset) for name, dataset in rows.items()}


def unequal(mean_samples):
    """A thousand sources, their weights and their numbers of samples and shards log-normal; nothing is
    read.
    """
    random = np.random.default_rng(5)
    leaves, plans = [], []
    for number, samples in enumerate(random.lognormal(np.log(mean_samples), 1, SOURCES).astype(int) + 50):
        shards = max(1, samples // 1000)
        counts = random.integers(700, 1300, shards) if shards > 1 else np.array([samples])
        paths = tuple(f"data-{shard:06d}.tar" for shard in range(shards))
        index = WebDatasetIndex(StoreSpec(f"s3://lake/{number}"), "train", paths, counts)
        leaves.append(DatasetLeaf(index, None))
        plans.append(RepeatPlan(LeafPlan(number, index.shard_starts, OrderSpec(100, 100, 16, 1))))
    plan = BlendPlan(tuple(plans), tuple(random.lognormal(0, 1, SOURCES).tolist()))
    return ReaderDataset(leaves, plan, worker_config=WorkerConfig(0, 1, 0))


def median_microseconds(function, arguments):
    times = []
    for argument in arguments:
        begin = time.perf_counter()
        function(argument)
        times.append(1e6 * (time.perf_counter() - begin))
    return statistics.median(times)


def far_into_training(mean_samples):
    """Rows of what a stream's state has, and costs, after many samples."""
    source = unequal(mean_samples)
    loader = get_savable_loader(BatchDataset(source, 32, list))
    schedule = source.schedule(0)
    cursor, given = schedule.begin(), 0
    empty = loader.save_state_rank()
    for samples in (10**5, 10**6, 10**7):
        while given < samples:
            step = min(samples - given, 10**6)
            cursor, given = schedule.advance(cursor, step), given + step
        codec = CursorCodec(schedule)
        cursors = [cursor]
        for _ in range(ROUNDS):
            cursors.append(schedule.advance(cursors[-1], 32))
        packing = median_microseconds(codec.pack, cursors)
        node = {"in": {"epoch": 0, "at": codec.pack(cursor)}, "n": samples // 32, "end": False}
        state = {"batches": samples // 32, "node": node}
        rotation = [0, [], samples // 32, 0, 0]
        loader.restore_state_rank(with_digest({**empty, "rotation": rotation, "streams": {"0": state}}))
        saving = median_microseconds(lambda _: loader.save_state_rank(), range(ROUNDS))
        reading = median_microseconds(lambda at: CursorCodec(schedule).unpack(at), [node["in"]["at"]] * 5)
        passes = [at[1] for at in cursor[2]]
        whole = len(dumps(loader.save_state_rank()))
        yield samples, np.median(passes), max(passes), len(dumps(state)), whole, packing, saving, reading


def main():
    print("| pipeline | bytes |\n|---|--:|")
    for name, found in typical().items():
        print(f"| {name} | {found:,} |")
    for mean_samples in (3000, 100_000):
        samples = sum(leaf.index.num_samples for leaf in unequal(mean_samples).leaves)
        print(f"\n1,000 unequal sources, {samples / 1e6:.0f} million samples, unequal weights\n")
        print(
            "| samples given out | passes, median and most | bytes of the stream | of the rank's state | packing µs | saving µs | reading µs |"
        )
        print("|--:|--:|--:|--:|--:|--:|--:|")
        for given, passes, most, stream, whole, *times in far_into_training(mean_samples):
            numbers = " | ".join(f"{value:,.0f}" for value in times)
            print(f"| {given:,} | {passes:.0f}, {most} | {stream:,} | {whole:,} | {numbers} |")


if __name__ == "__main__":
    main()
