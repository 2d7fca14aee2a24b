"""Measures the cost of copies to a GPU for a step: with ``prefetch_to_device``, and copied in the step.

Batches of 64 images of 3 x 384 x 384 float32 (113 MB) come from four workers; the step is products of
matrices for about 110 ms. Prints medians of the steps of interleaved rounds. Without CUDA, nothing is copied
and small matrices are multiplied on the CPU: a trial.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from energon_stream import DefaultTaskEncoder, WorkerConfig, get_savable_loader, get_train_dataset, stateless
from energon_stream.integrations.device import prefetch_to_device
from energon_stream.testing.datasets import prepared_captioning_dataset

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIDE = 8192 if DEVICE == "cuda" else 64


class Pictures(DefaultTaskEncoder):
    """Gives each sample a picture of the usual size."""

    @stateless
    def encode_sample(self, sample: Any) -> dict[str, torch.Tensor]:
        return {"image": torch.full((3, 384, 384), 1.0), "length": torch.tensor(len(sample.caption))}

    def batch(self, samples: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        return {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}


def moved(loader: Any) -> Iterator[Any]:
    """Copy each batch when the step wants it."""
    for batch in loader:
        yield {name: value.to(DEVICE) for name, value in batch.items()}


def resident(loader: Any) -> Iterator[Any]:
    """Copy one batch, and give it again and again: what a step takes without copies."""
    batch = next(moved(loader))
    while True:
        yield batch


def wait() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def timed(batches: Iterator[Any], step: Callable[[Any], None], steps: int) -> float:
    """Return the median seconds of a step, the wait for its batch included."""
    taken = []
    for batch in islice(batches, 3):
        step(batch)
    wait()
    for _ in range(steps):
        begin = time.perf_counter()
        step(next(batches))
        wait()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=25)
    options = parser.parse_args()
    matrix = torch.randn(SIDE, SIDE, device=DEVICE, dtype=torch.bfloat16)

    def step(batch: Any) -> None:
        batch["image"].sum()
        for _ in range(70):
            torch.mm(matrix, matrix)

    ways = {"no copy": resident, "copy in the step": moved, "prefetch_to_device": None}
    found: dict[str, list[float]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as folder:
        data = prepared_captioning_dataset(Path(folder) / "data", shards=8, samples_per_shard=64)
        for _ in range(options.rounds):
            for name, way in ways.items():
                dataset = get_train_dataset(
                    str(data),
                    batch_size=64,
                    shuffle_buffer_size=10,
                    max_samples_per_sequence=10,
                    worker_config=WorkerConfig(0, 1, 4),
                    task_encoder=Pictures(),
                )
                loader = get_savable_loader(dataset)
                batches = iter(prefetch_to_device(loader, DEVICE)) if way is None else way(loader)
                found[name].append(timed(batches, step, options.steps))
                loader.close()
    for name, seconds in found.items():
        print(
            f"{name}: {1000 * statistics.median(seconds):.1f} ms a step ({', '.join(f'{1000 * s:.1f}' for s in seconds)})"
        )


if __name__ == "__main__":
    main()
