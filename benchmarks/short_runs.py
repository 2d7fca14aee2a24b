"""Do short processes end as they should? Many of them, in every way of ending; anything but 0 troubles is a
bug.

    python benchmarks/short_runs.py [--runs 200] [--jobs 2] [--seed 0]

Each run opens a loader on the stand-in, takes a batch and ends: by itself with or without closing, by
``sys.exit``, by an exception, by an interrupt from the terminal, or with slow reads under way. A trouble is
another exit code than the expected one (an abort is a negative one), more than 60 s, words of a crash on
stderr, or something left behind: a process, or a file in ``/dev/shm``.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from energon_stream import (
    Cooker,
    DefaultTaskEncoder,
    WorkerConfig,
    basic_sample_keys,
    get_savable_loader,
    get_train_dataset,
)
from energon_stream.storage import StoreSpec
from energon_stream.testing.datasets import prepared_binary_dataset
from energon_stream.testing.s3server import S3Server

SAMPLES, BATCH, LIMIT, GONE_WITHIN = 240, 8, 60.0, 8.0
MODES = ((0, "fork"), (2, "fork"), (2, "spawn"))
EXPECTED = {"closes": 0, "returns": 0, "exits": 3, "raises": 1, "interrupted": -signal.SIGINT, "reading": 0}
SLOW = 300_000  # bytes per second and connection: a read of some MB is under way for seconds
CRASHES = ("Aborted", "Fatal Python", "panicked", "Segmentation", "terminate called", "core dumped", "leaked")
SHARED = Path("/dev/shm")


class Encoder(DefaultTaskEncoder):
    """Keys only."""

    decoder = None
    cookers = [Cooker(basic_sample_keys)]

    def batch(self, samples):
        return [sample["__key__"] for sample in samples]


def all_cases():
    """Every way to run; where the parent used obstore before the fork, workers cannot."""
    for (workers, method), ending in itertools.product(MODES, EXPECTED):
        for transport, used in (("auto", False), ("auto", True), ("fsspec", False)):
            if not (used and method == "spawn"):
                yield {
                    "workers": workers,
                    "method": method,
                    "ending": ending,
                    "transport": transport,
                    "used_before": used,
                }


def choose(runs, seed):
    """Some cases: all of them in a random order, over and over, each ending as often as the others."""
    dice = random.Random(seed)
    by_ending = {ending: [case for case in all_cases() if case["ending"] == ending] for ending in EXPECTED}
    for cases in by_ending.values():
        dice.shuffle(cases)
    turns = zip(*(itertools.cycle(cases) for cases in by_ending.values()), strict=False)
    return list(itertools.islice(itertools.chain.from_iterable(turns), runs))


def child(case):
    """One short run."""
    # A shell that starts us in the background has interrupts ignored, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    options = {"key": "k", "secret": "s", "endpoint_url": case["endpoint"]}
    if case["used_before"]:
        StoreSpec(case["url"], options).open().get(".nv-meta/.info.json")
    dataset = get_train_dataset(
        case["url"],
        batch_size=BATCH,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        worker_config=WorkerConfig(0, 1, case["workers"]),
        task_encoder=Encoder(),
        storage_options=options,
        transport=case["transport"],
    )
    loader = get_savable_loader(dataset, start_method=case["method"])
    batches = iter(loader)
    next(batches)
    if case["ending"] == "closes":
        loader.close()
    elif case["ending"] == "exits":
        sys.exit(3)
    elif case["ending"] == "raises":
        raise ValueError("on purpose")
    elif case["ending"] == "interrupted":
        print("ready", flush=True)
        for _ in batches:
            time.sleep(0.01)
    elif case["ending"] == "reading":
        next(batches)


def living(folder):
    """Processes that work in the folder of a run, in which it and all that it starts begin."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.readlink(entry / "cwd") == folder:
                found.append(int(entry.name))
    return found


def abandoned(before):
    """New files in ``/dev/shm`` that no process maps: those of other programs are in use, or soon go."""
    deadline = time.monotonic() + GONE_WITHIN
    while SHARED.is_dir():
        left = set(os.listdir(SHARED)) - before
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                maps = (entry / "maps").read_text(errors="replace")
                left = {name for name in left if f"{SHARED}/{name}" not in maps}
        if not left or time.monotonic() > deadline:
            return sorted(left)
        time.sleep(0.2)
    return []


def one_run(case):
    """Run a case; returns what was wrong with it."""
    with tempfile.TemporaryDirectory(prefix="short-run-") as folder:
        return run_in(os.path.realpath(folder), case)


def run_in(folder, case):
    """Run a case in a folder of its own."""
    command = [sys.executable, __file__, "--child", json.dumps(case)]
    begin = time.monotonic()
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
        start_new_session=True,
        text=True,
    )
    troubles = []
    try:
        if case["ending"] == "interrupted":
            if process.stdout.readline() != "ready\n":
                troubles.append("no batch")
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        troubles.append(f"hangs for more than {LIMIT:.0f} s")
        os.killpg(process.pid, signal.SIGKILL)
        _, errors = process.communicate()
    seconds = time.monotonic() - begin
    if process.returncode != EXPECTED[case["ending"]]:
        troubles.append(f"exit code {process.returncode}")
    troubles += [f"stderr says {word!r}" for word in CRASHES if word in errors]
    deadline = time.monotonic() + GONE_WITHIN
    while (left := living(folder)) and time.monotonic() < deadline:
        time.sleep(0.1)
    if left:
        troubles.append(f"{len(left)} processes left")
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return {**case, "seconds": round(seconds, 1), "troubles": troubles, "stderr": errors if troubles else ""}


def run_all(runs, jobs, seed):
    """Run cases on a stand-in; returns their reports, and the files left in ``/dev/shm``."""
    before = set(os.listdir(SHARED)) if SHARED.is_dir() else set()
    with contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="short-runs-")))
        prepared_binary_dataset(root / "bucket" / "data", samples=SAMPLES, shards=4)
        fast = stack.enter_context(S3Server(root, own_process=True))
        slow = stack.enter_context(S3Server(root, own_process=True, rate=SLOW))
        cases = [
            {
                **case,
                "url": "s3://bucket/data",
                "endpoint": (slow if case["ending"] == "reading" else fast).endpoint_url,
            }
            for case in choose(runs, seed)
        ]
        with ThreadPoolExecutor(jobs) as pool:
            reports = list(pool.map(one_run, cases))
    return reports, abandoned(before)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child)
        return
    reports, files = run_all(options.runs, options.jobs, options.seed)
    bad = [report for report in reports if report["troubles"]]
    for report in bad:
        print(json.dumps({name: value for name, value in report.items() if name != "stderr"}))
        print(report["stderr"][-4000:])
    longest = max(report["seconds"] for report in reports)
    print(
        f"{len(reports)} runs, {len(bad)} with troubles, longest {longest} s; left in /dev/shm: {files or 'nothing'}"
    )
    sys.exit(bool(bad or files))


if __name__ == "__main__":
    main()
