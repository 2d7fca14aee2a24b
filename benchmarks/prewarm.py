"""Prewarming against the raw rate of range GETs.

    python benchmarks/prewarm.py [--data long200] [--profiles L10]

2 GB in 100 shards (``--data long200``: twice as many, so that the disk has to be written to meanwhile;
``d40x8``: 160 MB, a trial) from the stand-in at 50 ms, with 85 MB/s a connection (H50: this machine is the
limit) and with 10 MB/s (L10: the line is, with at most 480 MB/s). In interleaved rounds, each in a process of
its own, timed after its imports: obstore's own range GETs of 4 MiB, as many at a time as prewarming has,
whose bytes are dropped; the same with the bytes written to files; and ``energon_stream.prewarm()`` into an
empty cache, opening and planning included. "On the line" is the rate between the first request for a shard
and the end of the last one, by the server's log. After it, an epoch of training from the warmed cache, whose
requests the server counts.

Before each program the page cache is filled with holes of a sparse file, as it is with other data on a
machine that works: virtual machines give free memory back to their host, and to get it again takes longer
than all else. (The first time takes a minute or more.) The server's objects are in memory (tmpfs, holes and
all): on the disk that the client writes to, a read of one page that was evicted meanwhile holds up nginx's
one process, and with it all connections.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import datasets
import nginx_s3

PROFILES = ("L10", "H50")
IN_FLIGHT = 48
MEMORY = Path("/dev/shm")
ORDER = {"batch_size": 32, "shuffle_buffer_size": 100, "max_samples_per_sequence": 100}

PROLOGUE = """
import json, os, sys
spec = json.loads(sys.argv[1])
"""
RAW = """
import threading, time
import obstore
from obstore.store import S3Store

BLOCK = 4 << 20
begin = time.monotonic()
store = S3Store(spec["bucket"], endpoint=spec["endpoint"], access_key_id="x", secret_access_key="x", region="us-east-1",
                client_options={"allow_http": True})
tars = [m for some in obstore.list(store, prefix=spec["prefix"]) for m in some if m["path"].endswith(".tar")]
todo = iter([(m["path"], start, min(start + BLOCK, m["size"])) for m in tars for start in range(0, m["size"], BLOCK)])
lock = threading.Lock()
files = {}
if spec["folder"]:
    for m in tars:
        files[m["path"]] = os.open(os.path.join(spec["folder"], m["path"].replace("/", "_")), os.O_CREAT | os.O_RDWR)

def work():
    while True:
        with lock:
            item = next(todo, None)
        if item is None:
            return
        path, start, stop = item
        data = obstore.get_range(store, path, start=start, end=stop)
        if files:
            os.pwrite(files[path], memoryview(data), start)

threads = [threading.Thread(target=work) for _ in range(spec["in_flight"])]
for thread in threads: thread.start()
for thread in threads: thread.join()
seconds = time.monotonic() - begin
print(json.dumps([sum(m["size"] for m in tars), seconds]))
"""

PREWARM = """
import numpy, obstore, torch
import energon_stream as es
import energon_stream.prewarming, energon_stream.config
done = es.prewarm(
    spec["path"], cache=es.CacheConfig(spec["folder"], min_free_bytes=0), epochs=1, isolated=False, progress=False,
    worker_config=es.WorkerConfig(0, 1, 0), storage_options=spec["options"], **spec["order"],
)
assert done.is_complete
print(json.dumps([done.fetched_bytes, done.seconds]))
"""

TRAIN = """
import energon_stream as es

class Encoder(es.DefaultTaskEncoder):
    decoder = None
    cookers = [es.Cooker(es.stateless(lambda sample: es.basic_sample_keys(sample)))]
    def batch(self, samples):
        return len(samples)

dataset = es.get_train_dataset(
    spec["path"], cache=es.CacheConfig(spec["folder"], min_free_bytes=0), task_encoder=Encoder(),
    worker_config=es.WorkerConfig(0, 1, 0), storage_options=spec["options"], **spec["order"],
)
count = 0
with es.get_loader(dataset) as loader:
    for batch in loader:
        count += batch
        if count >= spec["samples"]:
            break
print(json.dumps([count, 0]))
"""


def run(program: str, **spec: object) -> list[float]:
    """Run a program and parse its output as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", PROLOGUE + program, json.dumps(spec)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    found: list[float] = json.loads(done.stdout)
    return found


def fill_page_cache(path: Path) -> None:
    """Read holes of a file until that takes no more of the free memory, and the memory was used over and
    over.
    """
    piece, step = bytearray(4 << 20), 64 << 20
    with path.open("w+b", buffering=0) as file:
        os.truncate(file.fileno(), 8 << 40)
        place = random.randrange(7 << 40) & -(1 << 30)  # not what an earlier call read
        least, since = _free_memory(), 0
        while since < 2 << 30:
            for _ in range(step // len(piece)):
                os.preadv(file.fileno(), [piece], place)
                place += len(piece)
            since += step
            if (free := _free_memory()) < least - step // 2:
                least, since = free, 0


def _free_memory() -> int:
    return 1024 * int(Path("/proc/meminfo").read_text().partition("MemFree:")[2].split()[0])


def main() -> None:
    """Parse the command line, make the data, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--data", choices=("long100", "long200", "d40x8"), default="long100")
    parser.add_argument("--profiles", nargs="+", choices=PROFILES, default=PROFILES)
    args = parser.parse_args()
    memory = MEMORY if MEMORY.is_dir() else None
    if memory is None:
        print(f"no {MEMORY} here: the server reads from the disk that the caches are on, and waits for it")
    with (
        tempfile.TemporaryDirectory(prefix="bench-", dir=memory) as objects,
        tempfile.TemporaryDirectory(prefix="bench-") as scratch,
    ):
        root, folder = Path(objects), Path(scratch) / "kept"
        datasets.write(root, [args.data])
        with nginx_s3.serve(root) as server:
            for profile in args.profiles:
                compare(server, args.data, profile, folder, Path(scratch) / "holes", args.rounds)


def compare(server: nginx_s3.Server, data: str, profile: str, folder: Path, holes: Path, rounds: int) -> None:
    """Measure and print one profile."""
    endpoint = server.endpoints[profile]
    raw: dict[str, object] = {
        "endpoint": endpoint,
        "bucket": datasets.BUCKET,
        "prefix": f"{data}/",
        "in_flight": IN_FLIGHT,
    }
    prewarm: dict[str, object] = {
        "path": f"s3://{datasets.BUCKET}/{data}",
        "folder": str(folder),
        "options": {"endpoint_url": endpoint, "key": "x", "secret": "x"},
        "order": ORDER,
        "samples": datasets.DATASETS[data].samples,
    }
    cases = {
        "raw": (RAW, raw | {"folder": None}),
        "raw, written": (RAW, raw | {"folder": str(folder)}),
        "prewarm": (PREWARM, prewarm),
    }
    rates: dict[str, list[float]] = {f"{name}{where}": [] for where in ("", " on the line") for name in cases}
    requests = []
    for _ in range(rounds):
        for name, (program, spec) in cases.items():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            fill_page_cache(holes)
            server.take()
            size, seconds = run(program, **spec)
            rates[name].append(size / seconds / 1e6)
            shards = [request for request in server.take() if request.path.endswith(".tar")]
            spent = max(request.end for request in shards) - min(request.start for request in shards)
            rates[f"{name} on the line"].append(sum(request.nbytes for request in shards) / spent / 1e6)
        run(TRAIN, **prewarm)
        asked = server.take()
        requests.append(
            sum(1 for request in asked if request.method == "GET" and request.path.count("/") > 2)
        )
    for name, found in rates.items():
        print(
            f"{profile} {name}: {statistics.median(found):,.0f} MB/s ({min(found):,.0f} to {max(found):,.0f})"
        )
    for where in ("", " on the line"):
        for name in (f"raw{where}", f"raw, written{where}"):
            ratios = [one / other for one, other in zip(rates[f"prewarm{where}"], rates[name], strict=True)]
            print(
                f"{profile} prewarm / {name}: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            )
    print(f"{profile} requests for objects in the epoch after it: {requests}")


if __name__ == "__main__":
    main()
