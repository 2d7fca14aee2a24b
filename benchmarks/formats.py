"""Parquet, ``.bin/.idx`` and JSON lines beside tars of the same samples, and beside the readers of others.

    python benchmarks/formats.py [--samples 8000] [--latency 0.05] [--only ours]

Each row is a process of its own, that reads one shuffled pass. ``s3`` is the S3 stand-in, which waits for
``latency`` before each answer; ``requests`` and ``bytes`` are counted there, and ``trips`` is the number of
requests of the first batch that waited for others before them. ``datasets`` of Hugging Face, with
``streaming=True``, and Megatron-Core's ``IndexedDataset`` read local files; without them, their rows say so.
Samples a second count from the first batch on.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

IMAGE, TOKENS, GROUP = 20_000, 1000, 200
ORDER = {"batch_size": 16, "shuffle_buffer_size": 1000, "max_samples_per_sequence": 100}


def write(folder: Path, count: int) -> None:
    """Write the same samples in all formats."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from energon_stream.prepare.prepare import prepare_dataset
    from energon_stream.testing.datasets import CRUDE_YAML, write_shards

    draw = np.random.default_rng(0)
    images = [draw.bytes(IMAGE) for _ in range(count)]
    tokens = draw.integers(0, 50_000, (count, TOKENS)).astype(np.uint16)

    def parts(number: int) -> dict[str, bytes]:
        return {"image": images[number], "txt": b"caption %d" % number}

    for name in ("tars", "token_tars", "parquet", "lines", "bin"):
        (folder / name).mkdir()
    shards = max(4, count // 1000)
    write_shards(folder / "tars", shards=shards, samples_per_shard=count // shards, parts=parts)
    write_shards(
        folder / "token_tars",
        shards=shards,
        samples_per_shard=count // shards,
        parts=lambda number: {"tokens": tokens[number].tobytes()},
    )
    for file in range(shards):
        own = range(file * count // shards, (file + 1) * count // shards)
        columns = {"image": [images[n] for n in own], "txt": [f"caption {n}" for n in own]}
        path = folder / "parquet" / f"{file:03d}.parquet"
        pq.write_table(pa.table(columns), path, row_group_size=GROUP, use_dictionary=False)
        lines = (json.dumps({"image": "x" * IMAGE, "txt": f"caption {n}"}) + "\n" for n in own)
        (folder / "lines" / f"{file:03d}.jsonl").write_text("".join(lines))
    (folder / "bin" / "x.bin").write_bytes(tokens.tobytes())
    sizes, starts = np.full(count, TOKENS, "<i4"), np.arange(count, dtype="<i8") * 2 * TOKENS
    header = (
        b"MMIDIDX\0\0"
        + np.array([1], "<u8").tobytes()
        + b"\x08"
        + np.array([count, count + 1], "<u8").tobytes()
    )
    documents = np.arange(count + 1, dtype="<i8")
    (folder / "bin" / "x.idx").write_bytes(header + sizes.tobytes() + starts.tobytes() + documents.tobytes())
    for name in ("tars", "token_tars", "parquet", "lines"):
        yaml = CRUDE_YAML if "tars" in name else None
        prepare_dataset(str(folder / name), split_ratio=(1, 0, 0), dataset_yaml=yaml)


def ours(path: str, **options: Any) -> Iterable[Any]:
    """Batches of this library, without workers."""
    from energon_stream import DefaultTaskEncoder, WorkerConfig, get_train_dataset

    class Crude(DefaultTaskEncoder):  # type: ignore[type-arg]
        decoder = None

        def batch(self, samples: list[Any]) -> list[Any]:
            return samples

    config = WorkerConfig(0, 1, 0)
    return get_train_dataset(
        path, worker_config=config, task_encoder=Crude(), repeat=False, **ORDER, **options
    )


def hugging_face(path: str) -> Iterable[Any]:
    sys.path.pop(0)  # this folder, which has a module of the name
    from datasets import load_dataset  # type: ignore[import-not-found]

    files = sorted(map(str, Path(path).glob("*.parquet")))
    rows = load_dataset("parquet", data_files=files, split="train", streaming=True)
    return rows.shuffle(seed=0, buffer_size=1000).iter(batch_size=16)  # type: ignore[no-any-return]


def megatron_core(path: str) -> Iterator[Any]:
    from megatron.core.datasets.indexed_dataset import IndexedDataset  # type: ignore[import-not-found]

    found = IndexedDataset(path.removesuffix(".bin"))
    order = np.random.default_rng(0).permutation(len(found)).tolist()
    for at in range(0, len(order), 16):
        yield [found[number] for number in order[at : at + 16]]


LOCAL: dict[str, tuple[Callable[..., Iterable[Any]], str]] = {
    "tars": (ours, "tars"),
    "Parquet": (ours, "parquet"),
    "Parquet, datasets": (hugging_face, "parquet"),
    "JSON lines": (ours, "lines"),
    "tars of tokens": (ours, "token_tars"),
    ".bin/.idx": (ours, "bin/x.bin"),
    ".bin/.idx, Megatron-Core": (megatron_core, "bin/x.bin"),
}


def read(name: str, folder: str, latency: float) -> dict[str, Any]:
    """Read one pass in this process; return samples a second, and what the stand-in counted."""
    from energon_stream.testing.s3server import S3Server

    local = name.removesuffix(" (s3)")
    make, place = LOCAL[local]
    if local == name:
        found = iter(make(f"{folder}/{place}"))
        next(found)
        begin = time.perf_counter()
        count = sum(len(batch) if isinstance(batch, list) else len(batch["txt"]) for batch in found)
        return {"row": name, "samples/s": round(count / (time.perf_counter() - begin))}
    with S3Server() as server:
        server.upload_folder(Path(folder) / place.split("/")[0], "s3://b/" + place.split("/")[0])
        server.shape(first_byte_latency=latency)
        server.reset_counters()
        begin = time.perf_counter()
        batches = iter(make(f"s3://b/{place}", storage_options=server.storage_options))
        next(batches)
        first, waves = time.perf_counter() - begin, 0
        last = -1.0
        for at in sorted(entry.time for entry in server.log()):
            waves, last = (waves + 1, at) if at > last + latency / 2 else (waves, last)
        count = sum(map(len, batches))
        seconds, log = time.perf_counter() - begin - first, server.log()
    return {
        "row": name,
        "samples/s": round(count / seconds),
        "first batch s": round(first, 2),
        "trips": waves,
        "requests": len(log),
        "MB": round(sum(entry.bytes for entry in log) / 1e6, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--samples", type=int, default=8000)
    parser.add_argument("--latency", type=float, default=0.05)
    parser.add_argument("--read", nargs=2, metavar=("ROW", "FOLDER"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.read:
        print(json.dumps(read(*given.read, given.latency)))
        return
    rows = [*LOCAL, *(f"{name} (s3)" for name, (make, _) in LOCAL.items() if make is ours)]
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), given.samples)
        for name in rows:
            command = [sys.executable, __file__, "--latency", str(given.latency), "--read", name, folder]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            lines = (done.stdout if not done.returncode else done.stderr).strip().splitlines()
            print(lines[-1] if not done.returncode else f"{name}: {lines[-1]}", flush=True)


if __name__ == "__main__":
    main()
