"""Processes, threads and decode threads: images a second, and memory, of one rank that decodes JPEGs.

    python benchmarks/worker_kinds.py [--rounds 5] [--images 1200] [--side 512] [--cores 2]
    python benchmarks/worker_kinds.py --gil

Local files, batches of 32. Rates are medians of interleaved rounds, of the images after the first batches.
Memory is what a loader adds to the program ("Pss" of all of its processes), each in a program of its own.
``--gil`` tells which decoders let two threads run at a time: by how much two decode faster than one.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
from datasets import photo
from images import BACKENDS
from PIL import Image

from energon_stream import DefaultTaskEncoder, SampleDecoder, WorkerConfig, get_loader, get_train_dataset
from energon_stream.errors import MissingPackageError
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.testing.datasets import CRUDE_YAML, write_shards

BATCH, WARM = 32, 6


def kinds(cores: int) -> dict[str, tuple[int, str, int]]:
    """Return workers, their type and decode threads by name, to use some cores."""
    return {
        "1 process": (1, "fork", 0),
        f"{cores} processes": (cores, "fork", 0),
        f"1 process, {cores} decode threads": (1, "fork", cores),
        f"{cores} threads": (cores, "thread", 0),
        f"1 thread, {cores} decode threads": (1, "thread", cores),
        "no worker": (0, "main", 0),
        f"no worker, {cores} decode threads": (0, "main", cores),
    }


class Pictures(DefaultTaskEncoder):
    decoder = SampleDecoder(image_decode="torchrgb8")

    def encode_sample(self, sample: Any) -> Any:
        return {"__key__": sample["__key__"], "image": sample["jpg"]}


def loader_of(folder: str, kind: str, cores: int) -> Any:
    """Open a loader of a kind. All have the same streams, and so the same order."""
    workers, worker_type, threads = kinds(cores)[kind]
    config = WorkerConfig(0, 1, workers, num_streams=cores)
    dataset = get_train_dataset(
        folder,
        worker_config=config,
        task_encoder=Pictures(),
        batch_size=BATCH,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
    )
    return get_loader(dataset, worker_type=worker_type, decode_threads=threads)


def rate(folder: str, kind: str, cores: int, images: int) -> float:
    """Return images a second, after the first batches."""
    with loader_of(folder, kind, cores) as loader:
        batches = iter(loader)
        for _ in range(WARM):
            next(batches)
        begin = time.perf_counter()
        for _ in range(images // BATCH):
            next(batches)
        return images // BATCH * BATCH / (time.perf_counter() - begin)


def pss(pids: tuple[int, ...]) -> int:
    """Return the proportional memory of this process and some others, in bytes."""
    texts = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in (os.getpid(), *pids)]
    return sum(
        int(line.split()[1]) << 10 for text in texts for line in text.splitlines() if line.startswith("Pss:")
    )


def memory(folder: str, kind: str, cores: int) -> int:
    """Return the bytes that a loader of a kind adds to this program, in the median of some batches."""
    before, found = pss(()), list[int]()
    with loader_of(folder, kind, cores) as loader:
        for number, _ in enumerate(loader):
            if number >= WARM and number % 2 == 0:
                found.append(pss(loader.worker_pids))
            if number == 5 * WARM:
                break
    return int(statistics.median(found)) - before


def write(folder: Path, images: int, side: int) -> None:
    """Write a dataset of JPEGs."""
    files = [photo(number, side) for number in range(24)]
    parts: Callable[[int], dict[str, bytes]] = lambda index: {"jpg": files[index % len(files)]}  # noqa: E731
    write_shards(folder, shards=8, samples_per_shard=images // 8, parts=parts)
    prepare_dataset(folder, split_ratio=(1, 0, 0), dataset_yaml=CRUDE_YAML)


def encoded() -> dict[str, tuple[SampleDecoder, bytes]]:
    """Return a file, and its decoder, of each kind."""
    pixels = np.asarray(Image.open(io.BytesIO(photo(3, 512))))
    found: dict[str, tuple[SampleDecoder, bytes]] = {}
    for backend in BACKENDS:
        try:
            found[f"jpg ({backend})"] = SampleDecoder("torchrgb8", image_backend=backend), photo(3, 512)
        except MissingPackageError:
            continue
    for name in ("png", "webp"):
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, name)
        found[name] = SampleDecoder("torchrgb8"), buffer.getvalue()
    plain, packed = io.BytesIO(), io.BytesIO()
    np.save(plain, pixels)
    np.savez_compressed(packed, pixels=pixels)
    numbers = list(range(40_000))
    found |= {"npy": (SampleDecoder(), plain.getvalue()), "npz": (SampleDecoder(), packed.getvalue())}
    found["json"] = SampleDecoder(), json.dumps(numbers).encode()
    found["mp"] = SampleDecoder(), msgpack.packb(numbers)
    return found


def gil(rounds: int) -> None:
    """Print by how much two threads decode faster than one, for each kind of file."""
    for name, (decoder, data) in encoded().items():
        part, seconds = name.split()[0], {1: list[float](), 2: list[float]()}
        begin = time.perf_counter()
        decoder.decode(part, data)
        calls = max(4, int(0.1 / (time.perf_counter() - begin))) // 2 * 2
        for _ in range(rounds):
            for threads, each in seconds.items():
                with ThreadPoolExecutor(threads) as pool:
                    begin = time.perf_counter()
                    list(
                        pool.map(
                            lambda _, decoder=decoder, part=part, data=data: decoder.decode(part, data),
                            range(calls),
                        )
                    )
                    each.append(time.perf_counter() - begin)
        print(f"{name:<18} {statistics.median(seconds[1]) / statistics.median(seconds[2]):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--images", type=int, default=1200)
    parser.add_argument("--side", type=int, default=512)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--gil", action="store_true")
    parser.add_argument("--memory", nargs=2, metavar=("FOLDER", "KIND"), help="used by this program itself")
    given = parser.parse_args()
    if given.memory:
        print(memory(*given.memory, given.cores))
        return
    if given.gil:
        gil(given.rounds)
        return
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), given.images, given.side)
        rates: dict[str, list[float]] = {kind: [] for kind in kinds(given.cores)}
        for _ in range(given.rounds):
            for kind, each in rates.items():
                each.append(rate(folder, kind, given.cores, given.images))
        print(f"{'kind':<28} {'images/s':>8} {'MB':>6}")
        for kind, each in rates.items():
            command = [sys.executable, __file__, "--cores", str(given.cores), "--memory", folder, kind]
            added = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            print(f"{kind:<28} {statistics.median(each):>8.0f} {added / 1e6:>6.0f}")


if __name__ == "__main__":
    main()
