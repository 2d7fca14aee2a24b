"""The rows: one function for each group of figures that the same runs give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import nginx_s3
import request_log
from bench import Bench, Measure, Run, values
from datasets import SAMPLES

PAYLOAD = SAMPLES * (40_000 + 80)
LOADERS = ("ours", "webdataset", "energon")
RAW = ("raw 16", "raw 32")
H50 = nginx_s3.PROFILES["H50"].latency


def _cold(run: Run) -> float:
    return SAMPLES / (run.result["ends"][0] - run.result["begin"])


def _steady(run: Run) -> float | None:
    ends = run.result["ends"]
    return SAMPLES * (len(ends) - 1) / (ends[-1] - ends[0]) if len(ends) > 1 else None


def _first(run: Run) -> float:
    return run.result["first"] - run.result["begin"]


def _where(workers: int) -> str:
    return "one worker" if workers else "in process"


def _throughput(bench: Bench, row: str, profile: str, goal: float) -> list[Measure]:
    measures = []
    for dataset, shards in (("d40x8", "8 shards of 21 MB"), ("d40x64", "64 shards of 2.6 MB")):
        for workers in (0, 1):
            specs: dict[str, dict[str, Any]] = {
                name: bench.remote(
                    name, dataset, profile, workers=workers, epochs=1 if name == "energon" else 4
                )
                for name in LOADERS
            }
            for name in RAW:
                in_flight = int(name.split()[1])
                specs[name] = bench.remote(
                    "raw", dataset + "/", profile, workers=workers, epochs=4, in_flight=in_flight
                )
            runs = bench.rounds_of(specs)
            where = f"{profile}, {shards}, {_where(workers)}"
            cold, steady = values(runs, _cold), values(runs, _steady)
            measures += [
                Measure(row, f"first epoch from cold, {where}", "samples/s", True, goal, cold, RAW),
                Measure(row, f"later epochs, {where}", "samples/s", True, goal, steady, RAW),
            ]
            if workers == 0 and profile == "H50":
                gigabytes = 4 * PAYLOAD / 1e9
                cpu = {
                    n: v for n, v in values(runs, lambda r: r.result.get("loop_cpu")).items() if n == "ours"
                }
                per_gb = {n: [x / gigabytes for x in v] for n, v in cpu.items()}
                measures.append(Measure("P13", f"whole loader's CPU, {where}", "s/GB", False, 3.0, per_gb))
    return measures


def throughput_h50(bench: Bench) -> list[Measure]:
    """P1: samples a second, storage 50 ms away."""
    return _throughput(bench, "P1", "H50", 6000)


def throughput_h200(bench: Bench) -> list[Measure]:
    """P2: the same, 200 ms away."""
    return _throughput(bench, "P2", "H200", 5000)


def first_batch(bench: Bench) -> list[Measure]:
    """P3, P4: from nothing to the first batch, index remote, after imports."""
    measures = []
    for workers in (0, 1):
        # Twenty batches, so that what was asked for before the first one is answered and logged in full.
        specs = {n: bench.remote(n, "d40x8", "H50", workers=workers, batches=20) for n in LOADERS}
        runs = bench.rounds_of(specs)
        where = f"H50, 8 shards, {_where(workers)}"
        measures += [
            Measure("P3", f"time to first batch, {where}", "s", False, 0.35, values(runs, _first)),
            Measure(
                "P3", f"sequential round trips before it, {where}", "", False, 5, _before(runs, "round_trips")
            ),
            Measure(
                "P4",
                f"arrived before the first batch, {where}",
                "MB",
                False,
                4,
                _before(runs, "arrived", 1e6),
            ),
            Measure("P4", f"asked for by then, {where}", "MB", False, None, _before(runs, "asked", 1e6)),
        ]
    return measures


def _before(runs: dict[str, list[Run]], what: str, unit: float = 1) -> dict[str, list[float]]:
    return values(runs, lambda r: request_log.until(r.requests, r.result["first"], H50)[what] / unit)


def resume(bench: Bench) -> list[Measure]:
    """P5: stop after 60 of 125 batches, go on in a new process with nothing cached."""
    measures = []
    tail, save_at = 30, 60
    names = ("ours", "energon")
    for workers in (0, 1):
        where = f"H50, 8 shards, {_where(workers)}"
        specs, whole = {}, {}
        for name in names:
            state = str(bench.scratch / f"{name}-{workers}.state")
            spec = bench.remote(name, "d40x8", "H50", workers=workers, state=state, digest=True)
            run = bench.run(spec | {"save_at": save_at, "batches": save_at + tail})
            if run is not None:
                whole[name] = run.result["digests"]
                specs[name] = spec | {"restore": True, "batches": tail}
        runs = bench.rounds_of(specs)
        equal = {
            name: [
                sum(a == b for a, b in zip(r.result["digests"], whole[name], strict=True)) / tail
                for r in some
            ]
            for name, some in runs.items()
            if some
        }
        measures += [
            Measure("P5", f"resume to first batch, {where}", "s", False, 0.35, values(runs, _first)),
            Measure("P5", f"arrived before it, {where}", "MB", False, 4, _before(runs, "arrived", 1e6)),
            Measure(
                "P5", f"next {tail} batches equal to the uninterrupted run's, {where}", "", True, 1, equal
            ),
        ]
    return measures


def requests(bench: Bench) -> list[Measure]:
    """P7, P8: requests and bytes over whole epochs."""
    measures = []
    for dataset, shards in (("d40x8", "8 shards"), ("d40x64", "64 shards")):
        where = f"H50, {shards}, in process"
        two = bench.rounds_of(
            {n: bench.remote(n, dataset, "H50", epochs=1 if n == "energon" else 2) for n in LOADERS}
        )
        one = bench.rounds_of({n: bench.remote(n, dataset, "H50", repeat=False) for n in LOADERS})
        measures += [
            Measure("P7", f"requests a sample, {where}", "", False, 0.02, values(two, _requests_a_sample)),
            Measure("P7", f"HEADs after the first batch, {where}", "", False, 0, values(two, _late_heads)),
            Measure("P7", f"most requests in flight, {where}", "", True, None, _count(two, "in_flight")),
            Measure(
                "P8",
                f"bytes a payload byte, one epoch, {where}",
                "",
                False,
                1.08,
                _count(one, "bytes", PAYLOAD),
            ),
        ]
        only = {"ours": bench.remote("ours", dataset, "H50", repeat=False, dataset_config="json_only.yaml")}
        json_runs = bench.rounds_of(only)
        json_bytes = _count(json_runs, "bytes", PAYLOAD)
        measures.append(
            Measure("P8", f"the same, only the JSON part wanted, {where}", "", False, 0.05, json_bytes)
        )
    return measures


def _requests_a_sample(run: Run) -> float:
    return len(run.requests) / run.result["samples"]


def _late_heads(run: Run) -> float:
    return sum(r.method == "HEAD" and r.start > run.result["first"] for r in run.requests)


def _count(runs: dict[str, list[Run]], what: str, unit: float = 1) -> dict[str, list[float]]:
    return values(runs, lambda r: request_log.counts(r.requests)[what] / unit)


def local(bench: Bench) -> list[Measure]:
    """P12: local files, nothing decoded, 36 kB samples of 3 parts."""
    runs = bench.rounds_of({n: bench.local(n, "p12", epochs=4) for n in (*LOADERS, "mmap")})
    where = "36 kB samples of 3 parts, in process"
    return [
        Measure(
            "P12", f"local, first epoch, {where}", "samples/s", True, 40_000, values(runs, _cold), ("mmap",)
        ),
        Measure(
            "P12",
            f"local, later epochs, {where}",
            "samples/s",
            True,
            40_000,
            values(runs, _steady),
            ("mmap",),
        ),
    ]


GROUPS: dict[Callable[[Bench], list[Measure]], tuple[str, ...]] = {
    throughput_h50: ("P1", "P13"),
    throughput_h200: ("P2",),
    first_batch: ("P3", "P4"),
    resume: ("P5",),
    requests: ("P7", "P8"),
    local: ("P12",),
}
