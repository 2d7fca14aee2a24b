"""Cost of a loader's statistics: `python benchmarks/stats_overhead.py --rounds 7`.

Both sides read one pass of the same local dataset, in turn, in this process and with one worker. Samples cost
little, so that the share is as large as it gets. ``off`` has no profiler thread, and no counters of requests
and batches. ``watched`` has both, and a thread that exports metrics ten times a second. ``traced`` also
records a trace. Printed is the median of the rounds' ratios of CPU time, with the range, and the ratio of the
fastest rounds; wall time depends on other programs.

These ratios are noisy, so the cost is counted as well: all functions that only statistics need are timed on
the thread that runs them, with the thread's own CPU clock, and the profiler's thread as a whole. Their sum is
a share of the CPU time of the same pass. It includes the clock's own cost, so it is an upper bound.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import pickle
import statistics
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

from prometheus_client import CollectorRegistry, generate_latest

from energon_stream import DefaultTaskEncoder, WorkerConfig, get_loader, get_train_dataset, stateless
from energon_stream.integrations.prometheus import LoaderCollector
from energon_stream.loader.observe import meter
from energon_stream.loader.observe.profile import Profile
from energon_stream.storage.counters import StorageCounters
from energon_stream.testing.datasets import prepared_binary_dataset


class NoProfiler:
    """Looks at nothing."""

    looks = 0

    def __init__(self, ident):
        self.idents = (ident,)

    def snapshot(self):
        return Profile()

    def close(self):
        pass


def _ignore(*_):
    pass


@contextmanager
def switched_off():
    """Make loaders without a profiler, and without counts of batches."""
    with (
        mock.patch.object(meter, "Profiler", NoProfiler),
        mock.patch.object(meter.Meter, "received", _ignore),
    ):
        yield


@contextmanager
def exported(loader):
    """Export the loader's metrics ten times a second."""
    registry, over = CollectorRegistry(), threading.Event()
    registry.register(LoaderCollector(loader))

    def export():
        while not over.wait(0.1):
            generate_latest(registry)

    thread = threading.Thread(target=export)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class Costs:
    """Adds up calls and CPU seconds, of this process and of its workers, which leave theirs in a folder."""

    def __init__(self, folder):
        self.folder, self.pid = folder, os.getpid()
        self.calls, self.seconds = {}, {}

    def add(self, name, calls, seconds):
        self.calls[name] = self.calls.get(name, 0) + calls
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def timed(self, name, function, then=lambda value: None):
        """A function whose CPU time counts, with what is done with its value."""

        @functools.wraps(function)
        def call(*arguments, **options):
            begin = time.thread_time()
            value = function(*arguments, **options)
            then(value)
            self.add(name, 1, time.thread_time() - begin)
            return value

        return call

    def close(self, reporter, close):
        """Count the profiler's thread, and leave a worker's costs, before it is closed."""
        profiler = reporter.profiler
        clock = time.pthread_getcpuclockid(profiler._repeater._thread.ident)
        self.add("looks", profiler.looks, time.clock_gettime(clock))
        if os.getpid() != self.pid:
            text = json.dumps([self.calls, self.seconds])
            (self.folder / f"costs-{os.getpid()}.json").write_text(text)
        close(reporter)

    def collect(self):
        """Add what workers left."""
        for path in self.folder.glob("costs-*.json"):
            calls, seconds = json.loads(path.read_text())
            for name, count in calls.items():
                self.add(name, count, seconds[name])
            path.unlink()


def through_a_channel(report):
    """Do what a report costs on its way to the main process, if there is one."""
    if report is not None:
        pickle.loads(pickle.dumps(report))


@contextmanager
def counted(costs):
    """Time all functions that only statistics need."""
    close = meter.Reporter.close
    with ExitStack() as stack:
        for owner, name, what, then in (
            (meter.Meter, "ask", "batches", None),
            (meter.Meter, "received", "batches", None),
            (meter.Reporter, "news", "reports", through_a_channel),
            (StorageCounters, "begin", "requests", None),
            (StorageCounters, "end", "requests", None),
            (StorageCounters, "plan", "requests", None),
        ):
            function = costs.timed(what, getattr(owner, name), then or (lambda value: None))
            stack.enter_context(mock.patch.object(owner, name, function))
        stack.enter_context(mock.patch.object(meter.Reporter, "close", lambda self: costs.close(self, close)))
        yield


class Working(DefaultTaskEncoder):
    """Works on each sample for some microseconds, as decoding does."""

    def __init__(self, microseconds):
        super().__init__()
        self.seconds = microseconds / 1e6

    @stateless
    def encode_sample(self, sample):
        end = time.thread_time() + self.seconds
        while self.seconds and time.thread_time() < end:
            pass
        return sample


def one_pass(folder, workers, batch_size, work, kind, costs=None):
    """Return seconds and CPU seconds of a pass, those of workers among them."""
    dataset = get_train_dataset(
        str(folder),
        batch_size=batch_size,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        worker_config=WorkerConfig(0, 1, workers),
        repeat=False,
        task_encoder=Working(work),
    )
    with ExitStack() as stack:
        if kind == "off":
            stack.enter_context(switched_off())
        if costs is not None:
            stack.enter_context(counted(costs))
        begin, used = time.perf_counter(), cpu_seconds()
        with get_loader(dataset) as loader:
            if kind in ("watched", "traced"):
                stack.enter_context(exported(loader))
            if kind == "traced":
                stack.enter_context(loader.trace(folder.parent / "trace.json"))
            for _ in loader:
                pass
        stack.pop_all().close()  # ends the exporter and the trace within the time
        return time.perf_counter() - begin, cpu_seconds() - used


def cpu_seconds():
    """CPU time of this process and of the workers that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def main():
    """Print the speed, and the ratio of each kind's CPU time to that of ``off``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=200_000)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--work", type=float, default=0, help="microseconds of work on each sample")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--kinds", default="off,on,watched,traced")
    options = parser.parse_args()
    kinds = options.kinds.split(",")
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "data"
        prepared_binary_dataset(folder, shards=8, samples=options.samples, payload_bytes=200)
        for workers in (0, 1):
            found = {kind: [] for kind in kinds}
            one_pass(folder, workers, options.batch_size, options.work, "off")  # opens and compiles
            for turn in range(options.rounds):
                for kind in kinds if turn % 2 else kinds[::-1]:
                    found[kind].append(one_pass(folder, workers, options.batch_size, options.work, kind))
            for kind in kinds:
                wall = statistics.median(wall for wall, _ in found[kind])
                pairs = zip(found[kind], found["off"], strict=True)
                ratios = sorted(cpu / base for (_, cpu), (_, base) in pairs)
                least = min(cpu for _, cpu in found[kind]) / min(cpu for _, cpu in found["off"])
                print(
                    f"num_workers={workers} {kind:8} {options.samples / wall:9,.0f} samples/s, CPU: "
                    f"{statistics.median(ratios):.3f} of off ({ratios[0]:.3f} to {ratios[-1]:.3f}), "
                    f"of the fastest rounds {least:.3f}",
                    flush=True,
                )
            shares = []
            for _ in range(options.rounds):
                costs = Costs(Path(root))
                wall, cpu = one_pass(folder, workers, options.batch_size, options.work, "on", costs)
                costs.collect()
                shares.append((sum(costs.seconds.values()) / cpu, costs, wall, cpu))
            share, costs, wall, cpu = sorted(shares, key=lambda found: found[0])[options.rounds // 2]
            parts = ", ".join(
                f"{name} {costs.calls[name] / wall:,.0f} a second of {seconds / costs.calls[name] * 1e6:.1f} µs"
                for name, seconds in costs.seconds.items()
                if costs.calls[name]
            )
            print(
                f"num_workers={workers} counted: {share:.2%} of the {cpu:.2f} CPU-s of a pass (median; "
                f"{min(found[0] for found in shares):.2%} to {max(found[0] for found in shares):.2%}): {parts}",
                flush=True,
            )


if __name__ == "__main__":
    main()
