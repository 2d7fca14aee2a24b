"""End to end: images from the S3 stand-in, decoded and stacked by two workers, beside two processes that
decode and stack the same images and do nothing else.

    python benchmarks/images_from_s3.py [--rounds 5] [--backends pillow,simplejpeg] [--modes torchrgb8]
                                        [--against CHECKOUT]

12,000 JPEGs of 256 x 256 in batches of 32, from cold, 50 ms to the first byte, all on two cores, the server
as well. Both sides decode with the same ``SampleDecoder`` and stack with the same function, so both make the
same tensors. The limit reads its files from memory, drops what it makes, and keeps freed memory as workers
do. It has the two cores for itself; the loader shares them with the server. ``received`` is the limit that
shares them as well: while its two processes decode from memory, its main process gets all tars from the
server, by plain range GETs, and drops them. ``--against`` runs the loader of another version of this library
as well. Rounds are interleaved, each run is a process of its own, and figures are medians. CPU time an image
is that of the workers, of the main process and of the server; on a machine that does other work, compare
that.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import datasets
import nginx_s3
import raw_loop
import torch

import energon_stream

PARTS = ("workers", "main", "server")
DATASET, PROFILE, WORKERS, BATCH, IN_FLIGHT = "photos", "H50", 2, 32, 16
LIMITS = ("limit", "received")


def decoder_of(spec: dict[str, Any]) -> energon_stream.SampleDecoder:
    """The decoder that both sides use."""
    return energon_stream.SampleDecoder(image_decode=spec["mode"], image_backend=spec["backend"])


def limit(spec: dict[str, Any]) -> dict[str, Any]:
    """Decode and stack in two processes, from memory."""
    from energon_stream.loader.resources import keep_freed_memory

    torch.set_num_threads(1)
    found = []
    for path in sorted(Path(spec["path"]).glob("*.tar")):
        with tarfile.open(path) as tar:
            found += [tar.extractfile(member).read() for member in tar if member.name.endswith(".jpg")]
    decoder = decoder_of(spec)
    decoder.decode("jpg", found[0])  # imports

    def work(number: int) -> None:
        keep_freed_memory()
        mine = found[number::WORKERS]
        for first in range(0, len(mine), BATCH):
            batch = energon_stream.batch_stack(
                [decoder.decode("jpg", data) for data in mine[first : first + BATCH]]
            )
            del batch

    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=work, args=(number,)) for number in range(WORKERS)]
    before = cpu()
    begin = time.time()
    for process in processes:
        process.start()
    if "endpoint" in spec:
        raw_loop.run(spec["endpoint"], datasets.BUCKET, DATASET, 1, IN_FLIGHT)
    for process in processes:
        process.join()
    return {"seconds": time.time() - begin, "images": len(found)} | cpu_since(before)


def loader(spec: dict[str, Any]) -> dict[str, Any]:
    """One pass of the loader, from cold."""
    import obstore.store  # noqa: F401  (an import, not part of opening)

    @energon_stream.stateless
    def cook(sample: dict[str, Any]) -> dict[str, Any]:
        return {"__key__": sample["__key__"], "__restore_key__": (), "image": sample["jpg"]}

    class Encoder(energon_stream.DefaultTaskEncoder):
        decoder = decoder_of(spec)
        cookers = [energon_stream.Cooker(cook)]

    make, config, encoder = (
        energon_stream.get_train_dataset,
        energon_stream.WorkerConfig(0, 1, WORKERS),
        Encoder(),
    )
    get_loader = energon_stream.get_loader
    encoder.decoder.decode("jpg", datasets.photo(0, 16))  # imports
    before = cpu()
    begin, images = time.time(), 0
    dataset = make(
        spec["path"],
        batch_size=BATCH,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        worker_config=config,
        task_encoder=encoder,
        repeat=False,
        storage_options={"endpoint_url": spec["endpoint"], "key": "bench", "secret": "bench"},
    )
    with get_loader(dataset) as batches:
        for batch in batches:
            images += len(batch["image"])
            del batch
        seconds = time.time() - begin
    return {"seconds": seconds, "images": images} | cpu_since(before)


def cpu() -> dict[str, float]:
    """CPU seconds of this process, and of its children that have ended."""
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return {"main": own.ru_utime + own.ru_stime, "workers": children.ru_utime + children.ru_stime}


def cpu_since(before: dict[str, float]) -> dict[str, float]:
    """The same since an earlier time."""
    return {name: now - before[name] for name, now in cpu().items()}


def of_server() -> float:
    """CPU seconds of all nginx processes."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = path.read_text().rpartition(") ")
        except OSError:
            continue
        if "(nginx" in name:
            ticks += sum(int(field) for field in rest.split()[11:13])
    return ticks / os.sysconf("SC_CLK_TCK")


def run(spec: dict[str, Any]) -> dict[str, Any]:
    """Run one side in a process of its own."""
    environment = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
    if spec["side"] == "before":
        environment["PYTHONPATH"] = spec["checkout"]
    before = of_server()
    with tempfile.TemporaryDirectory() as cache:
        environment["XDG_CACHE_HOME"] = cache  # of small files; the limit keeps no bytes on the disk
        command = [sys.executable, __file__, "--spec", json.dumps(spec)]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(ended.stderr)
    return json.loads(ended.stdout.splitlines()[-1]) | {"server": of_server() - before}


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--backends", default="pillow,simplejpeg")
    parser.add_argument("--modes", default="torchrgb8")
    parser.add_argument("--against", metavar="CHECKOUT", help="another version of this library")
    parser.add_argument("--spec", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.spec:
        spec = json.loads(options.spec)
        os.sched_setaffinity(0, {0, 1})
        print(json.dumps((limit if spec["side"] in LIMITS else loader)(spec)))
        return
    pairs = [(backend, mode) for backend in options.backends.split(",") for mode in options.modes.split(",")]
    runs: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        root = Path(scratch) / "objects"
        datasets.write(root, [DATASET])
        with nginx_s3.serve(root) as server:
            paths = {
                "limit": {"path": str(root / datasets.BUCKET / DATASET)},
                "received": {
                    "path": str(root / datasets.BUCKET / DATASET),
                    "endpoint": server.endpoints[PROFILE],
                },
                "loader": {
                    "path": f"s3://{datasets.BUCKET}/{DATASET}",
                    "endpoint": server.endpoints[PROFILE],
                },
            }
            if options.against:
                paths["before"] = {**paths["loader"], "checkout": options.against}
            for _ in range(options.rounds):
                for backend, mode in pairs:
                    for side in paths:
                        spec = {"side": side, "backend": backend, "mode": mode, **paths[side]}
                        runs.setdefault((backend, mode, side), []).append(run(spec))
    print(
        "| decoder, mode | side | images/s | of the limit | of received | of the limit by CPU time "
        "| workers, main, server, µs |"
    )
    print("|---|---|--:|--:|--:|--:|--:|")
    for (backend, mode, side), found in runs.items():
        rates = [each["images"] / each["seconds"] for each in found]
        limits = runs[backend, mode, "limit"]
        shares = {
            name: [
                rate * each["seconds"] / each["images"]
                for rate, each in zip(rates, runs[backend, mode, name], strict=True)
            ]
            for name in LIMITS
        }
        costs = {id(each): sum(each[part] for part in PARTS) for each in [*found, *limits]}
        by_cpu = [costs[id(one)] / costs[id(each)] for one, each in zip(limits, found, strict=True)]
        times = [statistics.median(each[part] / each["images"] for each in found) * 1e6 for part in PARTS]
        print(
            f"| {backend}, {mode} | {side} | {statistics.median(rates):,.0f} ({min(rates):,.0f}–{max(rates):,.0f}) "
            f"| {' | '.join(f'{statistics.median(s):.2f} ({min(s):.2f}–{max(s):.2f})' for s in shares.values())} "
            f"| {statistics.median(by_cpu):.2f} ({min(by_cpu):.2f}–{max(by_cpu):.2f}) "
            f"| {', '.join(f'{t:.0f}' for t in times)} |"
        )


if __name__ == "__main__":
    main()
