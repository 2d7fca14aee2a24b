"""Measures twelve profiles, and predicts them: ``python benchmarks/simulated.py``.

A pass from cold in this process, at 1, 50 and 200 ms, over samples of 40 kB and 4 kB in 8 and 64 shards,
beside what ``energon_stream.tools.simulate`` says. The costs are CPU times of runs at 1 ms; nothing is fitted
to a figure that is predicted.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path

import datasets
import nginx_s3
import numpy as np
from bench import Bench, Run
from candidates import BATCH, WINDOW
from rows.figures import cold, first

from energon_stream import WorkerConfig
from energon_stream.tools.simulate import Costs, Prediction, StoreModel, simulate

PROFILES = ("H1", "H50", "H200")
DATASETS = ("d40x8", "d40x64", "size4k", "size4kx64")
FIGURES = ("samples/s", "first batch, s", "requests")


def main() -> None:
    """Measure, predict, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        root = Path(scratch) / "objects"
        datasets.write(root, DATASETS)
        with nginx_s3.serve(root) as server:
            bench = Bench(server, root, Path(scratch), args.rounds, {"ours", "costs"}, {})
            specs = {
                f"{profile} {name}": bench.remote("ours", name, profile, epochs=1)
                for profile in PROFILES
                for name in DATASETS
            }
            calibration = {f"costs {name}": bench.remote("costs", name, "H1") for name in DATASETS}
            # Many requests for the same bytes tell what a request costs.
            small = {"read_options": {"max_request": 256 << 10}}
            calibration["costs small"] = bench.remote("costs", DATASETS[0], "H1", **small)
            runs = bench.rounds_of({**specs, **calibration})
        costs = calibrate(root, {name: runs.pop(f"costs {name}") for name in (*DATASETS, "small")})
        print(costs)
        print("| profile | " + " | ".join(f"{each} | predicted | ratio" for each in FIGURES) + " |")
        print("|---|" + "--:|" * 3 * len(FIGURES))
        for name, some in runs.items():
            profile, dataset = name.split()
            found = predict(root, dataset, profile, costs)
            show(name, [figures(run) for run in some], found)


def figures(run: Run) -> tuple[float, float, int]:
    """Samples a second, seconds to the first batch, and requests of a run."""
    return cold(run), first(run), len(run.requests)


def calibrate(root: Path, runs: dict[str, list[Run]]) -> Costs:
    """Return the costs that explain CPU times at 1 ms best, by least squares.

    Opening is what is left of the time to the first batch there, halfway between the least and the most.
    """
    names = ("samples", "requests", "bytes", "reading")
    medians = [
        [statistics.median(run.result[name] for run in some) for name in names] for some in runs.values()
    ]
    rows, times = np.array(medians)[:, :3], np.array(medians)[:, 3]
    rows /= times[:, None]  # relative errors count
    scale = rows.max(axis=0)
    solved, *_ = np.linalg.lstsq(rows / scale, np.ones(len(times)), rcond=None)
    sample, request, byte = (solved / scale).tolist()
    costs = Costs(sample=sample - Costs().planning, request=request, byte=byte, opening=0.0, is_one_core=True)
    left = [
        statistics.median(run.result["first"] for run in some) - predict(root, name, "H1", costs).first_batch
        for name, some in runs.items()
        if name in DATASETS
    ]
    return replace(costs, opening=max(0.0, (min(left) + max(left)) / 2))


def predict(root: Path, dataset: str, profile: str, costs: Costs) -> Prediction:
    """Predict a pass."""
    about = nginx_s3.PROFILES[profile]
    store = StoreModel(latency=about.latency, rate_per_connection=about.rate, burst=about.chunk)
    return simulate(
        root / datasets.BUCKET / dataset,
        store,
        costs=costs,
        batch_size=BATCH,
        worker_config=WorkerConfig(0, 1, 0),
        shuffle_buffer_size=WINDOW,
        max_samples_per_sequence=WINDOW,
    )


def show(name: str, measured: list[tuple[float, float, int]], found: Prediction) -> None:
    """Print a line of the table."""
    predicted = found.samples_per_second, found.first_batch, found.requests
    cells = []
    for values, guess, digits in zip(zip(*measured, strict=True), predicted, (0, 3, 0), strict=True):
        median = statistics.median(values)
        cells += [f"{median:,.{digits}f}", f"{guess:,.{digits}f}", f"{guess / median:.2f}"]
    print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
