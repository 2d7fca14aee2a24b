"""Requests and bytes of planned packs of small samples: ``python benchmarks/packing_bytes.py``.

Samples of about 1, 20 and 200 KB, ten a pack, on 1 and 4 ranks of 1, 2 and 8 streams. Each rank reads one
pass, but for its last steps, from which on it reads the next pass. The server counts.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

from energon_stream import ReadOptions, compute_costs, stateless
from energon_stream.testing.s3server import S3Server

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "packing"))
from packed import Packs, opened, taken, write
from test_packing_bytes import ranges

SIZES = {"1 KB": (1_000, 16_000), "20 KB": (20_000, 8_000), "200 KB": (200_000, 3_000)}
RANKS, STREAMS, CAPACITY, SHARD, SLICE = (1, 4), (1, 2, 8), 8192, 500, 100


class Keys(Packs):
    """A pack is the keys of its samples."""

    @stateless
    def pack_selected_samples(self, samples):
        return [sample.__key__ for sample in samples]


def read(server, ranks, streams, steps, **options):
    """Return the requests of all ranks, and their bytes over those of the tars."""
    requests = size = 0
    for rank in range(ranks):
        server.reset_counters()
        opening = {"read": ReadOptions(), "storage": server.storage_options, "repeat": False}
        order = {
            "shuffle_buffer_size": 500,
            "max_samples_per_sequence": SLICE,
            "num_streams": streams,
            "encoder": Keys,
        }
        taken(
            opened("s3://bucket/texts", rank, ranks, **opening, **order, **options),
            (steps - 2 * streams) // ranks,
        )
        found = ranges(server)
        requests, size = requests + len(found), size + sum(stop - start for _, start, stop in found)
    return requests, size / server.tar_bytes


def main():
    draw = np.random.default_rng(0)
    planned = {"capacity": CAPACITY, "window": 8, "overlong": "error"}
    print("| samples | ranks × streams | requests without packs | planned packs | ratio | bytes ÷ tars |")
    print("|---|---|--:|--:|--:|--:|")
    for name, (size, samples) in SIZES.items():
        tokens = np.clip(draw.lognormal(np.log(650), 0.7, samples), 1, CAPACITY).astype(int)
        with tempfile.TemporaryDirectory() as folder, S3Server(folder) as server:
            lengths = draw.integers(size // 2, size + size // 2, samples)
            path = write(Path(folder) / "bucket" / "texts", lengths, shard=SHARD)
            compute_costs(path, "tokens", values=tokens)
            server.tar_bytes = sum(tar.stat().st_size for tar in Path(path).glob("*.tar"))
            for ranks in RANKS:
                for streams in STREAMS:
                    every = ranks * streams
                    packs = int(tokens.sum()) // (CAPACITY * every) * every
                    plain, _ = read(server, ranks, every, samples, pack=False)
                    found, share = read(server, ranks, every, packs, **planned)
                    print(
                        f"| {name} | {ranks} × {streams} | {plain} | {found} | {found / plain:.1f} ", end=""
                    )
                    print(f"| {share:.2f} |", flush=True)


if __name__ == "__main__":
    main()
