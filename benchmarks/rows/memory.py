"""P14: memory above import, against the byte budget."""

from __future__ import annotations

from bench import Bench, Measure, Run, values
from datasets import DATASETS

SOME = 3
MIB = 1 << 20
BUDGETS = {"64 MiB": {"byte_budget": 64 * MIB}, "the default, 256 MiB": {}}
DEFAULT = 256 * MIB
# Batches are small beside a budget, because the one that is given out is in memory, too.
CASES = {
    "mem1k": ("1 kB", 32),
    "long50": ("40 kB", 32),
    "mem4m": ("4 MB", 1),
    "mem300m": ("300 MB, above the budget", 1),
}


def above_import(bench: Bench) -> list[Measure]:
    """P14: highest resident size above that after the imports, one epoch in process."""
    spec = {"repeat": False, "memory": True, "read_options": {}}
    least = values(bench.rounds_of({"ours": bench.remote("ours", "tiny", "H50", **spec)}, SOME), _mebibytes)
    measures = [Measure("P14", "memory above import to read 64 samples of 1 kB", "MiB", None, least)]
    for budget, options in BUDGETS.items():
        for dataset, (size, batch) in CASES.items():
            chosen = spec | {"read_options": options, "batch": batch}
            runs = bench.rounds_of({"ours": bench.remote("ours", dataset, "H50", **chosen)}, SOME)
            # A sample above the budget is read alone, into memory of its size.
            allowed = max(options.get("byte_budget", DEFAULT), DATASETS[dataset].payload) / MIB
            what = f"memory above import, samples of {size}, batches of {batch}, budget {budget}"
            measures.append(Measure("P14", what, "MiB", 1.1 * allowed, values(runs, _mebibytes)))
    return measures


def _mebibytes(run: Run) -> float:
    return run.result["memory"] / MIB
