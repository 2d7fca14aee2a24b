"""``make bench``: makes the datasets, serves them, measures the rows asked for and writes the report."""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import datasets
import nginx_s3
import report
from bench import Bench, Measure, find_energon
from rows import GROUPS

REPORTS = Path(__file__).parent.parent / "docs" / "benchmarks"


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line and run."""
    rows = [row for group in GROUPS.values() for row in group]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--rows", default=",".join(rows), help=f"of {', '.join(rows)}; rows of one group come together"
    )
    parser.add_argument("--rounds", type=int, default=5, help="processes a candidate and figure (default 5)")
    parser.add_argument(
        "--quick", action="store_true", help="one round, report to --out or a temporary folder"
    )
    parser.add_argument("--without", default="", help="candidates to leave out, of webdataset, energon")
    parser.add_argument("--out", type=Path, help="folder of the report (default docs/benchmarks)")
    args = parser.parse_args(argv)
    wanted = set(args.rows.split(","))
    if not wanted <= set(rows) or args.rounds < 1:
        parser.error(f"--rows takes {', '.join(rows)}; --rounds at least 1")
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        measures, table = _measure(stack, scratch, wanted, args)
    print(table)
    if not any(m.values.get("ours") for m in measures):
        sys.exit("none of our own runs gave a value: see the notes in the report")


def _measure(
    stack: contextlib.ExitStack, scratch: Path, wanted: set[str], args: argparse.Namespace
) -> tuple[list[Measure], str]:
    root = scratch / "objects"
    datasets.write_all(root)
    server = stack.enter_context(nginx_s3.serve(root))
    candidates = {"ours", "webdataset", "energon"} - set(args.without.split(","))
    energon = find_energon() if "energon" in candidates else None
    rounds = 1 if args.quick else args.rounds
    bench = Bench(server, root, scratch, rounds, candidates, energon)
    if energon is None:
        bench.candidates.discard("energon")
        bench.note("megatron-energon with multi-storage-client was not there: no figures of it in this run")
    if server.kind != "nginx":
        bench.note("nginx with its Lua module was not there: the server may have been the limit")
    measures = []
    for group, rows in GROUPS.items():
        if wanted & set(rows):
            print(group.__doc__, flush=True)
            measures += group(bench)
    out = args.out or (scratch / "report" if args.quick else REPORTS)
    command = " ".join(["python benchmarks/run.py", f"--rows {args.rows}", f"--rounds {rounds}"])
    return measures, report.write(out, bench, measures, command)


if __name__ == "__main__":
    main()
