"""Speed of building `index.sqlite`: `python benchmarks/index_build.py --samples 1e6`.

Samples have two parts, and keys of 16 characters in no order, or in order with `--sorted`. The content of the
shards is made up on the way, which `--only-scans` times alone.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time

from energon_stream.index.sqlite_index import SqliteWriter
from energon_stream.tar.scan import ShardScan

SAMPLES_PER_SHARD = 10_000
MIX = 0x9E3779B97F4A7C15


def scans(count, in_order):
    """Scans of shards."""
    for number in range(count):
        first = number * SAMPLES_PER_SHARD
        scan = ShardScan(f"data-{number:06d}.tar")
        numbers = range(first, first + SAMPLES_PER_SHARD)
        scan.keys = [f"{i if in_order else i * MIX % (1 << 64):016x}" for i in numbers]
        scan.offsets = [*range(0, SAMPLES_PER_SHARD * 2048 + 1, 2048)]
        for i in range(SAMPLES_PER_SHARD):
            scan.parts.append((i, "jpg", i * 2048 + 512, 900))
            scan.parts.append((i, "txt", i * 2048 + 1536 + 512, 100))
        yield scan


def main():
    """Print rows a second, CPU time and memory."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=float, default=1e6)
    parser.add_argument("--sorted", action="store_true")
    parser.add_argument("--only-scans", action="store_true")
    parser.add_argument("--folder")
    options = parser.parse_args()
    count = int(options.samples) // SAMPLES_PER_SHARD
    begin = time.perf_counter()
    if options.only_scans:
        for _ in scans(count, options.sorted):
            pass
        print(f"scans: {time.perf_counter() - begin:.1f} s")
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = os.path.join(folder, "index.sqlite")
        with SqliteWriter(path, [f"data-{number:06d}.tar" for number in range(count)]) as writer:
            for number, scan in enumerate(scans(count, options.sorted)):
                writer.add(number, scan)
        seconds, rows = time.perf_counter() - begin, count * SAMPLES_PER_SHARD
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(
            f"{rows:,} samples in {seconds:.1f} s: {rows / seconds:,.0f} a second; "
            f"{os.path.getsize(path) / 1e6:,.0f} MB; {memory} MB of memory; CPU seconds: {time.process_time():.1f}"
        )


if __name__ == "__main__":
    main()
