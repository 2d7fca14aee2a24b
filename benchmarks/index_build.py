"""Speed of building `index.sqlite`: `python benchmarks/index_build.py --samples 1e6 --processes 2`.

Samples have keys of 16 characters in no order, and two parts. What was found in the shards is made up on the
way, which `--only-scans` times alone. `--alone` builds the index as one process does, row by row.
"""

from __future__ import annotations

import argparse
import os
import resource
import sqlite3
import tempfile
import time
from functools import partial

from measured import MeasuredEngine

from energon_stream.index.sqlite_index import SqliteWriter
from energon_stream.prepare import sharded_index
from energon_stream.prepare.sharded_index import ShardGroup, build_index
from energon_stream.tar.scan import ShardScan

SAMPLES_PER_SHARD = 10_000
SAMPLES_PER_GROUP = 500_000
MIX = 0x9E3779B97F4A7C15


def shards(numbers):
    """Scans of shards."""
    for number in numbers:
        first = number * SAMPLES_PER_SHARD
        scan = ShardScan(f"data-{number:06d}.tar")
        scan.keys = [f"{(first + i) * MIX % (1 << 64):016x}" for i in range(SAMPLES_PER_SHARD)]
        scan.offsets = [*range(0, SAMPLES_PER_SHARD * 2048 + 1, 2048)]
        for i in range(SAMPLES_PER_SHARD):
            scan.parts.append((i, "jpg", i * 2048 + 512, 900))
            scan.parts.append((i, "txt", i * 2048 + 1536 + 512, 100))
        yield scan


def main():
    """Print rows a second, and the CPU time and memory."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=float, default=1e6)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--only-scans", action="store_true")
    parser.add_argument("--folder")
    options = parser.parse_args()
    count = int(options.samples) // SAMPLES_PER_SHARD
    names = [f"data-{number:06d}.tar" for number in range(count)]
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = os.path.join(folder, "index.sqlite")
        begin = time.perf_counter()
        if options.only_scans:
            for _ in shards(range(count)):
                pass
            print(f"scans: {time.perf_counter() - begin:.1f} s")
            return
        if options.alone:
            with SqliteWriter(path, names) as writer:
                for number, scan in enumerate(shards(range(count))):
                    writer.add(number, scan)
        else:
            step = min(SAMPLES_PER_GROUP // SAMPLES_PER_SHARD, -(-count // options.processes))
            groups = [
                ShardGroup(
                    partial(shards, range(first, min(first + step, count))),
                    first,
                    first * SAMPLES_PER_SHARD,
                    2 * first * SAMPLES_PER_SHARD,
                )
                for first in range(0, count, step)
            ]
            marks = []
            opened = sharded_index.PageFile
            sharded_index.PageFile = lambda file: (marks.append(time.process_time()), opened(file))[1]
            engine = MeasuredEngine(options.processes)
            build_index(path, names, groups, engine, folder)
            print(
                f"CPU seconds of the processes: {engine.seconds:.1f}; the largest took {engine.megabytes} MB"
            )
            print(
                f"CPU seconds of joining the pieces, which one process does: {time.process_time() - marks[0]:.1f}"
            )
        seconds = time.perf_counter() - begin
        with sqlite3.connect(path) as database:
            (rows,) = database.execute("SELECT max(rowid) FROM samples").fetchone()
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(
            f"{rows:,} samples in {seconds:.1f} s: {rows / seconds:,.0f} a second; "
            f"{os.path.getsize(path) / 1e6:,.0f} MB; {own} MB of memory here; CPU seconds here: {time.process_time():.1f}"
        )


if __name__ == "__main__":
    main()
