"""P10, P11: what is left of the speed where the storage misbehaves, held against clean runs of the same
rounds.
"""

from __future__ import annotations

from collections.abc import Callable

from bench import Bench, Measure, Run
from nginx_s3 import PROFILES, SLOWER

from rows.figures import cold, first
from rows.start import share_equal

PEERS = ("webdataset", "mosaicml", "litdata")
LATE = PROFILES["T2"].latency * SLOWER
GIVEN_UP = 499  # how nginx logs that the client closed the connection
WHERE = "H50, one epoch from cold, 400 shards of 2.7 MB, in process"
REFUSED_BINDS = (
    "[round trips that are repeated](profiles.md#faults-over-160-mb-054-and-079-of-the-clean-speed)"
)
TAIL_BINDS = "[late requests that the consumer waits for](profiles.md#faults-over-160-mb-054-and-079-of-the-clean-speed)"
SHORT = "H50, one epoch of 160 MB from cold, 64 shards of 2.6 MB, in process"


def _pairs(
    bench: Bench, dataset: str, profile: str, peers: tuple[str, ...]
) -> dict[str, list[tuple[Run, Run]]]:
    """(clean run, faulty run) of every round, one epoch each."""
    names = ("ours", *peers)
    specs = {
        f"{name} {where}": bench.remote(name, dataset, where, epochs=1, repeat=False)
        for name in names
        for where in ("H50", profile)
    }
    runs = bench.rounds_of(specs, once=frozenset(peers))
    return {name: _whole(bench, name, profile, runs) for name in names}


def _whole(bench: Bench, name: str, profile: str, runs: dict[str, list[Run]]) -> list[tuple[Run, Run]]:
    """The pairs of a candidate in which no sample was lost; a loss is noted, it has no speed."""
    found = []
    for clean, faulty in zip(runs[f"{name} H50"], runs[f"{name} {profile}"], strict=False):
        if clean.result["ends"] and faulty.result["ends"]:
            found.append((clean, faulty))
        else:
            given = faulty.result["samples"]
            bench.note(f"{name}, {profile}: {given} of {faulty.dataset.samples} samples arrived, so no share")
    return found


def _each(
    pairs: dict[str, list[tuple[Run, Run]]], figure: Callable[[Run, Run], float]
) -> dict[str, list[float]]:
    return {name: [figure(clean, faulty) for clean, faulty in some] for name, some in pairs.items()}


def _share(clean: Run, faulty: Run) -> float:
    """Clean seconds ÷ faulty seconds, of the same epoch."""

    def seconds(run: Run) -> float:
        return run.result["ends"][-1] - run.result["begin"]

    return seconds(clean) / seconds(faulty)


def _attempts(_: Run, faulty: Run) -> float:
    """Requests that the server saw for each one that it served."""
    return len(faulty.requests) / sum(r.status < 400 for r in faulty.requests)


def _refused(_: Run, faulty: Run) -> float:
    return sum(r.status == 503 for r in faulty.requests) / len(faulty.requests)


def _late(_: Run, faulty: Run) -> float:
    """Requests that took as long as a late one does, or that the client gave up, in percent."""
    late = sum(r.end - r.start >= LATE or r.status == GIVEN_UP for r in faulty.requests)
    return 100 * late / len(faulty.requests)


def _extra(clean: Run, faulty: Run) -> float:
    """Bytes that the server sent beyond those of the clean epoch, in percent."""
    return 100 * (sum(r.nbytes for r in faulty.requests) / sum(r.nbytes for r in clean.requests) - 1)


def _same(bench: Bench, profile: str) -> list[float]:
    """Share of an epoch's batches that are the same as without faults, in content and order."""
    found = []
    for where in ("H50", profile):
        run = bench.run(bench.remote("ours", "long400", where, repeat=False, digest=True))
        if run is None:
            return []
        found.append(run.result["digests"])
    return [share_equal(found[1], found[0])]


def refused(bench: Bench) -> list[Measure]:
    """P10: 20 % of all requests answered 503 SlowDown."""
    asked = ("attempts for each success", "", 1.4, _attempts)
    refused = ("share of requests answered 503", "", None, _refused)
    return _row(bench, "P10", "F20", 0.85, REFUSED_BINDS, asked, refused)


def slow_tail(bench: Bench) -> list[Measure]:
    """P11: 2 % of the GETs 20 times slower."""
    extra = ("bytes beyond the clean epoch's", "%", 3, _extra)
    late = ("requests that were late or given up", "%", None, _late)
    return _row(bench, "P11", "T2", 0.95, TAIL_BINDS, extra, late)


def _row(
    bench: Bench,
    row: str,
    profile: str,
    goal: float,
    binds: str,
    *special: tuple[str, str, float | None, Callable[[Run, Run], float]],
) -> list[Measure]:
    short = _pairs(bench, "d40x64", profile, PEERS)
    pairs = _pairs(bench, "long400", profile, ()) | {name: short[name] for name in PEERS}

    def measure(
        figure: str, unit: str, wanted: float | None, values: dict[str, list[float]], binds: str = ""
    ) -> Measure:
        return Measure(row, f"{profile}: {figure}", unit, wanted, values, binds=binds)

    return [
        measure(f"share of the clean speed, {WHERE}", "of 1", goal, _each(pairs, _share), binds),
        measure(f"share of the clean speed, {SHORT}", "of 1", goal, _each(short, _share), binds),
        measure(f"samples a second, {SHORT}", "samples/s", None, _each(short, lambda _, run: cold(run) or 0)),
        *(measure(figure, unit, wanted, _each(pairs, of)) for figure, unit, wanted, of in special),
        measure("batches equal to the clean run's", "of 1", 1, {"ours": _same(bench, profile)}),
        measure("time to first batch", "s", None, _each(pairs, lambda _, run: first(run))),
    ]
