"""``make bench``: makes the datasets, serves them, measures the rows asked for and writes the report."""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import datasets
import nginx_s3
import peers
import report
from bench import Bench, Measure
from rows import GROUPS, Group

PEERS = ("webdataset", *peers.PACKAGES)
LONGEST = 3
"""Times its share of the time that is left, after which a group begins no further round."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line and run."""
    rows = [row for group in GROUPS for row in group.rows]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", help=f"of {', '.join(rows)}; rows of one group come together (default all)")
    parser.add_argument("--rounds", type=int, default=5, help="processes a candidate and figure (default 5)")
    parser.add_argument(
        "--quick", action="store_true", help="one round, no long rows, report to --out or a temporary folder"
    )
    parser.add_argument("--without", default="", help=f"candidates to leave out, of {', '.join(PEERS)}")
    parser.add_argument(
        "--against",
        type=Path,
        metavar="CHECKOUT",
        help="also run another version of this library, as `before`",
    )
    parser.add_argument("--out", type=Path, help="folder of the report (default docs/benchmarks)")
    parser.add_argument(
        "--keep", action="store_true", help="keep the lines of the report there that are not made again"
    )
    parser.add_argument(
        "--release",
        action="store_true",
        help="all rows of a clean commit, or nothing: the report of a release",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=90,
        help="time of the whole run, in which rows that take long have fewer rounds (default 90)",
    )
    args = parser.parse_args(argv)
    args.commit, args.all_rows = report.commit(), rows
    if args.release and (args.rows or args.quick or args.without or args.keep or args.against):
        parser.error("--release measures all rows and peers, and this version alone")
    if args.release and args.commit.endswith("-dirty"):
        parser.error(f"--release measures a commit, and the checkout has changes ({args.commit})")
    wanted = set(args.rows.split(",")) if args.rows else set(rows)
    if not wanted <= set(rows) or args.rounds < 1:
        parser.error(f"--rows takes {', '.join(rows)}; --rounds at least 1")
    groups = [g for g in GROUPS if wanted & set(g.rows)]
    if args.quick and not args.rows:
        groups = [g for g in groups if not g.long]
        left = [row for group in GROUPS if group.long for row in group.rows]
        print(f"--quick leaves out {', '.join(left)} (name them with --rows to run them)", flush=True)
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        measures, table = _measure(stack, scratch, groups, args)
    print(table)
    if not any(m.values.get("ours") for m in measures):
        sys.exit("none of our own runs gave a value: see the notes in the report")


def _measure(
    stack: contextlib.ExitStack, scratch: Path, groups: Sequence[Group], args: argparse.Namespace
) -> tuple[list[Measure], str]:
    root = scratch / "objects"
    begin = time.time()
    pythons, versions = peers.find()
    without = set(args.without.split(","))
    pythons = {name: python for name, python in pythons.items() if name not in without}
    datasets.write(root, dict.fromkeys(name for group in groups for name in group.datasets))
    failed = peers.write(root, pythons, list(dict.fromkeys(name for group in groups for name in group.peers)))
    server = stack.enter_context(nginx_s3.serve(root))
    candidates = {"ours", *({"webdataset"} - without), *pythons}
    rounds = 1 if args.quick else args.rounds
    bench = Bench(
        server, root, scratch, rounds, candidates, pythons, args.against and args.against.resolve(), failed
    )
    for name in PEERS:
        if name not in candidates:
            bench.note(
                f"{name} {'was left out' if name in without else 'is not installed'}: no figures of it"
            )
    if server.kind != "nginx":
        bench.note("nginx with its Lua module was not there: the server may have been the limit")
    print(f"datasets written in {time.time() - begin:.0f} s", flush=True)
    out = args.out or (scratch / "report" if args.quick else report.REPORTS)
    before = report.earlier(out) if args.keep else report.Earlier()
    measures: list[Measure] = []
    done: list[str] = []
    table = ""
    ends = begin + 60 * args.minutes
    for number, group in enumerate(groups):
        if group.faults and server.kind != "nginx":
            bench.note(f"{', '.join(group.rows)}: left out, because only nginx makes the faults")
            continue
        begin = time.time()
        bench.until = begin + max(0.0, ends - begin) / (len(groups) - number) * LONGEST
        print(group.measure.__doc__, end=" ", flush=True)
        try:
            measures += group.measure(bench)
        except Exception as error:  # the other rows took half an hour
            traceback.print_exc()
            bench.note(f"{', '.join(group.rows)}: failed, no figures ({error!r})")
        print(f"({time.time() - begin:.0f} s)", flush=True)
        done += group.rows
        options = (
            "--release" if args.release and len(done) == len(args.all_rows) else f"--rows {','.join(done)}"
        )
        command = f"python benchmarks/run.py {options} --rounds {rounds}"
        table = report.write(
            out, bench, measures, command, args.commit, versions, before
        )  # so that half a run has a report, too
    return measures, "\n".join([table, *(f"- {note}" for note in bench.notes)])


if __name__ == "__main__":
    main()
