"""Profile one run of our loader in a row, and print where its time goes.

    python benchmarks/profile_row.py P1
    python benchmarks/profile_row.py P2 --dataset d40x64 --epochs 1

Says how long the main thread computed and waited, in which functions, what the other threads and processes
cost, and what the server had to do meanwhile. Sampling costs little, but some: compare its shares, not its
speed, with the row's.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import datasets
import nginx_s3
import request_log
from bench import Bench, Run

# Dataset, profile (None for local files) and the rest of the spec.
ROWS: dict[str, tuple[str, str | None, dict[str, Any]]] = {
    "P1": ("d40x8", "H50", {"epochs": 8}),
    "P1worker": ("d40x8", "H50", {"epochs": 8, "workers": 1}),
    "P2": ("d40x8", "H200", {"epochs": 8}),
    "P3": ("d40x8", "H50", {"batches": 1}),
    "P10": ("long400", "F20", {"repeat": False}),
    "P11": ("long400", "T2", {"repeat": False}),
    "P10clean": ("long400", "H50", {"repeat": False}),
    "P12": ("p12", None, {"epochs": 8}),
    "P12views": ("p12", None, {"epochs": 8, "raw_parts": "memoryview"}),
    "P12workers": ("p12", None, {"epochs": 8, "workers": 2, "cores": 2}),
    "P16": (
        "d40x64",
        "H50",
        {"repeat": False, "per_shard": 62, "parallel_shard_iters": 32, "window": 1000},
    ),
    "long": ("long50", "H50", {"epochs": 1}),
    "H1": ("d40x8", "H1", {"epochs": 8}),
    "streams": ("d40x8", "H50", {"epochs": 8, "streams": 24}),
    "sizes": ("size4k", "H50", {"epochs": 4}),
    "1GB": ("huge1", "H50", {"epochs": 2}),
    "jpeg": (
        "photos3k",
        "H50",
        {"epochs": 1, "workers": 2, "cores": 2, "repeat": False, "decode": True},
    ),
}
BINS = 24


def main() -> None:
    """Parse the command line, run once, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("row", choices=ROWS)
    parser.add_argument("--dataset", choices=datasets.DATASETS)
    parser.add_argument("--profile", choices=nginx_s3.PROFILES)
    parser.add_argument("--epochs", type=int)
    args = parser.parse_args()
    dataset, profile, spec = ROWS[args.row]
    dataset, profile = args.dataset or dataset, args.profile or profile
    if args.epochs:
        spec = {k: v for k, v in spec.items() if k not in ("batches", "repeat")} | {"epochs": args.epochs}
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        root = Path(scratch) / "objects"
        datasets.write(root, [dataset])
        with nginx_s3.serve(root) as server:
            bench = Bench(server, root, Path(scratch), 1, {"ours"}, {})
            whole = spec | {"sample_time": True}
            made = (
                bench.remote("ours", dataset, profile, **whole)
                if profile
                else bench.local("ours", dataset, **whole)
            )
            run = bench.run(made)
    if run is None:
        raise SystemExit("\n".join(bench.notes))
    print(f"{args.row}: {dataset}, {profile or 'local files'}, {spec}")
    _client(run)
    if profile:
        _server(run)


def _client(run: Run) -> None:
    found = run.result["profile"]
    wall, rest = found["wall"], found["wall"] - found["main_cpu"]
    moments = ", ".join(f"{end - run.result['begin']:.2f}" for end in run.result["ends"])
    first = run.result["first"] - run.result["begin"]
    print(f"\nwall {wall:.2f} s: first batch at {first:.3f} s, epochs' ends at {moments or '-'} s")
    print(f"main thread: computing {found['main_cpu']:.2f} s ({found['main_cpu'] / wall:.0%}), ", end="")
    print(f"waiting (for bytes, the GIL or the core) {rest:.2f} s ({rest / wall:.0%})")
    print(f"other threads: {found['other_cpu']:.2f} CPU-s; all {run.result['loop_cpu'] / wall:.0%} of a core")
    samples = run.result["samples"]
    for number, (user, system, pages) in enumerate(run.result["used"]):
        each = f"{user / samples * 1e6:.1f} + {system / samples * 1e6:.1f} us of CPU time (user + system)"
        busy = f"{(user + system) / wall:.0%} of a core"
        name = f"worker {number}" if number else "main process"
        print(f"{name}: a sample of all takes {each}, {pages / samples:.1f} new pages; {busy}")
    for kind in ("computing", "waiting"):
        _shares(kind, found[kind], sum(sum(found[k].values()) for k in ("computing", "waiting")))


def _shares(kind: str, samples: Mapping[str, int], total: int) -> None:
    print(f"\n{kind}, share of {total} samples of the wall time (caller of ours > innermost)")
    for where, n in samples.items():
        if n >= total / 200:
            print(f"  {n / total:6.1%}  {where}")


def _server(run: Run) -> None:
    some = run.requests
    counts = request_log.counts(some)
    statuses: dict[int, int] = {}
    for r in some:
        statuses[r.status] = statuses.get(r.status, 0) + 1
    said = ", ".join(f"{n} x {status}" for status, n in sorted(statuses.items()))
    print(
        f"\nserver: {counts['get']} GET, {counts['head']} HEAD ({said}), {counts['bytes'] / 1e6:.1f} MB, ",
        end="",
    )
    print(f"at most {counts['in_flight']} at once; over time, until the last batch:")
    begin = run.result["begin"]
    end = begin + run.result["profile"]["wall"]
    step = (end - begin) / BINS
    print("    s   MB/s sent   requests in flight   MB asked for and not yet sent")
    for k in range(BINS):
        low, high = begin + k * step, begin + (k + 1) * step
        sent, busy, pending = request_log.between(some, low, high)
        bar = "#" * round(sent / step / 40e6)
        print(f"{k * step:6.2f} {sent / step / 1e6:9.0f} {busy:15.1f} {pending / 1e6:20.1f}       {bar}")


if __name__ == "__main__":
    main()
