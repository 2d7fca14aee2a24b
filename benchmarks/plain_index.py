"""Time to open tars that are not prepared: first use, later ones, several processes at once.

    python benchmarks/plain_index.py [--latency 0.05] [--rate 85e6] [--repeat 3]

The server is the S3 stand-in in a process of its own. Prints a table: seconds (the median, from least to
most), and the requests and bytes that the server counted.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from pathlib import Path

from energon_stream.index.plain import find_tars, open_plain
from energon_stream.storage import StoreSpec
from energon_stream.testing.datasets import binary_dataset
from energon_stream.testing.s3server import S3Server

CASES = {  # tars, samples, bytes of each, processes
    "64 tars of 2.6 MB, members of 40 kB": (64, 4000, 40_000, 1),
    "8 tars of 21 MB, members of 40 kB": (8, 4000, 40_000, 1),
    "1 tar of 336 MB, members of 40 kB": (1, 8000, 40_000, 1),
    "1 tar of 400 MB, members of 4 MB": (1, 100, 4_000_000, 1),
    "1,000 tars of 0.12 MB, members of 4 kB": (1000, 20_000, 4_000, 1),
    "the same, 8 processes at once": (1000, 20_000, 4_000, 8),
}
fork = multiprocessing.get_context("fork")


def opened(spec: StoreSpec, processes: int) -> float:
    """Seconds until all processes have opened the tars; each has clients of its own."""
    barrier = fork.Barrier(processes + 1)

    def run() -> None:
        barrier.wait()
        open_plain(*find_tars(spec), split_part="train")

    started = [fork.Process(target=run) for _ in range(processes)]
    for process in started:
        process.start()
    barrier.wait()
    begin = time.perf_counter()
    for process in started:
        process.join()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--latency", type=float, default=0.05)
    parser.add_argument("--rate", type=float, default=85e6)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    print("| | first use | requests | bytes | later | requests |\n|---|--:|--:|--:|--:|--:|")
    for name, (tars, samples, payload, processes) in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            binary_dataset(Path(folder, "bucket", "x"), samples=samples, payload_bytes=payload, shards=tars)
            with S3Server(
                folder, own_process=True, first_byte_latency=options.latency, rate=options.rate
            ) as server:
                braces = f"s3://bucket/x/data-{{000000..{tars - 1:06d}}}.tar"
                spec = StoreSpec(braces, server.storage_options)
                seconds: dict[str, list[float]] = {"first": [], "later": []}
                counted = {}
                for _ in range(options.repeat):
                    with tempfile.TemporaryDirectory() as cache:
                        os.environ["ENERGON_STREAM_CACHE_DIR"] = cache
                        for use, found in seconds.items():
                            server.reset_counters()
                            found.append(opened(spec, processes))
                            counted[use] = server.counters()
        times = {
            use: f"{statistics.median(s):.2f} ({min(s):.2f} to {max(s):.2f})" for use, s in seconds.items()
        }
        first, later = counted["first"], counted["later"]
        print(
            f"| {name} | {times['first']} | {first.total:,} | {first.bytes_sent / 1e6:.1f} MB "
            f"| {times['later']} | {later.total:,} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
