"""Fill of the ready-made packers, and balance of planned packs: ``python benchmarks/packing.py``."""

from __future__ import annotations

import itertools
import re
import sysconfig
import time
from pathlib import Path

import numpy as np

from energon_stream.schedule import JobPacks, LeafPlan, OrderSpec, PackSpec, RepeatPlan, build_schedule
from energon_stream.task.packers import best_fit_decreasing, first_fit, histogram_pack

CAPACITY, BUFFER = 4096, 1000

RANKS, MICRO_BATCHES, LONG = 64, 4, 8192


def mixed_lengths(count=60_000):
    """Half texts, log-normal with a long tail; half images of three sizes with a caption."""
    rng = np.random.default_rng(0)
    texts = rng.lognormal(np.log(600), 1.2, count)
    images = rng.choice([576, 1024, 2048], count) + rng.lognormal(np.log(80), 0.8, count)
    return np.clip(np.where(rng.random(count) < 0.5, texts, images), 1, LONG).astype(np.int64)


def text_lengths():
    """Words and signs in the functions and classes of Python's own library."""
    found = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*/*.py")):
        text = path.read_text(errors="replace")
        found += [len(re.findall(r"\w+|[^\w\s]", part)) for part in text.split("\n\n\n")]
    return np.clip([length for length in found if length], 1, LONG).astype(np.int64)


def planned(lengths, windows=4):
    """Return the loads of ranks by step, the fill, and microseconds a sample of planned packs."""
    plan = RepeatPlan(LeafPlan(0, np.array([0, len(lengths)]), OrderSpec(100, 0, 16, 1)))
    spec = PackSpec(LONG, RANKS * MICRO_BATCHES, 8, "quadratic", "error")
    job = JobPacks(build_schedule(plan, num_streams=1, stream=0, key=1), spec, (lengths,), RANKS, 1)
    steps, tokens, samples, cursor = [], 0, 0, job.job.begin()
    begin = time.perf_counter()
    for number in range(windows):
        window = job.window(0, number, cursor)
        cursor = window.after
        rows = []
        for own in window.streams:
            sizes = own.stop - own.start
            bounds = [0, *own.ends[MICRO_BATCHES - 1 :: MICRO_BATCHES]]
            rows.append([float((sizes[a:b] ** 2.0).sum()) for a, b in itertools.pairwise(bounds)])
            tokens, samples = tokens + int(sizes.sum()), samples + len(sizes)
        steps += np.array(rows).T.tolist()
    seconds = time.perf_counter() - begin
    return np.array(steps), tokens / (len(steps) * spec.step * LONG), 1e6 * seconds / samples


def first_fit_per_rank(lengths, steps=8):
    """Return the loads of ranks by step where each rank packs its own samples."""
    mixed = np.random.default_rng(1).choice(lengths, (RANKS, 400 * steps // 8))
    loads = np.zeros((steps, RANKS))
    for rank, own in enumerate(mixed):
        packs = [sum(float(own[at]) ** 2 for at in pack) for pack in first_fit(own.tolist(), LONG)]
        packs = [packs[at % len(packs)] for at in range(steps * MICRO_BATCHES)]
        loads[:, rank] = np.reshape(packs, (steps, MICRO_BATCHES)).sum(axis=1)
    return loads


def uneven(loads):
    """Return the load of the slowest rank over the mean: the mean of all steps, and the worst."""
    ratios = loads.max(axis=1) / loads.mean(axis=1)
    return float(ratios.mean()), float(ratios.max())


def balance():
    print("\n| lengths | first fit per rank | planned, mean and worst step | fill | µs a sample |")
    print("|---|--:|--:|--:|--:|")
    for name, lengths in (("texts and images", mixed_lengths()), ("Python's library", text_lengths())):
        loads, fill, microseconds = planned(lengths)
        before, (mean, worst) = uneven(first_fit_per_rank(lengths))[0], uneven(loads)
        print(f"| {name} | {before:.2f} | {mean:.3f}, {worst:.3f} | {fill:.3f} | {microseconds:.1f} |")


def main():
    rng = np.random.default_rng(0)
    kinds = {
        "captions (log-normal, mean 300)": rng.lognormal(5.4, 0.7, BUFFER),
        "documents (uniform 1 to 4096)": rng.uniform(1, CAPACITY, BUFFER),
        "images (256, 576 or 1024, and text)": rng.choice([256, 576, 1024], BUFFER)
        + rng.integers(10, 200, BUFFER),
    }
    print(
        f"| {BUFFER:,} samples, packs of {CAPACITY:,} | packer | packs | fill | ms |\n|---|---|--:|--:|--:|"
    )
    for name, values in kinds.items():
        sizes = np.clip(values, 1, CAPACITY).astype(int).tolist()
        for packer in (first_fit, best_fit_decreasing, histogram_pack):
            begin = time.perf_counter()
            groups = packer(sizes, CAPACITY)
            milliseconds = 1000 * (time.perf_counter() - begin)
            fill = sum(sizes) / (CAPACITY * len(groups))
            print(f"| {name} | `{packer.__name__}` | {len(groups)} | {fill:.3f} | {milliseconds:.1f} |")

    balance()


if __name__ == "__main__":
    main()
