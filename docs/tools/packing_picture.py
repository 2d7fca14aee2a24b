"""Draws the picture of docs/guides/balanced-packing.md: ``python docs/tools/packing_picture.py``."""

import sys
from pathlib import Path

import matplotlib as mpl

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from packing import first_fit_per_rank, mixed_lengths, planned  # noqa: E402

if __name__ == "__main__":
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    lengths = mixed_lengths()
    figure, panels = plt.subplots(1, 2, figsize=(9, 2.6), sharey=True)
    titles = ("each rank packs for itself", "planned for all ranks")
    for panel, title, loads in zip(
        panels, titles, (first_fit_per_rank(lengths)[0][0], planned(lengths, 1)[0][0]), strict=True
    ):
        panel.bar(range(len(loads)), loads / loads.mean(), width=1.0)
        panel.axhline((loads / loads.mean()).max(), color="black", linewidth=0.8)
        panel.set(title=title, xlabel="rank")
    panels[0].set_ylabel("load / mean")
    figure.tight_layout()
    figure.savefig(ROOT / "docs/guides/pictures/packing.png", dpi=80)
