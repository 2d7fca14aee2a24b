"""P12: local files."""

from __future__ import annotations

from bench import Bench, Measure, values

from rows.figures import cold, steady

LOADERS = ("ours", "webdataset", "energon", "mosaicml", "litdata", "mmap")

# Goals as shares of the mmap loop, and what binds.
FIRST = 0.6, "[parsed headers, their page faults, and Python](profiles.md#local-files-what-a-sample-costs)"
LATER = 0.75, "[Python, some 17 functions a sample](profiles.md#samples-of-a-request-cut-at-once)"


def _measure(
    what: str, goal: float | None, rates: dict[str, list[float]], share: float, binds: str
) -> Measure:
    return Measure("P12", what, "samples/s", goal, rates, ("mmap",), share, binds)


def undecoded(bench: Bench) -> list[Measure]:
    """P12: local files, nothing decoded, 36 kB samples of 3 parts."""
    runs = bench.rounds_of({n: bench.local(n, "p12", epochs=4) for n in LOADERS})
    first, later = values(runs, cold), values(runs, steady)
    # As memoryviews, which nobody reads; the limit copies.
    names = ("ours", "litdata", "mmap")
    uncopied = bench.rounds_of({n: bench.local(n, "p12", epochs=4, raw_parts="memoryview") for n in names})
    first_view, later_view = values(uncopied, cold), values(uncopied, steady)
    two = {n: bench.local(n, "p12", epochs=4, workers=2, cores=2) for n in LOADERS if n != "mmap"}
    parallel = values(bench.rounds_of(two), steady)
    return [
        _measure("local files, first epoch, in process", 55_000, first, *FIRST),
        _measure("local files, later epochs, in process", 55_000, later, *LATER),
        _measure("memoryviews of local files, first epoch", None, first_view, *FIRST),
        _measure("memoryviews of local files, later epochs", None, later_view, *LATER),
        Measure("P12", "local files, later epochs, two workers, two cores", "samples/s", 45_000, parallel),
    ]
