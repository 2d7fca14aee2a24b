"""P16: how well batches are mixed, and what that costs at the start."""

from __future__ import annotations

from bench import Bench, Measure, values
from datasets import DATASETS

from rows.figures import before, first, requests_a_sample

BATCH = 32
PEERS = ("webdataset", "mosaicml", "litdata")
SETTINGS = {
    "16 slices side by side, shuffle window 100": (16, {"parallel_shard_iters": 16}),
    "32 slices side by side, shuffle window 1,000": (32, {"parallel_shard_iters": 32, "window": 1000}),
}


def spread(bench: Bench) -> list[Measure]:
    """P16: distinct source shards of a batch of 32, with 64 shards; P3, P4 and P7 of the same runs."""
    measures = []
    per_shard = DATASETS["d40x64"].per_shard
    for number, (setting, (window, options)) in enumerate(SETTINGS.items()):
        names = ("ours",) if number else ("ours", *PEERS)
        specs = {}
        for name in names:
            extra = options if name == "ours" else {}
            specs[name] = bench.remote(name, "d40x64", "H50", repeat=False, per_shard=per_shard, **extra)
        runs = bench.rounds_of(specs)
        goal = 0.9 * min(BATCH, window)
        distinct = values(runs, lambda r: r.result["spread"])
        measures += [
            Measure("P16", f"source shards a batch of 32, of 64, {setting}", "shards", goal, distinct),
            Measure("P16", f"time to first batch, H50, {setting}", "s", 0.35, values(runs, first)),
            Measure("P16", f"arrived before it, {setting}", "MB", 4, values(runs, before("arrived", 1e6))),
            Measure("P16", f"requests a sample, {setting}", "", 0.02, values(runs, requests_a_sample)),
        ]
    return measures
