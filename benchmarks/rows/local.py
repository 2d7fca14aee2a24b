"""P12: local files."""

from __future__ import annotations

from bench import Bench, Measure, values

from rows.figures import cold, steady

LOADERS = ("ours", "webdataset", "energon", "mosaicml", "litdata", "mmap")


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
        Measure("P12", "local files, first epoch, in process", "samples/s", 55_000, first, ("mmap",)),
        Measure("P12", "local files, later epochs, in process", "samples/s", 55_000, later, ("mmap",)),
        Measure("P12", "memoryviews of local files, first epoch", "samples/s", None, first_view, ("mmap",)),
        Measure("P12", "memoryviews of local files, later epochs", "samples/s", None, later_view, ("mmap",)),
        Measure("P12", "local files, later epochs, two workers, two cores", "samples/s", 45_000, parallel),
    ]
