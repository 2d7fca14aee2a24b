"""P6 with real files: requests, seconds and memory from ``get_train_dataset`` to the first batch; ``info``.

    python benchmarks/startup.py [--info] [SHARDS ...]      (default: 8 and 100000; --info: only `info`)

The dataset's shards of 10^4 samples are links to one tar, so they cost no disk; the metadata is what
`prepare` would write. Each measurement is a process of its own, against the counting stand-in at 50 ms in
a second process. Seconds begin when everything is imported, and memory is what comes on top of that.
"""

from __future__ import annotations

import itertools
import json
import os
import pickle
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from datasets import linked_dataset

from energon_stream import (
    Cooker,
    DefaultTaskEncoder,
    WorkerConfig,
    basic_sample_keys,
    get_savable_loader,
    get_train_dataset,
    stateless,
)
from energon_stream.testing.datasets import prepared_binary_dataset
from energon_stream.testing.s3server import S3Server

PER_SHARD, BATCH, LATENCY, INFO_ROUNDS = 10_000, 32, 0.05, 5
MODES = ((0, "fork"), (2, "fork"), (2, "spawn"))


@stateless
def keep(sample):
    return {**basic_sample_keys(sample), "bin": bytes(sample["bin"])}


class Encoder(DefaultTaskEncoder):
    """Nothing decoded."""

    decoder = None
    cookers = [Cooker(keep)]

    def batch(self, samples):
        return [sample["bin"] for sample in samples]


def memory(pid):
    """MB of a process: resident, and private to it."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    sizes = {line.split()[0]: int(line.split()[1]) / 1024 for line in lines}
    return sizes["Rss:"], sizes["Private_Clean:"] + sizes["Private_Dirty:"]


def peak():
    """Largest resident size so far, in MB. (Not ``ru_maxrss``, which begins with the parent's.)"""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))


def cpu():
    """CPU seconds of this process and of its children that have ended."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def measure(url, endpoint, workers, method):
    """In this process: open, make a loader, take one batch."""
    resident = memory("self")[0]
    marks = [(time.perf_counter(), cpu())]
    dataset = get_train_dataset(
        url,
        batch_size=BATCH,
        shuffle_buffer_size=1000,
        max_samples_per_sequence=100,
        worker_config=WorkerConfig(0, 1, workers),
        task_encoder=Encoder(),
        storage_options={"key": "k", "secret": "s", "endpoint_url": endpoint},
    )
    marks.append((time.perf_counter(), cpu()))
    loader = get_savable_loader(dataset, start_method=method)
    next(iter(loader))
    marks.append((time.perf_counter(), cpu()))
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    own = [memory(pid)[1] for pid in children]
    found = {
        "seconds": [after[0] - before[0] for before, after in itertools.pairwise(marks)],
        "open_cpu": marks[1][1] - marks[0][1],
        "main": peak() - resident,
        "worker": max(own, default=0.0),
        "pickled": len(pickle.dumps(dataset)),
    }
    loader.close()
    return found


def report_info(server, urls):
    """Print the seconds and requests of ``energon-stream info``, a process from its start to its end."""
    print(
        f"\n| `info`: shards | split.yaml | seconds (median of {INFO_ROUNDS}) | requests |\n|--:|---|--:|--:|"
    )
    access = {"AWS_ENDPOINT_URL": server.endpoint_url, "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}
    command = [sys.executable, "-m", "energon_stream", "info"]
    for (shards, listed), url in urls.items():
        times = []
        for _ in range(INFO_ROUNDS):
            server.reset_counters()
            begun = time.perf_counter()
            subprocess.run([*command, url], env=os.environ | access, check=True, stdout=subprocess.DEVNULL)
            times.append(time.perf_counter() - begun)
        requests = sum(server.counters().requests.values())
        kind = "every name" if listed else "braces"
        print(f"| {shards:,} | {kind} | {statistics.median(times):.2f} | {requests} |", flush=True)


def report(counts, *, only_info=False):
    """Print the tables."""
    with tempfile.TemporaryDirectory(prefix="startup-") as tmp:
        root = Path(tmp) / "root"
        rows = {(shards, listed): f"{shards}-{listed}" for shards in counts for listed in (False, True)}
        one = prepared_binary_dataset(
            root / "bucket" / "one", samples=PER_SHARD, payload_bytes=1000, shards=1
        )
        for (shards, listed), name in rows.items():
            linked_dataset(one, root / "bucket" / name, shards, PER_SHARD, listed=listed)
        urls = {row: f"s3://bucket/{name}" for row, name in rows.items()}
        with S3Server(root, own_process=True, first_byte_latency=LATENCY) as server:
            if not only_info:
                report_first_batch(server, urls)
            report_info(server, urls)


def report_first_batch(server, urls):
    """Print what it takes to open a dataset, and to get its first batch."""
    print(
        "| shards | split.yaml | workers | metadata GETs | seconds to open | CPU-s to open | seconds to the first "
        "batch after it | main: peak MB above import | worker: own MB | pickled bytes |\n|--:|---|---|"
        + "--:|"
        * 7
    )
    for (shards, listed), url in urls.items():
        for workers, method in MODES:
            server.reset_counters()
            command = [sys.executable, __file__, "--measure", url, server.endpoint_url, str(workers), method]
            found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
            metadata = Counter(entry.key for entry in server.log() if "/.nv-meta/" in entry.key)
            print(
                f"| {shards:,} | {'every name' if listed else 'braces'} | {workers} {method} "
                f"| {metadata.total()} | {found['seconds'][0]:.2f} | {found['open_cpu']:.2f} "
                f"| {found['seconds'][1]:.2f} | {found['main']:.0f} | {found['worker']:.0f} "
                f"| {found['pickled']:,} |",
                flush=True,
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        place, at, count, start = sys.argv[2:]
        print(json.dumps(measure(place, at, int(count), start)))
    else:
        numbers = [int(argument) for argument in sys.argv[1:] if argument != "--info"]
        report(numbers or [8, 100_000], only_info="--info" in sys.argv)
