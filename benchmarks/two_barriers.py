"""Balance of planned packs with two costs over 64 ranks: ``python benchmarks/two_barriers.py``.

``tests/packing/test_two_barriers.py`` makes the sets, and adds up the raw costs in the packs of each rank
and step. For each, and 1, 2, 4 and 8 packs a rank: the slowest rank over the
mean of text and vision, as the mean of steps and the worst one; the time of all steps, with the bound of any
plan of these packs and that of any packs (``least_time``); the fill, by whichever cost is fuller; the mean of
steps after 1 % of skipped samples and after 10⁵ steps; and CPU time a sample to plan the first window, and
the worst of the first six, in microseconds of a quiet core (``test_planning_work.py`` has the yardstick).
``python benchmarks/two_barriers.py 4`` prints this for four packs a rank.

``python benchmarks/two_barriers.py run`` (or ``run 4``, for four packs a rank) reads the first three sets
with 64 ranks, one after another in one process, and adds up the raw costs of the samples that each rank's
loader gives in each step, beside what ``forecast`` says of them.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from energon_stream import (
    DefaultTaskEncoder,
    PlannedPacking,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    stateless,
)
from energon_stream.index.jsonl_index import prepare_jsonl
from energon_stream.tools.simulate import forecast

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "packing"))
from test_planning_work import seconds_of_work
from test_two_barriers import KINDS, RANKS, delivered, made, planned, ratios, rooms

SAMPLES = 60_000
WINDOWS, TRIES = 6, 3  # whose planning is timed, and how often: one of them is hardly disturbed


def pair(values):
    return ", ".join(f"{value:.3f}" for value in values)


def least_time(costs, number, room, packs):
    """Return a bound on the time of all steps for one cost, whatever the packs, over that of even ranks.

    The rank that has the largest sample takes that long in some step. All ranks have as much in this step, or
    time is lost: at most what the samples have that have most of the cost for their text, while the step's
    ``packs`` have room for text.
    """
    ratio = costs[:, number] / costs[:, 0]
    text, cost = costs[np.argsort(-ratio)].T[[0, number]].astype(float)
    most = np.interp(packs * room, np.cumsum(text), np.cumsum(cost))
    return 1 + max(0.0, (RANKS * cost.max() - most) / cost.sum())


def planning(costs, each):
    """Return microseconds a sample to plan each of the first windows."""
    at, found = planned(costs, each).job.begin(), []
    for number in range(WINDOWS):
        tries = []
        for _ in range(TRIES):
            job = planned(costs, each)
            yardstick, begin = seconds_of_work() / 0.022, time.process_time()
            window = job.window(0, number, at)
            tries.append(1e6 * (time.process_time() - begin) / yardstick / window.count)
        at = window.after
        found.append(min(tries))
    return found


def row(kind, each):
    costs = made(kind, SAMPLES)
    job = planned(costs, each)
    window = job.window(0, 0, job.job.begin())
    microseconds = planning(costs, each)
    sums = delivered(job, costs, each)
    skipped = delivered(job, costs, each, skipped=np.random.default_rng(9).random(SAMPLES) < 0.01)
    # 10^5 steps of 64 ranks have at most this number of samples.
    late = job.job.advance(job.job.begin(), 100_000 * window.count // 8)
    later = delivered(job, costs, each, start=late)
    samples = np.concatenate([own.refs.index for own in window.streams])
    own = np.stack([cost[samples] for cost in costs], axis=1)
    time_of, bound, least = [], [], []
    for number in range(2):
        first = sums[:8, ..., number].astype(float)
        mean = first.sum() / RANKS
        time_of.append(first.sum(axis=2).max(axis=1).sum() / mean)
        heaviest = np.sort(first.ravel())[::-1][::RANKS].sum() / mean
        bound.append(heaviest if each == 1 else 1.0)
        least.append(least_time(own, number, rooms(*costs)[0], RANKS * each))
    fill = (sums / rooms(*costs)).max(axis=3).mean()
    cells = (
        pair(ratios(sums).mean(axis=0)),
        pair(ratios(sums).max(axis=0)),
        pair(time_of),
        pair(bound),
        pair(least),
        f"{fill:.3f}",
        pair(ratios(skipped).mean(axis=0)),
        pair(ratios(later).mean(axis=0)),
        f"{microseconds[0]:.1f}, {max(microseconds):.1f}",
    )
    print(f"| {kind.__name__} | {each} | {' | '.join(cells)} |", flush=True)


class Keys(DefaultTaskEncoder):
    """A pack is the numbers of its samples."""

    @stateless
    def pack_selected_samples(self, samples):
        return [int(sample["__key__"]) for sample in samples]

    @stateless
    def batch(self, samples):
        return samples[0]


def run(kind, each, steps=8):
    costs = np.stack(made(kind, SAMPLES), axis=1)
    text, vision = rooms(*costs.T)
    packing = PlannedPacking(
        {"text": costs[:, 0], "vision": costs[:, 1]},
        {"text": text, "vision": vision},
        load="linear",
        global_batch_size=RANKS * each,
    )
    options = {"batch_size": 1, "shuffle_buffer_size": 500, "max_samples_per_sequence": 100, "cache": False}
    sums = np.zeros((steps, RANKS, 2))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "samples.jsonl")
        path.write_text("".join(f'{{"text": "{number}"}}\n' for number in range(SAMPLES)))
        prepare_jsonl(str(path))
        for rank in range(RANKS):
            config = WorkerConfig(rank, RANKS, 0, num_streams=RANKS)
            dataset = get_train_dataset(
                str(path), worker_config=config, task_encoder=Keys(), packing=packing, **options
            )
            with get_savable_loader(dataset) as loader:
                for number, pack in zip(range(steps * each), loader, strict=False):
                    sums[number // each, rank] += costs[pack].sum(axis=0)
        config = WorkerConfig(0, RANKS, 0, num_streams=RANKS)
        plan = forecast(str(path), steps=steps * each, worker_config=config, packing=packing, **options)
    found = sums.max(axis=1) / sums.mean(axis=1)
    predicted = np.array([(own.mean, own.worst) for own in plan.balance.values()]).T
    measured = np.stack([found.mean(axis=0), found.max(axis=0)])
    cells = [pair(row) for row in (*measured, *predicted)]
    difference = np.abs(measured - predicted).max()
    print(f"| {kind.__name__} | {each} | {' | '.join(cells)} | {difference:.0e} |", flush=True)


def main():
    if sys.argv[1:2] == ["run"]:
        print("| set | packs a rank | delivered: mean of steps | worst step | planned: mean ", end="")
        print("| worst step | difference |\n|---|--:|--:|--:|--:|--:|--:|")
        for each in map(int, sys.argv[2:] or "1248"):
            for kind in KINDS[:3]:
                run(kind, each)
        return
    print("| set | packs a rank | mean of steps | worst step | time | bound | of any packs | fill ", end="")
    print(
        "| 1 % skipped | after 10⁵ steps | µs a sample: first, worst |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
    )
    for each in map(int, sys.argv[1:] or "1248"):
        for kind in KINDS:
            row(kind, each)


if __name__ == "__main__":
    main()
