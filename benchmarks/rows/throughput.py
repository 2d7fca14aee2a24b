"""P1, P2, P13 and what lies around them: samples a second over the network."""

from __future__ import annotations

from typing import Any

from bench import Bench, Measure, Run, values

from rows.figures import CUTS, MOST, RAW, REMOTE_PEERS, WHERE, cold, later_requests, steady

SOME = 3  # rounds of what is beside the goals
GOAL = {"H50": 7000, "H200": 5000}
LATER = {"H50": 6000, "H200": 5000}
# Of the raw loop: from cold, by number of workers; later epochs; a pass of 1 GB.
SHARE = {"H50": {0: 0.75, 1: 0.65}, "H200": {0: 0.85, 1: 0.85}}
SHARE_LATER = {"H50": 0.8, "H200": None}
SHARE_LONG = {"H50": 0.8, "H200": 0.85}
FAR = (
    "[round trips of 200 ms](profiles.md#200-ms-what-is-left-beside-the-raw-loop): two before the first batch"
)
LONG = "[the loader's one core](profiles.md#1-gb-068-of-raw): the client's threads, and the copy to `bytes`"
EPOCHS = {"H50": 8, "H200": 5}
ROW = {"H50": "P1", "H200": "P2"}


def _runs(
    bench: Bench,
    dataset: str,
    profile: str,
    peers: tuple[str, ...] = (),
    most: int | None = None,
    **spec: Any,
) -> dict[str, list[Run]]:
    """Ours, the raw loops and one epoch of each peer; ours and the raw loops have ``epochs``."""
    spec = {"epochs": 8, "workers": 0} | spec
    common = {"dataset": dataset, "profile": profile}
    specs = {"ours": bench.remote("ours", **common, **spec)}
    specs |= {n: bench.remote(n, **common, **spec | {"epochs": 1}) for n in peers}
    limits = MOST if profile == "H200" else RAW
    specs |= {n: bench.remote("raw", **common, **spec, in_flight=k) for n, k in limits.items()}
    return bench.rounds_of(specs, most)


def _rates(
    row: str,
    where: str,
    runs: dict[str, list[Run]],
    goals: tuple[float | None, float | None] = (None, None),
    shares: tuple[float | None, float | None] = (None, None),
    binds: str = "",
) -> list[Measure]:
    """The two measures of speed: from nothing, with opening, and going on; with goals for each."""
    limit = tuple(name for name in RAW if name in runs)
    first, later = values(runs, cold), values(runs, steady)
    return [
        Measure(
            row, f"first epoch from cold, {where}", "samples/s", goals[0], first, limit, shares[0], binds
        ),
        Measure(row, f"later epochs, {where}", "samples/s", goals[1], later, limit, shares[1]),
    ]


def _goals(bench: Bench, profile: str) -> list[Measure]:
    measures = []
    for dataset, workers in [(d, w) for d in CUTS for w in WHERE]:
        peers = REMOTE_PEERS if workers == 0 and profile == "H50" else ()
        runs = _runs(bench, dataset, profile, peers, workers=workers, epochs=EPOCHS[profile])
        where = f"{profile}, {CUTS[dataset]}, {WHERE[workers]}"
        shares = SHARE[profile][workers], SHARE_LATER[profile]
        goals, binds = (GOAL[profile], LATER[profile]), FAR if profile == "H200" else ""
        measures += _rates(ROW[profile], where, runs, goals, shares, binds)
        if workers == 0 and profile == "H50":
            ours = {
                name: runs[name] for name in ("ours", "before") if name in runs
            }  # of the others, a part runs in processes of their own
            cpu = values(ours, _cpu_a_gigabyte)
            measures.append(Measure("P13", f"whole loader's CPU, {where}", "s/GB", 3.0, cpu))
    return measures


def _cpu_a_gigabyte(run: Run) -> float:
    return run.result["loop_cpu"] / (run.result["samples"] * run.dataset.sample_bytes / 1e9)


def h50(bench: Bench) -> list[Measure]:
    """P1, P13: samples a second with the storage 50 ms away, and what they cost."""
    return _goals(bench, "H50")


def h200(bench: Bench) -> list[Measure]:
    """P2: samples a second with the storage 200 ms away."""
    return _goals(bench, "H200")


def longer(bench: Bench) -> list[Measure]:
    """long: a pass of 1 GB, so that opening weighs little (a part of P1 and P2).

    The loader is told that no other pass follows. Otherwise it has requested 200 MB of the next one before
    this one ends, which the raw loop has not.
    """
    measures = []
    for profile, row in ROW.items():
        runs = _runs(bench, "long50", profile, epochs=1, repeat=False)
        where = f"one pass from cold, 1 GB, {profile}, 50 shards of 22 MB, in process"
        rates, limit = values(runs, cold), tuple(name for name in RAW if name in runs)
        goals = GOAL[profile], rates, limit, SHARE_LONG[profile]
        measures.append(Measure(row, where, "samples/s", *goals, LONG if profile == "H50" else FAR))
    return measures


def h1(bench: Bench) -> list[Measure]:
    """H1: samples a second with the storage 1 ms away."""
    measures = []
    for dataset, cut in CUTS.items():
        runs = _runs(bench, dataset, "H1", most=SOME)
        measures += _rates("H1", f"H1, {cut}, in process", runs)
    return measures


def sizes(bench: Bench) -> list[Measure]:
    """sizes: samples of 4 kB, 40 kB, 400 kB and 4 MB with the storage 50 ms away."""
    measures = []
    names = {"size4k": "4 kB", "d40x8": "40 kB", "size400k": "400 kB", "size4m": "4 MB, batches of 8"}
    for dataset, size in names.items():
        batch = {"batch": 8} if dataset == "size4m" else {}
        runs = _runs(bench, dataset, "H50", most=SOME, epochs=4, **batch)
        where = f"samples of {size}, H50, 8 shards, in process"
        measures += _rates("sizes", where, runs, shares=(None, 0.5 if dataset == "size4k" else None))
        rate, asked = values(runs, _megabytes), values({"ours": runs["ours"]}, later_requests)
        measures += [
            Measure("sizes", f"later epochs, {where}", "MB/s", None, rate, tuple(RAW)),
            Measure("sizes", f"requests a sample, later epochs, {where}", "", None, asked),
        ]
    return measures


def streams(bench: Bench) -> list[Measure]:
    """streams: 24 streams on one rank in one process, against one stream in the same rounds."""
    spec = {"dataset": "d40x8", "profile": "H50", "epochs": 8, "workers": 0}
    runs = bench.rounds_of(
        {"24": bench.remote("ours", **spec, streams=24), "1": bench.remote("ours", **spec)}
    )
    both = list(zip(runs["24"], runs["1"], strict=False))
    shares = [(steady(many) or 0) / (steady(one) or 1) for many, one in both]
    asked = [asked for many, _ in both if (asked := later_requests(many)) is not None]
    where = "24 streams on one rank, H50, 8 shards of 21 MB, in process"
    return [
        Measure(
            "streams", f"share of one stream's speed, later epochs, {where}", "of 1", 0.9, {"ours": shares}
        ),
        Measure("streams", f"requests a sample, later epochs, {where}", "", None, {"ours": asked}),
    ]


def _megabytes(run: Run) -> float | None:
    rate = steady(run)
    return None if rate is None else rate * run.dataset.sample_bytes / 1e6


def huge_shard(bench: Bench) -> list[Measure]:
    """1GB: all samples in one shard of 1.1 GB."""
    runs = _runs(bench, "huge1", "H50", most=SOME, epochs=2)
    asked = values({"ours": runs["ours"]}, later_requests)
    return [
        *_rates("1GB", "H50, one shard of 1.1 GB, in process", runs),
        Measure("1GB", "requests a sample, later epoch, H50, one shard of 1.1 GB", "", 0.02, asked),
    ]
