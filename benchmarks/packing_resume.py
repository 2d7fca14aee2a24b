"""Random resumes of planned packing, also within a carried sample: ``python benchmarks/packing_resume.py``.

A run of one rank is saved after each batch. Each resume takes one of these states to a random number of
ranks, with and without workers, and compares the next batches of a random rank with those of the run.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections import Counter

import numpy as np

from energon_stream import (
    DefaultTaskEncoder,
    PlannedPacking,
    ReadOptions,
    ShardWriter,
    WorkerConfig,
    compute_costs,
    get_savable_loader,
    get_train_dataset,
    stateless,
)

SAMPLES, CAPACITY, STREAMS, BATCHES, COMPARED = 600, 100, 8, 480, 6
RANKS = (1, 2, 4, 8)
EVERY = 20
"""One resume of this number has two workers."""


class Packs(DefaultTaskEncoder):
    """A pack is the key and the part of each of its samples."""

    @stateless
    def pack_selected_samples(self, samples):
        return [(s.__key__, part.start, part.stop) for s, part in zip(samples, samples.parts, strict=True)]

    @stateless
    def batch(self, samples):
        return samples


def write(folder):
    """Texts with a long tail: one of seven is longer than a pack."""
    lengths = np.clip(np.random.default_rng(0).lognormal(3.6, 1.0, SAMPLES), 1, 400).astype(int)
    described = {"sample_type": {"__module__": "megatron.energon", "__class__": "TextSample"}}
    described["field_map"] = {"text": "txt"}
    ratio = {"train": 1.0, "val": 0.0, "test": 0.0}
    with ShardWriter(folder, max_count=50, split_ratio=ratio, dataset_yaml=described) as out:
        for number, length in enumerate(lengths.tolist()):
            out.write({"__key__": f"{number:05}", "txt": b"x" * length})
    compute_costs(folder, "tokens", values=lengths)
    return dict(zip((f"{number:05}" for number in range(SAMPLES)), lengths.tolist(), strict=True))


def opened(folder, rank, world, workers):
    packing = PlannedPacking("tokens", CAPACITY, window=2, overlong="split")
    return get_train_dataset(
        folder,
        batch_size=1,
        shuffle_buffer_size=100,
        max_samples_per_sequence=20,
        worker_config=WorkerConfig(rank, world, workers, num_streams=STREAMS),
        task_encoder=Packs(),
        packing=packing,
        read_options=ReadOptions(max_ahead=32),
    )


def carried(values, lengths):
    """Return for each number of consumed batches whether a sample is consumed in part."""
    begun, left = {}, Counter()
    within = np.zeros(len(values) + 1, dtype=bool)
    for batch, (pack,) in enumerate(values):
        for key, start, stop in pack:
            name = key.rpartition("/")[2]
            if name not in begun:
                begun[name], left[name] = batch, lengths[name]
            left[name] -= stop - start
            if not left[name]:
                within[begun.pop(name) + 1 : batch + 1] = True
    return within


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--resumes", type=int, default=1000)
    options = parser.parse_args()
    draw, begin = random.Random(0), time.perf_counter()
    with tempfile.TemporaryDirectory() as place:
        folder = f"{place}/texts"
        lengths = write(folder)
        loader = get_savable_loader(opened(folder, 0, 1, 0))
        values, states = [], [loader.save_state_rank()]
        for _, batch in zip(range(BATCHES), loader, strict=False):
            values.append(batch)
            states.append(loader.save_state_rank())
        loader.close()
        within = carried(values, lengths)
        datasets = {}
        counts = Counter()
        for number in range(options.resumes):
            world = draw.choice(RANKS)
            rank = draw.randrange(world)
            workers = 2 if number % EVERY == 0 and STREAMS // world >= 2 else 0
            at = draw.randrange(0, BATCHES - COMPARED * world, world)
            which = rank, world, workers
            if which not in datasets:
                datasets[which] = opened(folder, *which)
            with get_savable_loader(datasets[which]) as resumed:
                resumed.restore_state_global([states[at]])
                found = [batch for _, batch in zip(range(COMPARED), resumed, strict=False)]
            expected = values[at + rank :: world][:COMPARED]
            counts["exact"] += found == expected
            counts["within a carried sample"] += bool(within[at])
            counts["on other ranks"] += world > 1
            counts["with workers"] += workers > 0
    rest = ", ".join(f"{count} {name}" for name, count in counts.items() if name != "exact")
    print(f"{options.resumes} resumes: {counts['exact']} exact; {rest}; {time.perf_counter() - begin:.0f} s")
    if counts["exact"] != options.resumes:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
