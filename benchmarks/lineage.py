"""Lineage: `python benchmarks/lineage.py --huge` and `--steps 100000`.

`--huge` makes up the metadata of 10⁹ samples in 10⁵ shards on the S3 stand-in (`.info.json` and `split.yaml`;
there are no tars and no `index.sqlite`), records the beginning of a run, and asks for step 10⁶ without keys.

`--steps N` trains N steps on three topologies with packs, skips and faults, and compares `which` with each
batch; `--skips-only` leaves out the packs.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from energon_stream import (
    DefaultTaskEncoder,
    SkipSample,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    open_run,
    stateless,
)
from energon_stream.lineage.recorder import RunRecorder
from energon_stream.pipeline.stream_runner import Rotation
from energon_stream.state import redistribute
from energon_stream.storage import default_counters
from energon_stream.testing.datasets import TEXT_YAML, write_shards

OPTIONS = {"batch_size": 8, "shuffle_buffer_size": 1000, "max_samples_per_sequence": 100}


def huge(shards, samples):
    """Ask for a step of a run over a dataset that has no bytes."""
    from energon_stream.storage import StoreSpec
    from energon_stream.testing.s3server import S3Server

    names = [f"data-{number:06d}.tar" for number in range(shards)]
    with S3Server() as server:
        server.create_bucket("lineage")
        options = server.storage_options
        store = StoreSpec("s3://lineage/data", options).open()
        store.put(".nv-meta/.info.json", json.dumps({"shard_counts": dict.fromkeys(names, samples)}).encode())
        split = {"split_parts": {"train": names, "val": [], "test": []}, "exclude": []}
        store.put(".nv-meta/split.yaml", json.dumps(split).encode())
        store.put(".nv-meta/dataset.yaml", json.dumps(TEXT_YAML).encode())
        url, run = "s3://lineage/data", "s3://lineage/runs/a"
        config = WorkerConfig(0, 8, 4)
        dataset = get_train_dataset(
            url, worker_config=config, storage_options=options, **{**OPTIONS, "batch_size": 32}
        )
        rotation = Rotation.start(dataset, config.streams)
        RunRecorder(dataset, run, options).begin(rotation, dict.fromkeys(rotation.streams))
        for step in (10**6, 10**6 + 1):
            before, begin = default_counters().snapshot(), time.perf_counter()
            (found,) = open_run(run, storage_options=options).which(step, rank=0, keys=False)
            seconds = time.perf_counter() - begin
            counted = default_counters().snapshot() - before
            print(
                f"{shards * samples:,} samples in {shards:,} shards: step {step:,} of a rank in {seconds:.2f} s, "
                f"requests {dict(counted.requests)}; first sample {found.samples[0]}"
            )


class Packing(DefaultTaskEncoder):
    """Skips, fails, and packs."""

    @stateless
    def encode_sample(self, sample):
        number = int(sample.__key__.rpartition("/")[2])
        if number % 7 == 0:
            raise SkipSample
        if number % 101 == 0:
            raise ValueError("a fault")
        return sample

    @stateless
    def select_samples_to_pack(self, samples):
        turned = samples[::-1]
        return [turned[place : place + 3] for place in range(0, len(turned), 3)]

    @stateless
    def pack_selected_samples(self, samples):
        return replace(samples[0], __key__="|".join(sample.__key__ for sample in samples))


def compare(steps, packs):
    """Train on three topologies, and compare each step."""
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        from energon_stream.prepare.prepare import prepare_dataset

        data, run = Path(folder, "data"), Path(folder, "run")
        write_shards(data, shards=10, samples_per_shard=1000, parts=lambda i: {"txt": b"text"})
        prepare_dataset(str(data), split_ratio=(1, 0, 0), dataset_yaml=TEXT_YAML)
        seen, states = [], None
        options = {**OPTIONS, "batch_size": 2, "packing_buffer_size": 12 if packs else None}
        begin = time.perf_counter()
        for world, share in ((2, 0.4), (4, 0.2), (1, 0.4)):
            loaders = []
            for rank in range(world):
                config = WorkerConfig(rank, world, 0, num_streams=4)
                dataset = get_train_dataset(
                    str(data), worker_config=config, task_encoder=Packing(), **options
                )
                loaders.append(get_savable_loader(dataset, run=run))
                if states is not None:
                    loaders[-1].restore_state_rank(redistribute(states, world)[rank])
            batches = [iter(loader) for loader in loaders]
            seen += [["|".join(next(each).__key__) for each in batches] for _ in range(round(steps * share))]
            states = [loader.save_state_rank() for loader in loaders]
            for loader in loaders:
                loader.close()
        print(f"{len(seen):,} steps trained in {time.perf_counter() - begin:.0f} s")
        size = sum(path.stat().st_size for path in run.rglob("*.log"))
        samples = sum(keys.count("|") + 1 for keys_of_ranks in seen for keys in keys_of_ranks)
        print(
            f"logs {size:,} bytes, {size / samples:.2f} a sample; run.json {(run / 'run.json').stat().st_size:,}"
        )
        opened, begin, different = open_run(str(run)), time.perf_counter(), 0
        shards = {f"data-{number:06d}.tar": number for number in range(10)}
        for step, keys in enumerate(seen):
            found = [
                "|".join(
                    f"{each.shard}/{shards[each.shard] * 1000 + each.index:08d}" for each in rank.samples
                )
                for rank in opened.which(step, keys=False)
            ]
            different += found != keys
        print(f"{different} of {len(seen):,} steps differ; compared in {time.perf_counter() - begin:.0f} s")
        return different


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--huge", action="store_true")
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--skips-only", action="store_true")
    given = parser.parse_args()
    if given.huge:
        huge(100_000, 10_000)
    if given.steps:
        sys.exit(compare(given.steps, not given.skips_only))
