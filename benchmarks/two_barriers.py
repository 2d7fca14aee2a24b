"""Balance of planned packs with two costs over 64 ranks: ``python benchmarks/two_barriers.py``.

``tests/packing/test_two_barriers.py`` makes the sets, and adds up the raw costs in the packs of each rank
and step. For each, and 1, 2, 4 and 8 packs a rank: the slowest rank over the
mean of text and vision, as the mean of steps and the worst one; the time of all steps, with the bound of any
plan of these packs; the fill, by whichever cost is fuller; the mean of steps after 1 % of skipped samples and
after 10⁵ steps; and microseconds of CPU time a sample to plan.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "packing"))
from test_two_barriers import KINDS, RANKS, delivered, made, planned, ratios, rooms

SAMPLES = 60_000


def pair(values):
    return ", ".join(f"{value:.3f}" for value in values)


def row(kind, each):
    costs = made(kind, SAMPLES)
    job = planned(costs, each)
    begin = time.process_time()
    window = job.window(0, 0, job.job.begin())
    microseconds = 1e6 * (time.process_time() - begin) / window.count
    sums = delivered(job, costs, each)
    skipped = delivered(job, costs, each, skipped=np.random.default_rng(9).random(SAMPLES) < 0.01)
    # 10^5 steps of 64 ranks have at most this number of samples.
    late = job.job.advance(job.job.begin(), 100_000 * window.count // 8)
    later = delivered(job, costs, each, start=late)
    time_of, bound = [], []
    for number in range(2):
        first = sums[:8, ..., number].astype(float)
        mean = first.sum() / RANKS
        time_of.append(first.sum(axis=2).max(axis=1).sum() / mean)
        heaviest = np.sort(first.ravel())[::-1][::RANKS].sum() / mean
        bound.append(heaviest if each == 1 else 1.0)
    fill = (sums / rooms(*costs)).max(axis=3).mean()
    cells = (
        pair(ratios(sums).mean(axis=0)),
        pair(ratios(sums).max(axis=0)),
        pair(time_of),
        pair(bound),
        f"{fill:.3f}",
        pair(ratios(skipped).mean(axis=0)),
        pair(ratios(later).mean(axis=0)),
        f"{microseconds:.1f}",
    )
    print(f"| {kind.__name__} | {each} | {' | '.join(cells)} |", flush=True)


def main():
    print("| set | packs a rank | mean of steps | worst step | time | bound | fill | 1 % skipped ", end="")
    print("| after 10⁵ steps | µs a sample |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    for each in (1, 2, 4, 8):
        for kind in KINDS:
            row(kind, each)


if __name__ == "__main__":
    main()
