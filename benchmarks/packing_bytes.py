"""Requests and bytes of planned packs of small samples: ``python benchmarks/packing_bytes.py``.

6,000 samples of 1 to 6 kB on four ranks of two streams, one pass; the last two steps of each rank, from which
on it reads the next pass, are left out. The server counts.
"""

from __future__ import annotations

import math
import sys
import tempfile
from pathlib import Path

import numpy as np

from energon_stream import ReadOptions, compute_costs
from energon_stream.testing.s3server import S3Server

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "packing"))
from packed import opened, taken, write
from test_packing_bytes import ranges

SAMPLES, RANKS, CAPACITY = 6000, 4, 32768
LENGTHS = np.random.default_rng(0).integers(1000, 6000, SAMPLES)
SHUFFLED = {"shuffle_buffer_size": 500, "max_samples_per_sequence": 100}
IN_ORDER = {"shuffle_buffer_size": None, "max_samples_per_sequence": None}


def row(server, name, steps, waste, view, **options):
    requests = size = 0
    for rank in range(RANKS):
        read = ReadOptions(max_waste=waste)
        common = {"read": read, "storage": server.storage_options, "num_streams": 8, "repeat": False}
        server.reset_counters()
        taken(opened("s3://bucket/texts", rank, RANKS, view=view, **common, **options), steps // RANKS - 2)
        found = ranges(server)
        requests, size = requests + len(found), size + sum(stop - start for _, start, stop in found)
    print(f"| {name} | {requests} | {size / server.tar_bytes:.2f} |", flush=True)


def main():
    with tempfile.TemporaryDirectory() as folder, S3Server(folder) as server:
        path = write(Path(folder) / "bucket" / "texts", LENGTHS, shard=500)
        compute_costs(path, "tokens", values=LENGTHS)
        server.tar_bytes = sum(tar.stat().st_size for tar in Path(path).glob("*.tar"))
        packs, planned = (
            int(LENGTHS.sum()) // CAPACITY,
            {"capacity": CAPACITY, "window": 8, "overlong": "error"},
        )
        print("| | requests | bytes ÷ tars |\n|---|--:|--:|")
        row(server, "without packs", SAMPLES, 0.3, None, pack=False, **SHUFFLED)
        row(server, "planned packs", packs, 0.3, None, **planned, **SHUFFLED)
        row(server, "max_waste=math.inf", packs, math.inf, None, **planned, **SHUFFLED)
        row(server, "in order", packs, math.inf, {"parallel_shard_iters": 1}, **planned, **IN_ORDER)


if __name__ == "__main__":
    main()
