"""Peak memory above the imports while samples of 1 kB to 2 GB are read, beside the byte budget (design row
P14).

Each size in a process of its own, from nginx (or the stand-in), undecoded, without worker processes. A sample
is let go of before the next is asked for. The peak is the system's ("VmHWM"), so transport, threads and
allocators count.

    python benchmarks/memory_sizes.py [--budget-mib 256] [--sizes 1000 1000000] [--folder FOLDER]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from datasets import BUCKET, DATASETS
from nginx_s3 import serve

SIZES = [
    1_000,
    10_000,
    100_000,
    1_000_000,
    10_000_000,
    100_000_000,
    200_000_000,
    300_000_000,
    1_000_000_000,
    2_000_000_000,
]
MIB = 1 << 20
ONCE_MORE = 1.5  # passes of the budget that are read, so that it is full


def memory(name: str) -> int:
    """Bytes by a name of ``/proc/self/status``."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    raise KeyError(name)


def measure(endpoint: str, name: str, budget: int) -> dict[str, float]:
    """Read one pass of a dataset in this process."""
    from energon_stream import DefaultTaskEncoder, ReadOptions, WorkerConfig, get_loader, get_train_dataset

    class Undecoded(DefaultTaskEncoder):
        decoder = None

    imported = memory("VmRSS")
    begin = time.perf_counter()
    dataset = get_train_dataset(
        f"s3://{BUCKET}/{name}",
        batch_size=None,
        repeat=False,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        worker_config=WorkerConfig(0, 1, 0),
        task_encoder=Undecoded(),
        read_options=ReadOptions(byte_budget=budget),
        storage_options={
            "endpoint_url": endpoint,
            "key": "k",
            "secret": "s",
            "client_kwargs": {"region_name": "us-east-1"},
        },
    )
    samples = iter(get_loader(dataset))
    read = 0
    while (sample := next(samples, None)) is not None:
        read += len(sample["bin"])
        del sample
    return {
        "read": read,
        "imported": imported,
        "peak": memory("VmHWM") - imported,
        "seconds": time.perf_counter() - begin,
    }


def table(sizes: Sequence[int], budget: int, root: Path) -> None:
    """Print a row for each size."""
    for size in sizes:
        count = max(2, int(ONCE_MORE * budget) // size)
        about = replace(DATASETS["mem4m"], samples=count, payload=size, shards=1)
        about.write(root / BUCKET / str(size), about)
    with serve(root) as server:
        sys.stdout.write(f"server {server.kind}, byte budget {budget / MIB:.0f} MiB\n")
        sys.stdout.write("   sample bytes  samples  peak MiB  budget or sample MiB  ratio  seconds\n")
        for size in sizes:
            command = [sys.executable, __file__, "--measure", server.endpoints["H0"], str(size)]
            command += ["--budget-mib", str(budget // MIB)]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            found = json.loads(output)
            most = max(budget, size)
            sys.stdout.write(
                f"{size:15,d} {found['read'] // size:8.0f} {found['peak'] / MIB:9.1f} {most / MIB:21.1f}"
                f" {found['peak'] / most:6.2f} {found['seconds']:8.1f}\n"
            )
            sys.stdout.flush()


def main() -> None:
    """Measure in child processes, or, with ``--measure``, be one."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--budget-mib", type=int, default=256)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--folder", help="where the sparse datasets go; default: a temporary folder")
    parser.add_argument("--measure", nargs=2, metavar=("ENDPOINT", "DATASET"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    budget = options.budget_mib * MIB
    if options.measure:
        sys.stdout.write(json.dumps(measure(*options.measure, budget)))
        return
    with tempfile.TemporaryDirectory(prefix="bench-memory-", dir=options.folder) as folder:
        table(options.sizes, budget, Path(folder))


if __name__ == "__main__":
    main()
