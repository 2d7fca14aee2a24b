"""P3, P4, P5: how soon the first batch is there, from nothing or from a saved state."""

from __future__ import annotations

from bench import Bench, Measure, values

from rows.figures import REMOTE_PEERS, WHERE, before, first

SOON = {0: 0.115, 1: 0.25}  # seconds to the first batch by number of workers
SOON_BINDS = "[two round trips, and the CPU time of opening](profiles.md#first-batch-two-round-trips)"
LOADERS = ("ours", *REMOTE_PEERS, "energon")
FORKED = (
    "ours",
    "webdataset",
    "energon",
)  # of the others, one shares a connection with its workers and fails


def first_batch(bench: Bench) -> list[Measure]:
    """P3, P4: from nothing to the first batch, index remote, after imports."""
    measures = []
    for workers, where in WHERE.items():
        # Twenty batches, so that what was asked for before the first one is answered and logged in full.
        spec = {"workers": workers, "batches": 20}
        names = FORKED if workers else LOADERS
        runs = bench.rounds_of({n: bench.remote(n, "d40x8", "H50", **spec) for n in names})
        trips = values(runs, before("round_trips"))
        arrived, asked = values(runs, before("arrived", 1e6)), values(runs, before("asked", 1e6))
        measures += [
            Measure(
                "P3",
                f"time to first batch, H50, {where}",
                "s",
                SOON[workers],
                values(runs, first),
                binds="" if workers else SOON_BINDS,
            ),
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
            if name == "ours" and bench.against:
                spec = bench.before(spec) | {"state": str(bench.scratch / f"before-{workers}.state")}
                run = bench.run(spec | {"save_at": save_at, "batches": save_at + tail})
                if run is not None:
                    whole["before"] = run.result["digests"]
                    specs["before"] = spec | {"restore": True, "batches": tail}
        runs = bench.rounds_of(specs)
        equal = {n: [share_equal(r.result["digests"], whole[n]) for r in some] for n, some in runs.items()}
        arrived = values(runs, before("arrived", 1e6))
        measures += [
            Measure("P5", f"resume to first batch, H50, {where}", "s", 0.35, values(runs, first)),
            Measure("P5", f"arrived before it, H50, {where}", "MB", 4, arrived),
            Measure("P5", f"next {tail} batches equal to the unbroken run's, {where}", "of 1", 1, equal),
        ]
    return measures


def share_equal(some: list[str], whole: list[str]) -> float:
    """Share of batches that are the same, in their order; a missing or surplus one is a difference."""
    return sum(a == b for a, b in zip(some, whole, strict=False)) / max(len(some), len(whole))
