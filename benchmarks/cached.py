"""The node's cache in training: its speed against local files, and what it saves.

    python benchmarks/cached.py            # both
    python benchmarks/cached.py --hits     # P9 only

Speed: later epochs of D40 out of the cache of a bucket that is 50 ms away, and from the same files on disk,
in interleaved rounds, one process each; read there, and by a worker of it. P9: epochs of 1 GB through caches
of a tenth to nine tenths of it against the S3 stand-in, which counts the bytes that it sends; each epoch is
in another order. The cache's own count of misses has to agree with the server's. (LRU is compared by
benchmarks/cache_policy.py: it keeps what is open, and short runs have all open.)
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import datasets
import nginx_s3

from energon_stream.testing.s3server import S3Server

SHARES = (0.1, 0.25, 0.5, 0.9)
EPOCHS = 6
WORKERS = (0, 1)
LARGE = "long50"
FIRST = 2  # epochs that fill the cache
PROGRAM = """
import json, sys, time
import energon_stream as es
from energon_stream.cache import shared_cache

@es.stateless
def keep(sample):
    return dict(sample)

class Encoder(es.DefaultTaskEncoder):
    decoder = None
    cookers = [es.Cooker(keep)]

    def batch(self, samples):
        return {name: [sample[name] for sample in samples] for name in ("__key__", "bin", "json")}

spec = json.loads(sys.argv[1])
cache = es.CacheConfig(**spec["cache"]) if spec["cache"] else False
options = {"endpoint_url": spec["endpoint"], "key": "x", "secret": "x"} if spec["endpoint"] else None
dataset = es.get_train_dataset(
    spec["path"], worker_config=es.WorkerConfig(rank=0, world_size=1, num_workers=spec.get("workers", 0)), batch_size=32, shuffle_buffer_size=100,
    max_samples_per_sequence=100, task_encoder=Encoder(), storage_options=options, cache=cache,
    read_options=es.ReadOptions(first_samples=32, **spec.get("read", {})),
)
marks, count, begin = [], 0, time.perf_counter()
with es.get_loader(dataset) as loader:
    for batch in loader:
        count += len(batch["bin"])
        if count >= spec["samples"] * (len(marks) + 1):
            now = time.perf_counter()
            kept = shared_cache(cache).counters() if cache else None
            marks.append([now - begin, kept.hit_bytes if kept else 0, kept.missed_bytes if kept else 0])
            begin = now
            if len(marks) == spec["epochs"]:
                break
print(json.dumps(marks))
"""


def run(**spec: object) -> list[list[float]]:
    """Seconds and received bytes (since the start) of each epoch, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(spec)], capture_output=True, text=True, timeout=300
    )
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    marks: list[list[float]] = json.loads(done.stdout)
    return marks


def speed(root: Path, scratch: Path, rounds: int) -> None:
    """Print later epochs from the cache against local files."""
    samples = datasets.DATASETS["d40x8"].samples
    rates: dict[tuple[str, int], list[float]] = {}
    with nginx_s3.serve(root) as server:
        config = {"directory": str(scratch / "speed"), "max_bytes": "2GB", "min_free_bytes": 0}
        specs = {
            "local": {"path": str(root / datasets.BUCKET / "d40x8"), "cache": None, "endpoint": None},
            "cached": {
                "path": f"s3://{datasets.BUCKET}/d40x8",
                "cache": config,
                "endpoint": server.endpoints["H50"],
            },
        }
        run(**specs["cached"], samples=samples, epochs=1)
        for _ in range(rounds):
            for workers in WORKERS:
                for name, spec in specs.items():
                    marks = run(**spec, samples=samples, epochs=EPOCHS, workers=workers)
                    rate = statistics.median(samples / seconds for seconds, *_ in marks[1:])
                    rates.setdefault((name, workers), []).append(rate)
    for (name, workers), found in rates.items():
        print(
            f"{name}, {workers} workers: {statistics.median(found):,.0f} samples/s"
            f" ({min(found):,.0f} to {max(found):,.0f})"
        )
    for workers in WORKERS:
        pairs = zip(rates["cached", workers], rates["local", workers], strict=True)
        ratios = [one / other for one, other in pairs]
        print(
            f"cached / local, {workers} workers: {statistics.median(ratios):.2f}"
            f" ({min(ratios):.2f} to {max(ratios):.2f})"
        )


def hits(root: Path, scratch: Path) -> None:
    """Print P9: hits of steady epochs, as a share of what can be hit."""
    samples = datasets.DATASETS[LARGE].samples
    folder = root / datasets.BUCKET / LARGE
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    # A small look-ahead, or a good part of the next epoch would be counted with this one.
    read = {"byte_budget": 32 << 20}
    print("| share c of the data that fits | " + " | ".join(map(str, SHARES)) + " |")
    print("|---|" + "--:|" * len(SHARES))
    with S3Server(own_process=True) as server:
        server.upload_folder(folder, f"s3://bucket/{LARGE}")
        row = []
        for share in SHARES:
            most = int(size * share)
            cache = {"directory": str(scratch / str(share)), "max_bytes": most, "min_free_bytes": 0}
            row.append(_hits_of_an_epoch(server, cache, samples, read) / share)
        print("| hits ÷ (c × reads) | " + " | ".join(f"{value:.3f}" for value in row) + " |")


def _hits_of_an_epoch(
    server: S3Server, cache: dict[str, object], samples: int, read: dict[str, int]
) -> float:
    """Share of the bytes read in later epochs that came from the cache."""
    server.reset_counters()
    options = {"path": f"s3://bucket/{LARGE}", "endpoint": server.storage_options["endpoint_url"]}
    marks = run(**options, cache=cache, read=read, samples=samples, epochs=EPOCHS)
    sent, missed = server.counters().bytes_sent, marks[-1][2]
    if not missed <= sent <= 1.05 * missed + 64 * 2**20:  # what was asked for twice, and what is on its way
        raise SystemExit(f"the server sent {sent} bytes, the cache counted {missed}")
    hits, missed = (marks[-1][column] - marks[FIRST - 1][column] for column in (1, 2))
    return hits / (hits + missed)


def main() -> None:
    """Parse the command line, make the data, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--hits", action="store_true", help="P9 only")
    only.add_argument("--speed", action="store_true", help="speed only")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        root = Path(scratch) / "objects"
        datasets.write(root, ["d40x8", LARGE])
        if not args.speed:
            hits(root, Path(scratch))
        if not args.hits:
            speed(root, Path(scratch), args.rounds)


if __name__ == "__main__":
    main()
