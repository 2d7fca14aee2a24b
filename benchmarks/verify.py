"""The price of comparing samples with their checksums, on the undecoded local path, which is the fastest.

Prints CPU microseconds a sample and CPU seconds a gigabyte, the median of interleaved rounds, for each value
of ``ReadOptions(verify=…)``.

    python benchmarks/verify.py --payload 36000

With ``--names``, prints what comparing names takes instead, the fastest of 3,000 calls.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from energon_stream import DefaultTaskEncoder, ReadOptions, WorkerConfig, get_train_dataset
from energon_stream.index.sample_names import hash_names, other_names
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.testing.datasets import CRUDE_YAML, random_bytes, write_shards

MODES = ("never", "sampled", "always")


class Count(DefaultTaskEncoder):
    decoder = None

    def batch(self, samples):
        return len(samples)


def cpu_seconds(folder: str, mode: str) -> float:
    """CPU seconds of one pass in this process."""
    dataset = get_train_dataset(
        folder,
        batch_size=100,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        repeat=False,
        worker_config=WorkerConfig(0, 1, 0),
        task_encoder=Count(),
        read_options=ReadOptions(verify=mode),
    )
    begin = time.process_time()
    for _ in dataset:
        pass
    return time.process_time() - begin


def print_names() -> None:
    """Print what comparing the names of a request's samples takes."""
    with tempfile.TemporaryDirectory() as folder:
        parts = {"bin": bytes(36_000)}
        [path] = write_shards(Path(folder), shards=1, samples_per_shard=96, parts=lambda index: parts)
        data = memoryview(path.read_bytes())
    starts = np.arange(96) * (36_352 + 512)
    expected = hash_names([bytes(data[start : start + 100]).rstrip(b"\0").decode() for start in starts])
    for count in (8, 24, 60, 96):
        places = np.arange(count)
        marks = []
        for _ in range(3_000):
            marks.append(time.perf_counter())
            assert not other_names(expected[places], data, starts[:count], starts[:count] + 36_864)
        fastest = min(after - before for before, after in itertools.pairwise(marks)) * 1e6
        print(f"{count:3} samples: {fastest:5.1f} µs a request, {fastest / count:.2f} µs a sample")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--payload", type=int, default=36_000, help="bytes of the largest of three parts")
    parser.add_argument("--samples", type=int, default=24_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--names", action="store_true", help="measure the comparison of names")
    options = parser.parse_args()
    if options.names:
        print_names()
        return
    data = random_bytes(options.payload, 0)
    parts = {"bin": data, "json": b"1" * 80, "txt": b"x" * 20}
    with tempfile.TemporaryDirectory() as folder:
        shards = 8
        write_shards(
            Path(folder),
            shards=shards,
            samples_per_shard=options.samples // shards,
            parts=lambda index: parts,
        )
        begin = time.process_time()
        prepare_dataset(folder, split_ratio=(1, 0, 0), dataset_yaml=CRUDE_YAML)
        plain = time.process_time() - begin
        begin = time.process_time()
        prepare_dataset(folder, split_ratio=(1, 0, 0), dataset_yaml=CRUDE_YAML, checksums=True, force=True)
        gigabytes = options.samples * options.payload / 1e9
        extra = (time.process_time() - begin - plain) / gigabytes
        print(f"prepare --checksums: {extra:.2f} CPU-s/GB more")
        seconds: dict[str, list[float]] = {mode: [] for mode in MODES}
        for _ in range(options.rounds):
            for mode in MODES:
                seconds[mode].append(cpu_seconds(folder, mode))
        first = statistics.median(seconds["never"])
        for mode in MODES:
            found = statistics.median(seconds[mode])
            pairs = zip(seconds[mode], seconds["never"], strict=True)
            ratio = statistics.median(one / other for one, other in pairs) - 1
            print(
                f"{mode:8} {found / options.samples * 1e6:6.2f} µs a sample, {ratio:+.1%} CPU, "
                f"{(found - first) / gigabytes:.3f} CPU-s/GB more"
            )


if __name__ == "__main__":
    main()
