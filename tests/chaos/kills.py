"""A thousand times: go on from the last saved state, be killed at a random moment; the order stays exact.

    python tests/chaos/kills.py --cycles 1000 --seed 1

Each cycle is a forked child, which restores, delivers from an S3 server in a process of its own, and saves
its state every few batches. The parent ends it with SIGKILL at a random moment. All that was delivered is
compared with an undisturbed run from local files.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NoReturn

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "support")]

import workload  # noqa: E402
from train import train  # noqa: E402

from energon_stream.testing.s3server import S3Server  # noqa: E402

SAMPLES = 20_000
LATEST = 0.15
"""Seconds after the first batch of a child, within which it is killed."""


def child(settings: dict) -> NoReturn:
    """Deliver until killed."""
    status = 1
    try:
        train(settings)
        status = 0
    finally:
        os._exit(status)


def wait(pid: int, notes: Path, size: int) -> int | None:
    """Wait until a child has delivered something; return its status if it ended."""
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        if notes.exists() and notes.stat().st_size > size:
            return None
        time.sleep(0.002)


def run(cycles: int, seed: int, root: Path) -> bool:
    """Run the cycles; return True if all deliveries are the planned ones, and nothing is left."""
    dice, begun = random.Random(seed), time.monotonic()
    workload.write_dataset(root / "buckets" / "data", SAMPLES, 1000)
    settings = {
        "folder": str(root / "plan"),
        "path": str(root / "buckets" / "data" / "mix.yaml"),
        "rank": 0,
        "world_size": 1,
        "workers": 0,
        "seed": seed,
        "cache": None,
        "storage_options": None,
        "read_options": {},
        "loader_options": {},
        "save_every": 1,
        "batches": 0,
    }
    killed = finished = passes = 0
    problems = dict.fromkeys(("lost", "repeated", "reordered", "wrong"), 0)
    again = 0
    (root / "plan").mkdir()
    if os.waitstatus_to_exitcode(os.waitpid(fork(settings | {"samples": SAMPLES}), 0)[1]):
        raise RuntimeError("the undisturbed run failed")
    planned = [raw for _, raw in workload.read_notes(root / "plan" / "notes")]
    with S3Server(root / "buckets", own_process=True) as server:
        remote = {
            "path": "s3://data/mix.yaml",
            "storage_options": server.storage_options,
            "samples": 0,
            "batches": len(planned),
        }
        while killed < cycles:
            folder = root / f"pass-{passes}"
            folder.mkdir()
            passes += 1
            while killed < cycles:
                notes = folder / "notes"
                size = notes.stat().st_size if notes.exists() else 0
                every = dice.choice([1, 1, 2, 3, 7])
                pid = fork(settings | remote | {"folder": str(folder), "save_every": every})
                status = wait(pid, notes, size)
                if status is None:
                    time.sleep(dice.random() * LATEST)
                    os.kill(pid, signal.SIGKILL)
                    status = os.waitpid(pid, 0)[1]
                code = os.waitstatus_to_exitcode(status)
                if code == 0:
                    finished += 1
                    break
                if code != -signal.SIGKILL:
                    raise RuntimeError(f"a child ended with status {code}")
                killed += 1
            complete = killed < cycles
            found = workload.compare(planned, workload.read_notes(folder / "notes"), complete)
            again += found["again"]
            for name in problems:
                problems[name] += found[name]
    print(
        f"seed {seed}: {killed} kills and resumes in {passes} passes of {len(planned)} batches ({finished} finished, "
        f"{again} batches delivered again), {time.monotonic() - begun:.0f} s"
    )
    print("samples: " + ", ".join(f"{count} {name}" for name, count in problems.items()))
    leftovers = [path.name for path in root.glob("pass-*/*") if path.suffix == ".new"]
    print(f"threads here: {threading.active_count()}; unfinished files of killed savers: {len(leftovers)}")
    return not any(problems.values())


def fork(settings: dict) -> int:
    """Fork a child; return its number."""
    pid = os.fork()
    if pid == 0:
        child(settings)
    return pid


def main() -> int:
    """Run; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--cycles", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        good = run(options.cycles, options.seed, Path(folder))
    print("good" if good else "BAD")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
