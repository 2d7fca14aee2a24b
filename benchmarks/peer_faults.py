"""The same faults against all loaders that are installed: finished and right, error, wrong data, or hang.

    python benchmarks/peer_faults.py --samples 2000 --seconds 60 [--only ours,s3torch] [--faults 503,stall]

Each case is one pass over a small dataset, by one loader in a process of its own with one worker, from the
stand-in server behind a fault proxy. A loader must deliver each sample once, with the bytes of its key.
``make peers`` installs the others.
"""

import argparse
import contextlib
import hashlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPEATS = 60
FAULTS = {
    "none": [],
    "503": [("503", 0.2)],
    "500": [("500", 0.2)],
    "no-answer": [("no-answer", 0.1)],
    "reset": [("reset", 0.1)],
    "truncate": [("truncate", 0.1)],
    "stall": [("stall", 0.05, 120.0)],
    "trickle": [("trickle", 0.05, 120.0)],
    "late": [("late", 0.05, 120.0)],
    "drop": [("drop", 0.3)],
    "no-length": [("no-length", 0.1)],
    "wrong-etag": [("wrong-etag", 0.05)],
    "html": [("html", 0.05)],
    "416": [("416", 0.05)],
    "refuse": [],
    "freeze": [],
}
OUTAGE_SECONDS = 5.0


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
        if "pause" in spec and sum(seen.values()) > spec["samples"] // 4:
            Path(spec.pop("pause")).touch()  # the outage begins now
    repeated = sum(count - 1 for count in seen.values())
    print(json.dumps({"lost": spec["samples"] - len(seen), "repeated": repeated, "wrong": wrong}))


def run_case(python: str, spec: dict, proxy, seconds: float, outage: str | None) -> str:
    """Run one case; return its outcome."""
    with tempfile.TemporaryDirectory() as scratch:
        spec = spec | {"scratch": scratch, "cache": f"{scratch}/cache"}
        pause = Path(scratch, "pause")
        if outage:
            spec["pause"] = str(pause)
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
            started = False
            while process.poll() is None and time.monotonic() - begun < seconds:
                time.sleep(0.02)
                if outage and not started and pause.exists():
                    started = True
                    proxy.outage(outage, OUTAGE_SECONDS)
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
            last = next(
                (line for line in reversed(failed) if line[:1].isalpha()), f"status {process.returncode}"
            )
            return f"error: {last.split(':', 1)[0].rpartition('.')[2][:40]} ({took:.0f} s)"
        found = {name: count for name, count in json.loads(said[-1]).items() if count}
        if found:
            return "wrong: " + ", ".join(f"{count} {name}" for name, count in found.items())
        return f"right ({took:.0f} s)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=60.0, help="longest duration of a case")
    parser.add_argument("--only", help="loaders, separated by commas")
    parser.add_argument("--faults", help="faults, separated by commas")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        read_one(json.loads(options.one))
        return
    import peers
    from datasets import BUCKET

    from energon_stream.index.prepare import prepare_dataset
    from energon_stream.testing.datasets import CRUDE_YAML, write_shards
    from energon_stream.testing.proxy import Fault, FaultProxy
    from energon_stream.testing.s3server import S3Server

    shards, name = 8, "faults"
    pythons, versions = peers.find()
    pythons |= {"ours": sys.executable}
    with tempfile.TemporaryDirectory(prefix="peer-faults-") as root:
        folder = Path(root, BUCKET, name)
        tars = write_shards(
            folder,
            shards=shards,
            samples_per_shard=options.samples // shards,
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
        print(
            f"versions: {versions}; not installed: {missing or 'none'}; {options.seconds:.0f} s for each case"
        )
        print("| fault | " + " | ".join(loaders) + " |\n|---|" + "---|" * len(loaders), flush=True)
        for fault in options.faults.split(",") if options.faults else FAULTS:
            cells = []
            for loader in loaders:
                with (
                    S3Server(root, own_process=True) as server,
                    FaultProxy(server.endpoint_url, seed=1) as proxy,
                ):
                    proxy.set_faults([Fault(*parts) for parts in FAULTS[fault]])
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
                        "samples": options.samples // shards * shards,
                        "workers": 1,
                        "repeat": False,
                    }
                    outage = fault if fault in ("refuse", "freeze") else None
                    python = pythons.get(loader, sys.executable)
                    cells.append(run_case(python, spec, proxy, options.seconds, outage))
                    hits = sum(proxy.counts().values())
                    cells[-1] += f" [{hits}]"
            print(f"| {fault} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
