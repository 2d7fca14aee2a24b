"""The same faults against all loaders that are installed: finished and right, error, wrong data, or hang.

    python benchmarks/peer_faults.py --seconds 120 [--only ours,s3torch] [--faults 503,stall]

Each case is one pass over a small dataset, by one loader in a process of its own with one worker, from the
stand-in server behind a fault proxy. The faults strike requests for shards (drop: connections). A loader must
deliver each sample once, with the bytes of its key. ``make peers`` installs the others.
"""

import argparse
import contextlib
import hashlib
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPEATS = 60
SHARDS = 32
SLOW = 30.0
# Share of the requests, most times, seconds; None for no limit. Outages begin at a request for a shard.
FAULTS: dict[str, tuple[float, int | None, float]] = {
    "none": (0.0, 0, 0.0),
    "503": (0.2, None, 0.0),
    "500": (0.2, None, 0.0),
    "no-answer": (0.2, 3, 0.0),
    "reset": (0.2, 3, 0.0),
    "truncate": (0.2, 3, 0.0),
    "drop": (0.5, 3, 0.0),
    "no-length": (0.2, 3, 0.0),
    "wrong-etag": (0.2, 3, 0.0),
    "html": (0.2, 3, 0.0),
    "416": (0.2, 3, 0.0),
    "stall": (0.2, 2, SLOW),
    "trickle": (0.2, 2, SLOW),
    "late": (0.2, 2, SLOW),
    "refuse": (0.2, 1, 5.0),
    "freeze": (0.2, 1, SLOW),
}
ERROR = re.compile(r"(?:\w+\.)*(\w+(?:Error|Exception))\b")
"""A line of a traceback that names an exception."""
DATA = {"mosaicml": "*.mds", "litdata": "*.bin"}
"""Names of the shards, where a loader has a format of its own."""


def payload(key: str) -> bytes:
    """The bytes of a sample."""
    return hashlib.md5(key.encode()).hexdigest().encode() * REPEATS


def read_one(spec: dict) -> None:
    """Read a pass, in a loader's own interpreter; print the outcome as JSON."""
    seen, wrong = {}, 0
    loader = importlib.import_module(f"candidates.{spec['candidate']}").prepare(spec)()
    for batch in loader:
        for key, content in zip(batch["__key__"], batch["bin"], strict=True):
            key = key.rpartition("/")[2]
            seen[key] = seen.get(key, 0) + 1
            wrong += bytes(content) != payload(key)
    repeated = sum(count - 1 for count in seen.values())
    print(json.dumps({"lost": spec["samples"] - len(seen), "repeated": repeated, "wrong": wrong}))


def run_case(python: str, spec: dict, seconds: float) -> str:
    """Run one case; return its outcome."""
    with tempfile.TemporaryDirectory() as scratch:
        spec = spec | {"scratch": scratch, "cache": f"{scratch}/cache"}
        begun = time.monotonic()
        # Files: a worker that outlives its parent would keep a pipe open.
        with open(f"{scratch}/out", "w+") as out, open(f"{scratch}/err", "w+") as errors:
            process = subprocess.Popen(
                [python, __file__, "--one", json.dumps(spec)],
                stdout=out,
                stderr=errors,
                env=os.environ | {"TMPDIR": scratch},
                start_new_session=True,
            )
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
            hangs = process.poll() is None
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            took = time.monotonic() - begun
            out.seek(0)
            errors.seek(0)
            said, failed = out.read().strip().splitlines(), errors.read().strip().splitlines()
        if hangs:
            return f"no end in {seconds:.0f} s"
        if process.returncode or not said:
            named = [found[1] for found in map(ERROR.match, failed) if found]
            name = named[-1] if named else f"status {process.returncode}"
            return f"error: {name} ({took:.0f} s)"
        found = {name: count for name, count in json.loads(said[-1]).items() if count}
        if found:
            return "wrong: " + ", ".join(f"{count} {name}" for name, count in found.items())
        return f"right ({took:.0f} s)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--samples", type=int, default=1600)
    parser.add_argument("--seconds", type=float, default=120.0, help="longest duration of a case")
    parser.add_argument("--jobs", type=int, default=4, help="cases that run at the same time")
    parser.add_argument("--only", help="loaders, separated by commas")
    parser.add_argument("--faults", help="faults, separated by commas")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        read_one(json.loads(options.one))
        return
    import peers
    from datasets import BUCKET

    from energon_stream.prepare.prepare import prepare_dataset
    from energon_stream.testing.datasets import CRUDE_YAML, write_shards
    from energon_stream.testing.proxy import Fault, FaultProxy
    from energon_stream.testing.s3server import S3Server

    name = "faults"
    pythons, versions = peers.find()
    pythons |= {"ours": sys.executable}
    with tempfile.TemporaryDirectory(prefix="peer-faults-") as root:
        folder = Path(root, BUCKET, name)
        tars = write_shards(
            folder,
            shards=SHARDS,
            samples_per_shard=options.samples // SHARDS,
            parts=lambda index: {"bin": payload(f"{index:08d}")},
        )
        prepare_dataset(str(folder), split_ratio=(1, 0, 0), dataset_yaml=CRUDE_YAML)
        broken = peers.write(Path(root), pythons, [name])
        for line in broken:
            print(line)
        wanted = options.only.split(",") if options.only else ["ours", "webdataset", *peers.PACKAGES]
        loaders = [loader for loader in wanted if loader in pythons or loader == "webdataset"]
        loaders = [loader for loader in loaders if not any(line.startswith(loader) for line in broken)]
        missing = [loader for loader in wanted if loader not in loaders]

        def case(fault: str, loader: str) -> str:
            share, times, seconds = FAULTS[fault]
            with S3Server(root, own_process=True) as server, FaultProxy(server.endpoint_url, seed=1) as proxy:
                if fault != "none":
                    pattern = DATA.get(loader, "*.tar")
                    proxy.set_faults([Fault(fault, share, seconds, pattern=pattern, times=times)])
                where = peers.folder(loader, name)
                path = f"s3://{BUCKET}/{where}"
                if loader == "energon":
                    path = f"msc://bench/{BUCKET}/{where}"
                elif loader == "webdataset":
                    path = f"{proxy.endpoint_url}/{BUCKET}/{where}"
                spec = {
                    "candidate": loader,
                    "path": path,
                    "endpoint": proxy.endpoint_url,
                    "shards": [tar.name for tar in tars],
                    "samples": options.samples // SHARDS * SHARDS,
                    "workers": 1,
                    "repeat": False,
                }
                outcome = run_case(pythons.get(loader, sys.executable), spec, options.seconds)
                return f"{outcome} [{sum(proxy.counts().values())}]"

        print(
            f"versions: {versions}; not installed: {missing or 'none'}; {options.seconds:.0f} s for each case"
        )
        print("| fault | " + " | ".join(loaders) + " |\n|---|" + "---|" * len(loaders), flush=True)
        with ThreadPoolExecutor(options.jobs) as pool:
            faults = options.faults.split(",") if options.faults else list(FAULTS)
            rows = {fault: [pool.submit(case, fault, loader) for loader in loaders] for fault in faults}
            for fault, row in rows.items():
                print(f"| {fault} | " + " | ".join(cell.result() for cell in row) + " |", flush=True)


if __name__ == "__main__":
    main()
