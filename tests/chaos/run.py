"""Trains while everything fails, and compares what was delivered with an undisturbed run: ``make chaos``.

Two ranks with workers read a blend of two datasets through a cache from an S3 server behind a fault proxy.
Main processes, workers, and all processes at once are killed, objects are replaced, and files of the cache
are damaged. Each rank goes on from the last state that it saved. In the end, each delivered batch is compared
with the one of a run from local files.

    python tests/chaos/run.py --samples 1000000 --seconds 900 --seed 1

Ends with status 1 if a sample was lost, repeated, reordered or wrong, if anything leaked, if a failure had no
name, or if the run did not end in time.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "support")]

import children  # noqa: E402
import workload  # noqa: E402
from opponents import Opponents, serve  # noqa: E402

from energon_stream.testing.proxy import Fault, FaultProxy, all_faults  # noqa: E402

TICK = 0.05
STUCK_SECONDS = 120.0
"""A rank that delivers nothing for so long hangs: far longer than all outages and retries."""
SLOWEST = 10.0
"""The run may take so many times its seconds to its end, on a machine that is busy with other work."""


class Rank:
    """One rank: its folder, its present process, and how its processes ended."""

    def __init__(self, settings: dict[str, Any], environment: dict[str, str]) -> None:
        self.settings = settings
        self.folder = Path(settings["folder"])
        self.folder.mkdir(parents=True)
        self.environment = environment
        self.child: children.Child | None = None
        self.killed = False
        self.starts = 0
        self._size, self._grown = 0, time.monotonic()

    def start(self) -> None:
        """Start a process, which goes on from the last saved state."""
        for name in ("workers", "error", "end"):
            (self.folder / name).unlink(missing_ok=True)
        path = self.folder / "settings.json"
        path.write_text(json.dumps(self.settings))
        with (self.folder / "log").open("ab") as log:
            self.child = children.start(
                HERE / "train.py", path, stdin=None, stdout=log, stderr=log, env=self.environment
            )
        self.killed, self.starts, self._grown = False, self.starts + 1, time.monotonic()

    @property
    def is_delivering(self) -> bool:
        """True if the present process has delivered a batch."""
        return self.child is not None and (self.folder / "workers").exists()

    def kill(self, what: str) -> bool:
        """Kill the process (``main``), one of its workers, or all of them (``machine``)."""
        if self.child is None or (what == "worker" and not self.is_delivering):
            return False
        with suppress(ProcessLookupError):
            if what == "main":
                os.kill(self.child.pid, signal.SIGKILL)
            elif what == "machine":
                os.killpg(self.child.pid, signal.SIGKILL)
            else:
                pids = json.loads((self.folder / "workers").read_bytes())
                os.kill(random.choice(pids), signal.SIGKILL)
        self.killed = self.killed or what != "worker"
        return True

    def ended(self) -> tuple[str, str] | None:
        """Return how the process ended and what it said; None while it runs."""
        if self.child is None or self.child.poll() is None:
            return None
        code, self.child = self.child.returncode, None
        if code == 0 and (self.folder / "end").exists():
            return "finished", ""
        if self.killed:
            return "killed", ""
        with suppress(OSError):
            error = json.loads((self.folder / "error").read_bytes())
            return (error["named"] or ["unnamed failure"])[0], error["text"]
        return f"unnamed failure (status {code})", ""

    @property
    def batches(self) -> int:
        """Number of the last batch that was noted."""
        size = (self.folder / "notes").stat().st_size if (self.folder / "notes").exists() else 0
        if size != self._size:
            self._size, self._grown = size, time.monotonic()
        return size

    @property
    def is_stuck(self) -> bool:
        """True if nothing was delivered for long."""
        return self.child is not None and time.monotonic() - self._grown > STUCK_SECONDS


class Chaos:
    """The whole run; see the module."""

    def __init__(self, options: argparse.Namespace, root: Path) -> None:
        self.options, self.root = options, root
        self.dice = random.Random(options.seed)
        self.counts = Counter[str]()
        self.ends = Counter[str]()
        self.failures: list[str] = []
        self.mark = uuid.uuid4().hex
        self.environment = os.environ | {
            "CHAOS_MARK": self.mark,
            "TMPDIR": str(root / "tmp"),
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        (root / "tmp").mkdir()
        children.launcher()  # the server of child processes keeps descriptors, which are no leak

    def settings(self, rank: int, folder: str, path: str, **changes: Any) -> dict[str, Any]:
        """Return the settings of a rank's processes."""
        options = self.options
        return {
            "folder": str(self.root / f"{folder}-{rank}"),
            "path": path,
            "rank": rank,
            "world_size": options.ranks,
            "workers": options.workers,
            "seed": options.seed,
            "cache": None,
            "storage_options": None,
            "read_options": {"max_request": options.request_bytes},
            "loader_options": {},
            "save_every": options.save_every,
            "batches": 0,
            "samples": 0,
            **changes,
        }

    def plan(self) -> list[list[bytes]]:
        """Return the indices of each batch of each rank, as a run from local files delivers them."""
        ranks = []
        for number in range(self.options.ranks):
            samples = -(-self.options.samples // self.options.ranks)
            path = str(self.root / "buckets" / "data" / "mix.yaml")
            ranks.append(Rank(self.settings(number, "plan", path, samples=samples), self.environment))
            ranks[-1].start()
        for rank in ranks:
            assert rank.child is not None
            rank.child.wait()
            if rank.ended() != ("finished", ""):
                raise RuntimeError((rank.folder / "log").read_text())
        return [[raw for _, raw in workload.read_notes(rank.folder / "notes")] for rank in ranks]

    def run(self) -> bool:
        """Do it all; return True if nothing is wrong."""
        begun = time.monotonic()
        files = (set(os.listdir("/dev/shm")), len(os.listdir("/proc/self/fd")), threading.active_count())
        workload.write_dataset(
            self.root / "buckets" / "data", self.options.samples, self.options.shard_samples
        )
        planned = self.plan()
        self.say(f"planned {sum(map(len, planned)):,} batches in {time.monotonic() - begun:.0f} s")
        with ExitStack() as stack:
            server = stack.enter_context(serve(self.options.server, self.root / "buckets"))
            proxy = stack.enter_context(FaultProxy(server.endpoint_url, seed=self.options.seed))
            proxy.set_faults(self.faults())
            self.train(planned, server, proxy)
            # Counted while the proxy runs: it is the one that knows.
            self.counts.update(proxy.counts())
            requests = proxy.requests
        self.compare(planned)
        self.leaks(*files)
        self.report(requests, time.monotonic() - begun)
        return not self.failures

    def faults(self) -> list[Fault]:
        """Return the faults of the proxy. Those that end a run are rarer, because each costs a restart."""
        options = self.options
        faults = all_faults(options.share, seconds=options.fault_seconds)
        for place, fault in enumerate(faults):
            if fault.kind in ("refuse", "freeze"):
                faults[place] = Fault(fault.kind, options.outage_share, options.outage_seconds)
            elif fault.kind in options.rare:
                faults[place] = Fault(fault.kind, options.share / 10, options.fault_seconds)
        return faults

    def train(self, planned: list[list[bytes]], server: Any, proxy: FaultProxy) -> None:
        """Train, attack and restart, until each rank has delivered all batches."""
        options, begun = self.options, time.monotonic()
        credentials = server.storage_options | {"endpoint_url": proxy.endpoint_url}
        cache = {"directory": str(self.root / "cache"), "max_bytes": options.cache_bytes, "min_free_bytes": 0}
        extra: dict[str, Any] = {"storage_options": credentials, "cache": cache}
        if options.retry_deadline:
            extra["read_options"] = {
                "max_request": options.request_bytes,
                "retry_deadline": options.retry_deadline,
            }
        if options.restart_workers:
            extra["loader_options"] = {"on_worker_death": "restart"}
        self.ranks = [
            Rank(
                self.settings(
                    n,
                    "rank",
                    "s3://data/mix.yaml",
                    batches=len(plan),
                    gate=str(self.root / "gate"),
                    gate_at=len(plan) * 9 // 10,
                    **extra,
                ),
                self.environment,
            )
            for n, plan in enumerate(planned)
        ]
        opponents = Opponents(self, server)
        sizes = [sum(12 + len(raw) for raw in plan) for plan in planned]
        for rank in self.ranks:
            rank.start()
        running, due = list(self.ranks), 0.0
        while running:
            time.sleep(TICK)
            elapsed = time.monotonic() - begun
            progress = sum(
                min(1.0, rank.batches / size) for rank, size in zip(self.ranks, sizes, strict=True)
            )
            progress /= len(self.ranks)
            for rank in list(running):
                if self.after(rank) == "finished":
                    running.remove(rank)
                elif rank.is_stuck:
                    self.failures.append(
                        f"rank {rank.settings['rank']} delivered nothing for {STUCK_SECONDS} s"
                    )
                    rank.kill("machine")
            if elapsed > SLOWEST * options.seconds:
                self.failures.append(f"the run did not end in {elapsed:.0f} s ({progress:.0%} delivered)")
                for rank in running:
                    rank.kill("machine")
                return
            is_over = elapsed > 0.85 * options.seconds
            if is_over:
                proxy.set_faults([])
            # Attacks wait where the run is behind its time.
            is_early = not is_over and progress >= min(1.0, elapsed / (0.75 * options.seconds)) * 0.9
            if time.monotonic() >= due and (is_early or opponents.first):
                opponents.attack(running)
                wait = self.dice.expovariate(1 / options.every)
                due = time.monotonic() + (min(wait, TICK) if opponents.first else wait)
                if not opponents.first:  # the last tenth is delivered after an attack of each kind
                    (self.root / "gate").touch()

    def after(self, rank: Rank, *, restart: bool = True) -> str | None:
        """Note how a rank's process ended, and start the next one; return what happened."""
        end = rank.ended()
        if end is None:
            return None
        what, text = end
        self.ends[what] += 1
        if what.startswith("unnamed"):
            self.failures.append(f"{what}: {text[-2000:] or (rank.folder / 'log').read_text()[-2000:]}")
        if what == "finished":
            (before_files, before_threads), (files, threads) = json.loads(
                (rank.folder / "end").read_bytes()
            ).values()
            self.counts["files left open"] += max(0, files - before_files)
            self.counts["threads left"] += max(0, threads - before_threads)
        elif restart:
            rank.start()
        return what

    def compare(self, planned: list[list[bytes]]) -> None:
        """Compare the deliveries of all ranks with the plan."""
        total = Counter[str]()
        for rank, plan in zip(self.ranks, planned, strict=True):
            total.update(workload.compare(plan, workload.read_notes(rank.folder / "notes")))
        self.total = total
        for name in ("lost", "repeated", "reordered", "wrong"):
            if total[name]:
                self.failures.append(f"{total[name]} samples {name}")

    def leaks(self, shared: set[str], files: int, threads: int) -> None:
        """Look for processes, descriptors, threads, temporary files and shared memory that are left."""
        deadline = time.monotonic() + 60
        while (left := self.marked()) and time.monotonic() < deadline:
            time.sleep(0.2)
        found = {
            "processes": len(left),
            "shared memory": len(forsaken(set(os.listdir("/dev/shm")) - shared)),
            "temporary files": sum(1 for _ in (self.root / "tmp").rglob("*")),
            "descriptors of ranks": self.counts.pop("files left open", 0),
            "threads of ranks": self.counts.pop("threads left", 0),
            "threads here": max(0, threading.active_count() - threads),
            "descriptors here": max(0, len(os.listdir("/proc/self/fd")) - files),
        }
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.left = found
        self.failures += [f"{count} {name} left" for name, count in found.items() if count]

    def marked(self) -> list[int]:
        """Return the processes of this run that are alive."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if self.mark.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
        return found

    def report(self, requests: int, seconds: float) -> None:
        """Print the outcome."""
        options, total = self.options, self.total
        self.say(
            f"seed {options.seed}: {total['delivered']:,} samples delivered ({options.samples:,} planned, "
            f"{total['again']:,} batches again after a restore), {requests:,} requests, {seconds:.0f} s"
        )
        names = ("lost", "repeated", "reordered", "wrong")
        self.say("samples: " + ", ".join(f"{total[name]} {name}" for name in names))
        self.say("left: " + ", ".join(f"{count} {name}" for name, count in self.left.items()))
        self.say("survived: " + ", ".join(f"{name} {count}" for name, count in sorted(self.counts.items())))
        starts = sum(rank.starts for rank in self.ranks)
        self.say(f"processes started: {starts}; they ended so: {dict(self.ends)}")
        for failure in self.failures:
            self.say(f"FAILED: {failure}")
        self.say("good" if not self.failures else "BAD")

    def say(self, text: str) -> None:
        """Print a line at once."""
        print(text, flush=True)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    add = parser.add_argument
    add("--samples", type=int, default=1_000_000, help="samples to deliver, of all ranks together")
    add(
        "--seconds",
        type=float,
        default=900,
        help="time of attacks and faults; a busy machine needs longer to the end",
    )
    add("--seed", type=int, default=1)
    add("--ranks", type=int, default=2)
    add("--workers", type=int, default=2, help="worker processes of each rank")
    add("--server", default="stand-in", choices=["stand-in", "seaweedfs", "localstack"])
    add("--every", type=float, default=2.0, help="mean seconds between attacks")
    add("--share", type=float, default=0.01, help="share of the requests that have each kind of fault")
    add("--rare", nargs="*", default=["416", "html", "no-length", "wrong-etag"], help="a tenth as frequent")
    add("--fault-seconds", type=float, default=0.5, help="length of stalls and late answers")
    add("--outage-share", type=float, default=0.0005)
    add("--outage-seconds", type=float, default=3.0)
    add(
        "--retry-deadline", type=float, default=0.0, help="ReadOptions(retry_deadline=...), 0 for its default"
    )
    add("--restart-workers", action="store_true", help='loaders with on_worker_death="restart"')
    add("--request-bytes", type=int, default=256 << 10, help="small requests meet more faults")
    add("--cache-bytes", default="100MB")
    add("--save-every", type=int, default=50, help="batches between saved states")
    add("--shard-samples", type=int, default=5000)
    add("--hold", type=float, default=8.0, help="seconds that objects stay replaced, unless all ranks notice")
    add("--keep", action="store_true", help="keep the folder")
    return parser.parse_args(arguments)


def forsaken(names: set[str]) -> list[str]:
    """Return the files of shared memory that are still there, and that no process has open or mapped.

    Others belong to programs that run beside this one, such as a browser of another test.
    """
    held = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            held.update(line.rpartition("/dev/shm/")[2] for line in (entry / "maps").read_text().splitlines())
        with suppress(OSError):
            held.update(os.path.basename(os.readlink(link)) for link in (entry / "fd").iterdir())
    return [name for name in sorted(names - held) if os.path.exists(f"/dev/shm/{name}")]


def main(arguments: list[str] | None = None) -> int:
    """Run; return the exit status."""
    options = parse(arguments)
    random.seed(options.seed)
    root = Path(tempfile.mkdtemp(prefix="chaos-"))
    try:
        return 0 if Chaos(options, root).run() else 1
    finally:
        if options.keep:
            print(root)
        else:
            shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
