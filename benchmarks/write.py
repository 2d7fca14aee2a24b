"""Speed of writing a dataset: ShardWriter beside the writers of others, on the same samples.

Each round runs each writer once, in a new process, to a folder that is removed afterwards. Prints samples and
megabytes a second, and CPU seconds, the medians of the rounds. ShardWriter's dataset is complete then, with
index and checksums; a WebDataset folder is one that ``energon-stream prepare`` still has to index.

    python benchmarks/write.py --peers .venv-peers/bin/python      # `make peers` makes that environment

``--peers`` is a Python with mosaicml-streaming and litdata; without it, they are left out. ``webdataset``
comes with the extra ``test``.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHARD = 64 << 20
BLOCK = os.urandom(1 << 20)


def sample(payload: int, number: int) -> tuple[bytes, bytes]:
    """Image bytes and JSON of a sample; the same for all writers, and cheap to make."""
    start = number * 977 % (len(BLOCK) - payload)
    return BLOCK[start : start + payload], json.dumps({"number": number, "text": "x" * 50}).encode()


def ours(folder: str, samples: int, payload: int) -> None:
    from energon_stream import ShardWriter

    with ShardWriter(folder, max_size=SHARD) as writer:
        for number in range(samples):
            image, text = sample(payload, number)
            writer.write({"__key__": f"{number:08d}", "jpg": image, "json": text})


def webdataset(folder: str, samples: int, payload: int) -> None:
    from webdataset import ShardWriter

    os.mkdir(folder)
    with ShardWriter(f"{folder}/%06d.tar", maxcount=1 << 40, maxsize=SHARD, verbose=0) as writer:
        for number in range(samples):
            image, text = sample(payload, number)
            writer.write({"__key__": f"{number:08d}", "jpg": image, "json": text})


def mds(folder: str, samples: int, payload: int) -> None:
    from candidates.mosaicml import import_streaming

    writer_type = import_streaming().MDSWriter

    with writer_type(out=folder, columns={"jpg": "bytes", "json": "bytes"}, size_limit=SHARD) as writer:
        for number in range(samples):
            image, text = sample(payload, number)
            writer.write({"jpg": image, "json": text})


def _item(payload: int, number: int) -> dict[str, bytes]:
    image, text = sample(payload, number)
    return {"jpg": image, "json": text}


def litdata(folder: str, samples: int, payload: int) -> None:
    from litdata import optimize

    optimize(
        fn=partial(_item, payload),
        inputs=list(range(samples)),
        output_dir=folder,
        chunk_bytes=SHARD,
        num_workers=1,
        verbose=False,
    )


WRITERS = {
    "ShardWriter": ours,
    "webdataset.ShardWriter": webdataset,
    "MDSWriter": mds,
    "litdata.optimize": litdata,
}


def cpu_seconds() -> float:
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def child(name: str, samples: int, payload: int, parent: str) -> None:
    """Write once; print seconds and CPU seconds, without those of imports."""
    folder = tempfile.mkdtemp(dir=parent)
    os.environ["DATA_OPTIMIZER_CACHE_FOLDER"] = f"{folder}/cache"  # of litdata
    WRITERS[name](f"{folder}/warm", 10, payload)
    begin, cpu = time.perf_counter(), cpu_seconds()
    WRITERS[name](f"{folder}/data", samples, payload)
    print(json.dumps([time.perf_counter() - begin, cpu_seconds() - cpu]), flush=True)
    shutil.rmtree(folder)


def measure(python: str, name: str, samples: int, payload: int, parent: str) -> tuple[float, float]:
    """Run one writer in a process of its own."""
    arguments = ["--child", name, "--samples", str(samples), "--payload", str(payload), "--folder", parent]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [python, __file__, *arguments], capture_output=True, text=True, check=True, env=environment
    )
    seconds, cpu = json.loads(done.stdout.strip().splitlines()[-1])
    return seconds, cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--peers", help="Python that has the other writers")
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--payload", type=int, default=40_000, help="bytes of the larger of two parts")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="where datasets are written")
    parser.add_argument("--child", choices=list(WRITERS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.samples, options.payload, options.folder)
        return
    names = list(WRITERS) if options.peers else ["ShardWriter", "webdataset.ShardWriter"]
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for _ in range(options.rounds):
        for name in names:
            python = options.peers if name in ("MDSWriter", "litdata.optimize") else sys.executable
            found[name].append(measure(python, name, options.samples, options.payload, options.folder))
    size = options.samples * sum(map(len, sample(options.payload, options.samples)))
    print(f"{options.samples} samples of {options.payload} and about 80 bytes, {options.rounds} rounds")
    print("| writer | samples/s | MB/s | CPU s |")
    print("|---|---|---|---|")
    for name, times in found.items():
        seconds, cpu = (statistics.median(column) for column in zip(*times, strict=True))
        print(f"| {name} | {options.samples / seconds:,.0f} | {size / 1e6 / seconds:,.0f} | {cpu:.2f} |")


if __name__ == "__main__":
    main()
