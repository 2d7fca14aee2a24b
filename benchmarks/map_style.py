"""``open_dataset(path)[i]``: requests to an S3 stand-in, and the time from the call to the request.

Run: ``python benchmarks/map_style.py``. It takes a few seconds.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import Counter
from contextlib import suppress
from typing import Any

from energon_stream import open_dataset
from energon_stream.storage.fetcher import Fetcher
from energon_stream.testing.datasets import prepared_binary_dataset
from energon_stream.testing.s3server import S3Server


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=4000, help="of 10 KB")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, S3Server(own_process=True) as server:
        prepared_binary_dataset(f"{folder}/data", samples=options.samples, payload_bytes=10_000, shards=8)
        server.upload_folder(f"{folder}/data", "s3://bucket/data")
        server.reset_counters()
        dataset = open_dataset("s3://bucket/data", storage_options=server.storage_options)
        count(server, "opening")
        order = [7919 * number % len(dataset) for number in range(1000)]
        for index in order:
            dataset[index]
        count(server, f"dataset[i], {len(order)} times")
        keys = [dataset[index]["__key__"] for index in order[:100]]
        server.reset_counters()
        dataset.by_key(keys[0])
        count(server, "by_key, first")
        for key in keys:
            dataset.by_key(key)
        count(server, f"by_key, {len(keys)} more")
        first = len(dataset) // 4
        dataset.__getitems__(range(first, first + 64))
        count(server, "64 neighbours")
        times = planning(dataset, order)
        print(f"planning: median {statistics.median(times):.1f} µs, least {min(times):.1f} µs")


def count(server: S3Server, what: str) -> None:
    files = Counter(entry.key.rpartition("/")[2].partition("-")[0] for entry in server.log())
    print(f"{what}: {sum(files.values())} requests {dict(files)}")
    server.reset_counters()


class Planned(Exception):
    """The request would be made now."""


def planning(dataset: Any, order: list[int]) -> list[float]:
    """Return the microseconds from each call to its request, which is not made."""
    times, submit = [], Fetcher.submit

    def stop(*arguments: Any, **options: Any) -> Any:
        raise Planned

    Fetcher.submit = stop  # type: ignore[method-assign]
    try:
        for index in order:
            begin = time.perf_counter()
            with suppress(Planned):
                dataset[index]
            times.append((time.perf_counter() - begin) * 1e6)
    finally:
        Fetcher.submit = submit  # type: ignore[method-assign]
    return times


if __name__ == "__main__":
    main()
