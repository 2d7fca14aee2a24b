"""A long run: memory, threads and descriptors are the same at its end as at its start.

    python tests/chaos/soak.py --epochs 200 --samples 10000

Training reads a packed blend from an S3 server in a process of its own, through a cache, with one worker.
After each epoch, the main process and the worker are measured. The second tenth of the epochs is the start.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "support")]

import workload  # noqa: E402

from energon_stream import CacheConfig, get_savable_loader  # noqa: E402
from energon_stream.state import dumps  # noqa: E402
from energon_stream.testing.s3server import S3Server  # noqa: E402

GROWTH = 8 << 20
"""Bytes by which the memory of a process may differ between the start and the end."""


class Measure(NamedTuple):
    """Memory in bytes, threads and open files of a process; bytes of a saved state."""

    memory: int
    threads: int
    files: int
    state: int


def measure(pid: int, state: int = 0) -> Measure:
    """Measure a process now."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    memory = sum(int(lines[name].split()[0]) << 10 for name in ("RssAnon", "RssShmem"))
    return Measure(memory, int(lines["Threads"]), len(os.listdir(f"/proc/{pid}/fd")), state)


def flat(name: str, measures: list[Measure]) -> bool:
    """Compare the start with the end, print both, and return True if nothing grew."""
    count = max(1, len(measures) // 10)
    first, last = measures[count : 2 * count] or measures[:1], measures[-count:]
    begin = Measure(*(int(statistics.median(column)) for column in zip(*first, strict=True)))
    end = Measure(*(int(statistics.median(column)) for column in zip(*last, strict=True)))
    print(
        f"{name}: {begin.memory / 1e6:.1f} MB, {begin.threads} threads, {begin.files} files, state {begin.state}"
    )
    print(
        f"{' ' * len(name)}  {end.memory / 1e6:.1f} MB, {end.threads} threads, {end.files} files, state {end.state}"
    )
    grown = end.memory > begin.memory + GROWTH or end.state > begin.state + 2000
    return not (grown or end.threads > begin.threads or end.files > begin.files)


def run(epochs: int, samples: int, root: Path) -> bool:
    """Train; return True if nothing grew and each epoch had as many samples."""
    workload.write_dataset(root / "buckets" / "data", samples, 500)
    mains, workers, wrong, delivered = [], [], 0, 0
    begun = time.monotonic()
    with S3Server(root / "buckets", own_process=True) as server:
        cache = CacheConfig(str(root / "cache"), samples * 256, min_free_bytes=0)
        dataset = workload.open_dataset(
            "s3://data/mix.yaml",
            rank=0,
            world_size=1,
            workers=1,
            seed=1,
            storage_options=server.storage_options,
            cache=cache,
        )
        with get_savable_loader(dataset) as loader:
            for batch in loader:
                found = workload.indices(batch)
                wrong += int((found == workload.WRONG).sum())
                delivered += len(found)
                if delivered >= samples * (len(mains) + 1):
                    state = len(dumps(loader.save_state_rank()))
                    mains.append(measure(os.getpid(), state))
                    workers.append(measure(loader.worker_pids[0]))
                    if len(mains) == epochs:
                        break
    seconds = time.monotonic() - begun
    print(f"{epochs} epochs of {samples:,}: {delivered:,} samples in {seconds:.0f} s, {wrong} wrong")
    results = [flat("main process", mains), flat("worker", workers)]
    return all(results) and not wrong


def main() -> int:
    """Run; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--samples", type=int, default=10_000, help="of each epoch")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        good = run(options.epochs, options.samples, Path(folder))
    print("good" if good else "BAD")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
