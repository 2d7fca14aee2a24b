"""Fill rates and times of the ready-made packers, on made-up token counts of three kinds."""

from __future__ import annotations

import time

import numpy as np

from energon_stream.task.packers import best_fit_decreasing, first_fit, histogram_pack

CAPACITY, BUFFER = 4096, 1000


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


if __name__ == "__main__":
    main()
