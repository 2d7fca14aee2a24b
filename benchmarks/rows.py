"""The rows: one function for each group of figures that the same runs give."""

from __future__ import annotations

from collections.abc import Callable

import nginx_s3
import request_log
from bench import Bench, Measure, Run, values
from datasets import SAMPLES

SAMPLE_BYTES = 40_000 + 80
TAR_BYTES = 512 + 40_448 + 512 + 512  # the same with headers and padding
PAYLOAD = SAMPLES * SAMPLE_BYTES
LOADERS = ("ours", "webdataset", "energon")
RAW = {"raw 16": 16, "raw 32": 32}
FAST = ("ours", "webdataset")  # Megatron-Energon takes minutes for an epoch at 50 ms: see peers' own figures
EPOCHS = {"ours": 8, "webdataset": 1, "energon": 1}  # the slow ones settle at once
WHERE = {0: "in process", 1: "one worker"}
CUTS = {"d40x8": "8 shards of 21 MB", "d40x64": "64 shards of 2.6 MB"}
H50 = nginx_s3.PROFILES["H50"].latency


def _cold(run: Run) -> float:
    return SAMPLES / (run.result["ends"][0] - run.result["begin"])


def _steady(run: Run) -> float | None:
    ends = run.result["ends"]
    return SAMPLES * (len(ends) - 1) / (ends[-1] - ends[0]) if len(ends) > 1 else None


def _first(run: Run) -> float:
    return run.result["first"] - run.result["begin"]


def _before(what: str, unit: float = 1) -> Callable[[Run], float]:
    """What the server had seen or sent when the first batch was there."""
    return lambda r: request_log.until(r.requests, r.result["first"], H50)[what] / unit


def _count(what: str, unit: float = 1) -> Callable[[Run], float]:
    return lambda r: request_log.counts(r.requests)[what] / unit


def _later_requests(run: Run) -> float | None:
    """Requests a sample fetched after the first epoch; look-ahead fetches more than is consumed."""
    if len(run.result["ends"]) < 2:
        return None
    later = [r for r in run.requests if r.start > run.result["ends"][0]]
    return len(later) * TAR_BYTES / max(1, sum(r.nbytes for r in later))


def _throughput(bench: Bench, row: str, profile: str, goal: float) -> list[Measure]:
    measures = []
    for dataset, workers in [(d, w) for d in CUTS for w in WHERE]:
        common = {"dataset": dataset, "profile": profile, "workers": workers}
        names = FAST if workers == 0 and profile == "H50" else ("ours",)
        specs = {n: bench.remote(n, epochs=EPOCHS[n], **common) for n in names}
        specs |= {n: bench.remote("raw", epochs=8, in_flight=k, **common) for n, k in RAW.items()}
        runs = bench.rounds_of(specs)
        where = f"{profile}, {CUTS[dataset]}, {WHERE[workers]}"
        cold, steady = values(runs, _cold), values(runs, _steady)
        measures += [
            Measure(row, f"first epoch from cold, {where}", "samples/s", goal, cold, tuple(RAW)),
            Measure(row, f"later epochs, {where}", "samples/s", goal, steady, tuple(RAW)),
        ]
        if workers == 0 and profile == "H50":
            ours = {"ours": runs["ours"]}  # of the others, a part runs in processes of their own
            cpu = values(ours, lambda r: r.result["loop_cpu"] / (r.result["samples"] * SAMPLE_BYTES / 1e9))
            measures.append(Measure("P13", f"whole loader's CPU, {where}", "s/GB", 3.0, cpu))
    return measures


def throughput_h50(bench: Bench) -> list[Measure]:
    """P1, P13: samples a second with the storage 50 ms away, and what they cost."""
    return _throughput(bench, "P1", "H50", 6000)


def throughput_h200(bench: Bench) -> list[Measure]:
    """P2: samples a second with the storage 200 ms away."""
    return _throughput(bench, "P2", "H200", 5000)


def first_batch(bench: Bench) -> list[Measure]:
    """P3, P4: from nothing to the first batch, index remote, after imports."""
    measures = []
    for workers, where in WHERE.items():
        # Twenty batches, so that what was asked for before the first one is answered and logged in full.
        runs = bench.rounds_of(
            {n: bench.remote(n, "d40x8", "H50", workers=workers, batches=20) for n in LOADERS}
        )
        trips = values(runs, _before("round_trips"))
        arrived, asked = values(runs, _before("arrived", 1e6)), values(runs, _before("asked", 1e6))
        measures += [
            Measure("P3", f"time to first batch, H50, {where}", "s", 0.35, values(runs, _first)),
            Measure("P3", f"round trips one after another before it, H50, {where}", "", 5, trips),
            Measure("P4", f"arrived before the first batch, H50, {where}", "MB", 4, arrived),
            Measure("P4", f"asked for by then, H50, {where}", "MB", None, asked),
        ]
    return measures


def resume(bench: Bench) -> list[Measure]:
    """P5: stop after 60 of 125 batches, go on in a new process with nothing cached."""
    measures = []
    tail, save_at = 30, 60
    for workers, where in WHERE.items():
        specs, whole = {}, {}
        for name in ("ours", "energon"):
            state = str(bench.scratch / f"{name}-{workers}.state")
            spec = bench.remote(name, "d40x8", "H50", workers=workers, state=state, digest=True)
            run = bench.run(spec | {"save_at": save_at, "batches": save_at + tail})
            if run is not None:
                whole[name] = run.result["digests"]
                specs[name] = spec | {"restore": True, "batches": tail}
        runs = bench.rounds_of(specs)
        equal = {n: [_share_equal(r.result["digests"], whole[n]) for r in some] for n, some in runs.items()}
        arrived = values(runs, _before("arrived", 1e6))
        measures += [
            Measure("P5", f"resume to first batch, H50, {where}", "s", 0.35, values(runs, _first)),
            Measure("P5", f"arrived before it, H50, {where}", "MB", 4, arrived),
            Measure("P5", f"next {tail} batches equal to the unbroken run's, {where}", "of 1", 1, equal),
        ]
    return measures


def _share_equal(resumed: list[str], unbroken: list[str]) -> float:
    return sum(a == b for a, b in zip(resumed, unbroken, strict=True)) / len(unbroken)


def requests(bench: Bench) -> list[Measure]:
    """P7, P8: requests and bytes over whole epochs."""
    measures = []
    for dataset, cut in CUTS.items():
        two = bench.rounds_of({n: bench.remote(n, dataset, "H50", epochs=min(2, EPOCHS[n])) for n in FAST})
        one = bench.rounds_of({n: bench.remote(n, dataset, "H50", repeat=False) for n in FAST})
        spec = bench.remote("ours", dataset, "H50", repeat=False, dataset_config="json_only.yaml")
        json_only = bench.rounds_of({"ours": spec})
        per_sample = values(one, lambda r: len(r.requests) / r.result["samples"])
        heads = values(
            two, lambda r: sum(q.method == "HEAD" and q.start > r.result["first"] for q in r.requests)
        )
        whole, part = (values(runs, _count("bytes", PAYLOAD)) for runs in (one, json_only))
        measures += [
            Measure("P7", f"requests a sample, one epoch with opening, {cut}", "", 0.02, per_sample),
            Measure("P7", f"requests a sample, later epochs, {cut}", "", 0.02, values(two, _later_requests)),
            Measure("P7", f"HEADs after the first batch, H50, {cut}", "", 0, heads),
            Measure("P7", f"most requests in flight, H50, {cut}", "", None, values(two, _count("in_flight"))),
            Measure("P8", f"bytes a payload byte, one epoch, {cut}", "", 1.08, whole),
            Measure("P8", f"the same, only the JSON part wanted, {cut}", "", 0.05, part),
        ]
    return measures


def local(bench: Bench) -> list[Measure]:
    """P12: local files, nothing decoded, 36 kB samples of 3 parts."""
    runs = bench.rounds_of({n: bench.local(n, "p12", epochs=4) for n in (*LOADERS, "mmap")})
    cold, steady = values(runs, _cold), values(runs, _steady)
    return [
        Measure("P12", "local files, first epoch, in process", "samples/s", 40_000, cold, ("mmap",)),
        Measure("P12", "local files, later epochs, in process", "samples/s", 40_000, steady, ("mmap",)),
    ]


GROUPS: dict[Callable[[Bench], list[Measure]], tuple[str, ...]] = {
    throughput_h50: ("P1", "P13"),
    throughput_h200: ("P2",),
    first_batch: ("P3", "P4"),
    resume: ("P5",),
    requests: ("P7", "P8"),
    local: ("P12",),
}
