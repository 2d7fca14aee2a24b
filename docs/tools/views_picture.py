"""Draws the picture of docs/guides/views.md: ``python docs/tools/views_picture.py``."""

import math
from pathlib import Path

import matplotlib as mpl
import numpy as np

from energon_stream.storage import plan_fetches

ROOT = Path(__file__).parents[2]
MAX_GAP, MAX_REQUEST = 32 << 10, 6 << 20


def fetched(size, chosen, waste):
    """Return the requests for some samples with a payload of ``size`` bytes."""
    numbers, each = np.flatnonzero(chosen), 512 + -(-size // 512) * 512
    starts, all_of_them = numbers * each, np.ones(len(numbers), dtype=bool)
    limits = {"max_gap": MAX_GAP, "max_bytes": MAX_REQUEST, "sparse": all_of_them, "max_waste": waste}
    return plan_fetches(np.zeros(len(numbers), int), starts, starts + each, all_of_them, **limits), each


if __name__ == "__main__":
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (strips, curve) = plt.subplots(1, 2, figsize=(9, 2.8), width_ratios=(1.4, 1))
    chosen = np.random.default_rng(3).random(120) < 0.1
    rows = (math.inf, 0.3, 0.0)
    for row, waste in enumerate(rows):
        plan, each = fetched(10_000, chosen, waste)
        requests = list(zip(plan.starts / each, (plan.stops - plan.starts) / each, strict=True))
        strips.broken_barh(
            requests, (row - 0.4, 0.8), facecolors="tab:orange", edgecolors="black", linewidth=0.6
        )
        strips.broken_barh([(n, 1) for n in np.flatnonzero(chosen)], (row - 0.2, 0.4), facecolors="tab:blue")
    strips.set_yticks(range(len(rows)), ["max_waste\n= inf", "0.3", "0"])
    strips.set(title="requests (boxes) for samples of a view (blue)", xlabel="samples of a shard, 10 kB each")
    chosen = np.random.default_rng(0).random(100_000) < 0.1
    for size in (1_000, 4_000, 10_000, 40_000):
        plans = [
            fetched(size, chosen, waste) for waste in (0, 0.1, 0.3, 0.5, 1, 1.5, 2, 3, 4, 6, 9, math.inf)
        ]
        payload = chosen.sum() * plans[0][1]
        spent = [(plan.stops - plan.starts).sum() / payload for plan, _ in plans]
        curve.plot(
            spent, [len(plan.starts) / chosen.sum() for plan, _ in plans], ".-", label=f"{size // 1000} kB"
        )
    curve.axvline(1.3, color="black", linewidth=0.6)
    curve.set(title="a view of 10 %", xlabel="bytes / payload", ylabel="requests a sample", ylim=(0, 1))
    curve.legend()
    figure.tight_layout()
    figure.savefig(ROOT / "docs/guides/pictures/views.png", dpi=80)
