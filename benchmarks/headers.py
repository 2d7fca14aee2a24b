"""Requests, bytes and seconds of indexing a tar on a store: windows that grow, each header alone, everything.

    python benchmarks/headers.py

For each size of samples there is one tar on the S3 stand-in, which waits before each answer and sends at a
limited rate. ``windows`` is what ``prepare`` does: it reads through small payloads in growing requests, and
jumps over payloads that take longer than a request. ``headers`` is ``prepare --max-gap 0``, which jumps over
every payload that the last request did not bring. ``whole`` is one
request for the object.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from energon_stream.storage import ListEntry, Store, StoreSpec
from energon_stream.tar.scan import scan_shard
from energon_stream.testing.datasets import random_bytes, write_shards
from energon_stream.testing.s3server import S3Server


def windows(store: Store, entry: ListEntry) -> int:
    return len(scan_shard(store, entry).keys)


def headers(store: Store, entry: ListEntry) -> int:
    return len(scan_shard(store, entry, max_gap=0).keys)


def whole(store: Store, entry: ListEntry) -> int:
    return len(store.get(entry.path).data)


WAYS: dict[str, Callable[[Store, ListEntry], int]] = {"windows": windows, "headers": headers, "whole": whole}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--latency", type=float, default=0.05, help="seconds before each answer")
    parser.add_argument("--rate", type=float, default=100e6, help="bytes a second of a connection")
    parser.add_argument("--shard", type=int, default=20_000_000, help="bytes of a tar")
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[2_000, 40_000, 200_000, 1_000_000, 3_000_000]
    )
    options = parser.parse_args()
    print(
        f"one tar of {options.shard / 1e6:.0f} MB, {1000 * options.latency:.0f} ms, {options.rate / 1e6:.0f} MB/s"
    )
    print("| bytes of a sample | way | GETs | MB | seconds |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for size in options.sizes:
            count = max(1, options.shard // (size + 1024))
            write_shards(
                root / "bucket" / str(size),
                shards=1,
                samples_per_shard=count,
                parts=lambda number, size=size: {"bin": random_bytes(size, number)},
            )
        with S3Server(
            root, first_byte_latency=options.latency, rate=options.rate, own_process=True
        ) as server:
            for size in options.sizes:
                store = StoreSpec(f"s3://bucket/{size}", server.storage_options).open()
                entry = next(iter(store.list()))
                for name, way in WAYS.items():
                    before, begin = server.counters(), time.perf_counter()
                    way(store, entry)
                    seconds, after = time.perf_counter() - begin, server.counters()
                    requests = after.requests.get("GET", 0) - before.requests.get("GET", 0)
                    sent = (after.bytes_sent - before.bytes_sent) / 1e6
                    print(f"| {size:,} | {name} | {requests} | {sent:.2f} | {seconds:.2f} |", flush=True)


if __name__ == "__main__":
    main()
