"""jpeg: images from cold, decoded in two workers."""

from __future__ import annotations

from bench import Bench, Measure, values

from rows.figures import cold

LOADERS = ("ours", "webdataset", "litdata")
GOAL = {"photos": 0.93, "photos3k": 0.8}
LIMIT = "decode"


def decoded(bench: Bench) -> list[Measure]:
    """jpeg: one pass from cold, H50, beside processes that only decode."""
    measures = []
    for dataset, goal in GOAL.items():
        spec = {"workers": 2, "cores": 2, "epochs": 1, "repeat": False, "decode": True}
        specs = {name: bench.remote(name, dataset, "H50", **spec) for name in LOADERS}
        runs = bench.rounds_of(specs | {LIMIT: bench.local(LIMIT, dataset, **spec)})
        rates = values(runs, cold)
        shares = {
            name: [cold(run) / cold(limit) for run, limit in zip(runs[name], runs[LIMIT], strict=False)]
            for name in LOADERS
        }
        count = runs["ours"][0].dataset.samples if runs["ours"] else 0
        where = f"{count:,} JPEGs of 256 x 256, Pillow, H50, first epoch from cold, two workers, two cores"
        measures += [
            Measure("jpeg", where, "images/s", None, rates, (LIMIT,)),
            Measure("jpeg", f"share of decoding alone, {where}", "of 1", goal, shares),
        ]
    return measures
