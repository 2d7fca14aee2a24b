"""Injects one bottleneck a run, and counts how often ``LoaderStats.verdict`` names it.

``python tests/verdicts/bottlenecks.py --runs 200 --seed 1`` draws kind, strength and number of workers of
each run. A run takes about four seconds.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from energon_stream import (
    CacheConfig,
    CaptioningSample,
    DefaultTaskEncoder,
    JobStats,
    LoaderStats,
    ReadOptions,
    WorkerConfig,
    get_loader,
    get_train_dataset,
)
from energon_stream.fork import run_isolated
from energon_stream.testing.datasets import prepared_binary_dataset, prepared_captioning_dataset
from energon_stream.testing.s3server import S3Server

SAMPLES, PAYLOAD, BATCH = 4000, 4000, 16
LEAST_BATCHES = 30
STEP = 0.004  # seconds of the training loop for a batch, where it is not the bottleneck
NARROW = ReadOptions(byte_budget=2 << 20, max_request=100_000, max_in_flight=2, max_ahead=400)


def work(seconds):
    """Keep a core busy."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


class Encoder(DefaultTaskEncoder):
    """Takes some time for a sample, and for a batch."""

    def __init__(self, sample_seconds=0.0, batch_seconds=0.0):
        super().__init__()
        self.sample_seconds, self.batch_seconds = sample_seconds, batch_seconds

    def encode_sample(self, sample):
        work(self.sample_seconds)
        if isinstance(sample, CaptioningSample):  # decoding is to be the bottleneck, and not moving pixels
            sample.image = sample.image[:, ::16, ::16].clone()
        return sample

    def batch(self, samples):
        work(self.batch_seconds)
        return super().batch(samples)


@dataclass(frozen=True)
class Run:
    """One run of a loader.

    Attributes:
        folder: Folder of the datasets.
        workers: Worker processes.
        seconds: How long batches are read, after the first one.
        step: Seconds of the training loop for a batch.
        dataset: The dataset's name.
        shaping: Speed and faults of the server; None for local files.
        sample_seconds: Time that ``encode_sample`` takes.
        batch_seconds: Time that ``batch`` takes.
        cached: Whether there is an empty cache.
        rank: The rank, of two.
    """

    folder: Path
    workers: int
    seconds: float
    step: float = STEP
    dataset: str = "small"
    shaping: dict | None = None
    sample_seconds: float = 0.0
    batch_seconds: float = 0.0
    cached: bool = False
    rank: int = 0

    def __call__(self) -> LoaderStats:
        """Run in a process of its own, which may fork."""
        return run_isolated(self._read)

    def _read(self) -> LoaderStats:
        if self.shaping is None:
            return self._iterate(str(self.folder / self.dataset))
        with S3Server(own_process=True) as server, tempfile.TemporaryDirectory() as cache:
            server.upload_folder(self.folder / self.dataset, f"s3://data/{self.dataset}")
            server.shape(**self.shaping)
            options = {"storage_options": server.storage_options, "read_options": NARROW}
            if self.cached:
                options["cache"] = CacheConfig(cache, "1GB", min_free_bytes=0)
            return self._iterate(f"s3://data/{self.dataset}", **options)

    def _iterate(self, path: str, **options) -> LoaderStats:
        dataset = get_train_dataset(
            path,
            batch_size=BATCH,
            shuffle_buffer_size=100,
            max_samples_per_sequence=50,
            task_encoder=Encoder(self.sample_seconds, self.batch_seconds),
            worker_config=WorkerConfig(self.rank, 2, self.workers),
            **options,
        )
        with get_loader(dataset) as loader:
            for _ in loader:
                time.sleep(self.step)
                stats = loader.stats()
                if stats.seconds > self.seconds and stats.batches > LEAST_BATCHES:
                    return stats
        raise AssertionError("the dataset is endless")


def slow_rank(run: Run, draw: random.Random) -> JobStats:
    """Two ranks, of which one has a slow store; the other one waits for it in its training loop."""
    slow = replace(run, rank=1, shaping={"first_byte_latency": draw.uniform(0.2, 0.5)})
    return JobStats((replace(run, step=0.03)(), slow()))


def alone(run: Run, draw: random.Random, change: Callable[[random.Random], dict]) -> LoaderStats:
    """One rank with a change."""
    return replace(run, **change(draw))()


def shaped(**options) -> dict:
    """A change of the server."""
    return {"shaping": options}


KINDS = {
    "store latency": partial(alone, change=lambda d: shaped(first_byte_latency=d.uniform(0.15, 0.5))),
    "store rate": partial(
        alone, change=lambda d: shaped(first_byte_latency=0.005, rate=d.uniform(100_000, 400_000))
    ),
    "throttling": partial(
        alone, change=lambda d: shaped(first_byte_latency=0.15, share_503=d.uniform(0.2, 0.5))
    ),
    "decode": partial(alone, change=lambda d: {"dataset": "images"}),
    "encode": partial(alone, change=lambda d: {"sample_seconds": d.uniform(0.001, 0.005)}),
    "collate": partial(alone, change=lambda d: {"batch_seconds": d.uniform(0.02, 0.08)}),
    "consumer": partial(alone, change=lambda d: {"step": d.uniform(0.02, 0.08)}),
    "cold cache": partial(
        alone, change=lambda d: {**shaped(first_byte_latency=d.uniform(0.1, 0.4)), "cached": True}
    ),
    "slow rank": slow_rank,
}


def write_datasets(folder: Path) -> None:
    """One of small samples, and one of images that take milliseconds to decode."""
    prepared_binary_dataset(folder / "small", shards=8, samples=SAMPLES, payload_bytes=PAYLOAD)
    prepared_captioning_dataset(folder / "images", shards=4, samples_per_shard=50, size=(1024, 1024))


def main() -> None:
    """Run, and say how often the verdict was right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    draw, right, runs = random.Random(options.seed), Counter(), Counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_datasets(folder)
        for number in range(options.runs):
            kind = [*KINDS][number % len(KINDS)]
            run = Run(folder, draw.choice([0, 1, 2]), options.seconds)
            verdict = KINDS[kind](run, draw).verdict
            runs[kind] += 1
            right[kind] += verdict.cause == kind
            if verdict.cause != kind:
                print(f"{number}: {kind} with {run.workers} workers: {verdict.cause}: {verdict}", flush=True)
    for kind in KINDS:
        print(f"{kind}: {right[kind]} of {runs[kind]}")
    print(f"{sum(right.values())} of {sum(runs.values())} right")


if __name__ == "__main__":
    main()
