"""Requests and bytes of planned packs of small samples: ``python benchmarks/packing_bytes.py``.

Samples of about 1, 4, 20 and 200 KB, ten a pack, on 1 and 4 ranks of 1, 2 and 8 streams, and on 64 ranks of
one. Each rank reads a pass, but for its last steps, from which on it reads the next pass. The server counts.
Without packs, too, the first ten samples are read in small requests: a step has as many samples.
``python benchmarks/packing_bytes.py "20 KB" 64`` counts one size on some ranks. 200 KB take 1.6 GB of disk.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

from energon_stream import ReadOptions, compute_costs, stateless
from energon_stream.testing.s3server import S3Server

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "packing"))
from packed import Packs, opened, taken, write
from test_packing_bytes import ranges

SIZES = {
    "1 KB": (1_000, 16_000),
    "4 KB": (4_000, 16_000),
    "20 KB": (20_000, 8_000),
    "200 KB": (200_000, 8_000),
    "200 KB, short": (200_000, 3_000),  # two steps of 4 × 8
}
STREAMS = {1: (1, 2, 8), 4: (1, 2, 8), 64: (1,)}
"""Streams of a rank, by the number of ranks."""
MANY, OF_MANY = 64, {"1 KB": 32_000, "4 KB": 32_000, "20 KB": 32_000}
"""Ranks that share a larger dataset, and its samples: windows are larger, too."""
CAPACITY, SHARD, SLICE, EACH = 8192, 500, 100, 10


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
        first = None if options.get("pack", True) else EACH
        opening = {
            "read": ReadOptions(first_samples=first),
            "storage": server.storage_options,
            "repeat": False,
        }
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


def rows(name, samples, all_ranks):
    draw, size = np.random.default_rng(0), SIZES[name][0]
    tokens = np.clip(draw.lognormal(np.log(650), 0.7, samples), 1, CAPACITY).astype(int)
    planned = {"capacity": CAPACITY, "window": 8, "overlong": "error"}
    with tempfile.TemporaryDirectory() as folder, S3Server(folder) as server:
        lengths = draw.integers(size // 2, size + size // 2, samples)
        path = write(Path(folder) / "bucket" / "texts", lengths, shard=SHARD)
        compute_costs(path, "tokens", values=tokens)
        server.tar_bytes = sum(tar.stat().st_size for tar in Path(path).glob("*.tar"))
        for ranks in all_ranks:
            for streams in STREAMS[ranks]:
                every = ranks * streams
                packs = int(tokens.sum()) // (CAPACITY * every) * every
                plain, _ = read(server, ranks, every, samples, pack=False)
                found, share = read(server, ranks, every, packs, **planned)
                print(f"| {name} | {ranks} × {streams} | {plain} | {found} | {found / plain:.1f} ", end="")
                print(f"| {share:.2f} |", flush=True)


def main():
    names = sys.argv[1:2] or list(SIZES)
    chosen = [int(ranks) for ranks in sys.argv[2:]] or list(STREAMS)
    print("| samples | ranks × streams | requests without packs | planned packs | ratio | bytes ÷ tars |")
    print("|---|---|--:|--:|--:|--:|")
    for name in names:
        rows(name, SIZES[name][1], [ranks for ranks in chosen if ranks != MANY])
        if name in OF_MANY and MANY in chosen:
            rows(name, OF_MANY[name], [MANY])


if __name__ == "__main__":
    main()
