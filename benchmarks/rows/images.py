"""jpeg: images from cold, decoded in two workers."""

from __future__ import annotations

from bench import Bench, Measure, values
from datasets import BUCKET

from rows.figures import cold

LOADERS = ("ours", "webdataset", "litdata")
GOAL = {"photos": 0.85, "photos3k": 0.7}
LIMIT, ALONE = "received", "decode"
BINDS = "[the wait for the second batch](profiles.md#beside-somebody-who-receives-the-same-bytes), and memory speed"


def decoded(bench: Bench) -> list[Measure]:
    """jpeg: one pass from cold, H50, beside processes that decode from memory while the same bytes are
    received by plain GETs, and beside processes that only decode.
    """
    measures = []
    for dataset, goal in GOAL.items():
        spec = {"workers": 2, "cores": 2, "epochs": 1, "repeat": False, "decode": True}
        specs = {name: bench.remote(name, dataset, "H50", **spec) for name in LOADERS}
        endpoint = bench.server.endpoints["H50"]
        specs |= {
            LIMIT: bench.local("decode", dataset, endpoint=endpoint, bucket=BUCKET, **spec),
            ALONE: bench.local("decode", dataset, **spec),
        }
        runs = bench.rounds_of(specs)
        rates = values(runs, cold)
        alone = rates.pop(ALONE)
        count = runs["ours"][0].dataset.samples if runs["ours"] else 0
        where = f"{count:,} JPEGs of 256 x 256, Pillow, H50, first epoch from cold, two workers, two cores"
        received = f"share of what is decoded while the bytes are received, {where}"
        measures += [
            Measure("jpeg", where, "images/s", None, rates, (LIMIT,)),
            Measure("jpeg", received, "of 1", goal, _shares(rates, rates[LIMIT]), binds=BINDS),
            Measure("jpeg", f"share of decoding alone, {where}", "of 1", None, _shares(rates, alone)),
        ]
    return measures


def _shares(rates: dict[str, list[float]], limit: list[float]) -> dict[str, list[float]]:
    return {
        name: [rate / whole for rate, whole in zip(some, limit, strict=False)]
        for name, some in rates.items()
        if name != LIMIT
    }
