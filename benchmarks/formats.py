"""Parquet, ``.bin/.idx`` and JSON lines beside tars of the same samples, and beside the readers of others.

    python benchmarks/formats.py [--samples 8000] [--latency 0.05] [--rounds 3] [--rows Parquet tars]

Each row is a process of its own, that reads one shuffled pass, in batches of 16. Rounds are interleaved; a
row has the medians of its rounds. ``(s3)`` is the S3 stand-in, a process beside it, which waits for
``latency`` before each answer; ``requests`` and ``MB`` are counted there, and ``trips`` is the number of
requests of the first batch that waited for others before them. ``first batch s`` has the opening, and no
imports; samples a second count from the first batch on, before which a reader that fills a buffer of samples
has read these: ``pass s`` has all of it.

``datasets`` of Hugging Face, with ``streaming=True``, runs where ``--datasets`` names a Python that has it
and ``s3fs``: ``python -m venv .venv-datasets``, and ``.venv-datasets/bin/pip install datasets s3fs``.
Megatron-Core's ``IndexedDataset`` reads local files. Without them, their rows say so.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from energon_stream.testing.s3server import S3Server

Open = Callable[[str, "dict[str, Any] | None"], Iterable[Any]]  # a path and storage options → batches

IMAGE, TOKENS, GROUP = 20_000, 1000, 200
ORDER: dict[str, Any] = {"batch_size": 16, "shuffle_buffer_size": 1000, "max_samples_per_sequence": 100}


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


def ours() -> Open:
    """Batches of this library, without workers."""
    from energon_stream import DefaultTaskEncoder, WorkerConfig, get_train_dataset

    class Crude(DefaultTaskEncoder):  # type: ignore[type-arg]
        decoder = None

        def batch(self, samples: list[Any]) -> list[Any]:
            return samples

    def opened(path: str, storage_options: dict[str, Any] | None) -> Iterable[Any]:
        config = WorkerConfig(0, 1, 0)
        options: dict[str, Any] = {"repeat": False, "storage_options": storage_options, **ORDER}
        return get_train_dataset(path, worker_config=config, task_encoder=Crude(), **options)

    return opened


def hugging_face() -> Open:
    sys.path.pop(0)  # this folder, which has a module of the name
    import s3fs  # type: ignore[import-untyped]
    from datasets import config, load_dataset  # type: ignore[import-not-found]

    config.SLEEP_TIME_ON_THREADS_SHUTDOWN = 0  # else each pass waits five seconds for threads that end

    def opened(path: str, storage_options: dict[str, Any] | None) -> Iterable[Any]:
        given, options = path.rpartition("/")[2], storage_options or {}
        kind, ending = ("parquet", "parquet") if given == "parquet" else ("json", "jsonl")
        if storage_options:
            names = s3fs.S3FileSystem(**options).glob(f"{path}/*.{ending}")
            files = [f"s3://{name}" for name in names]
        else:
            files = list(map(str, Path(path).glob(f"*.{ending}")))
        rows = load_dataset(
            kind, data_files=sorted(files), split="train", streaming=True, storage_options=storage_options
        )
        return rows.shuffle(seed=0, buffer_size=1000).iter(batch_size=16)  # type: ignore[no-any-return]

    return opened


def megatron_core() -> Open:
    from megatron.core.datasets.indexed_dataset import IndexedDataset  # type: ignore[import-not-found]

    def opened(path: str, storage_options: dict[str, Any] | None) -> Iterable[Any]:
        found = IndexedDataset(path.removesuffix(".bin"))
        order = np.random.default_rng(0).permutation(len(found)).tolist()
        for at in range(0, len(order), 16):
            yield [found[number] for number in order[at : at + 16]]

    return opened


ROWS: dict[str, tuple[Callable[[], Open], str]] = {
    "tars": (ours, "tars"),
    "Parquet": (ours, "parquet"),
    "Parquet, datasets": (hugging_face, "parquet"),
    "JSON lines": (ours, "lines"),
    "JSON lines, datasets": (hugging_face, "lines"),
    "tars of tokens": (ours, "token_tars"),
    ".bin/.idx": (ours, "bin/x.bin"),
    ".bin/.idx, Megatron-Core": (megatron_core, "bin/x.bin"),
}


def read(name: str, path: str, storage_options: dict[str, Any] | None) -> dict[str, float]:
    """Read one pass in this process; return samples, seconds, and when the first batch was there."""
    opened = ROWS[name][0]()
    begin = time.monotonic()
    batches = iter(opened(path, storage_options))
    counts = [_samples(next(batches))]
    first = time.monotonic()
    counts.extend(map(_samples, batches))
    return {
        "begin": begin,
        "first": first,
        "end": time.monotonic(),
        "rest": sum(counts[1:]),
        "all": sum(counts),
    }


def _samples(batch: Any) -> int:
    return len(batch) if isinstance(batch, list) else len(batch["txt"])


def measure(row: str, folder: str, server: S3Server, given: argparse.Namespace) -> dict[str, Any] | str:
    """Run a row in a process of its own; return its figures, or why there are none."""
    name = row.removesuffix(" (s3)")
    make, place = ROWS[name]
    options = server.storage_options if name != row else None
    python = given.datasets if make is hugging_face else sys.executable
    if shutil.which(python) is None:
        return f"there is no {python}"
    path = f"s3://b/{place}" if options else f"{folder}/{place}"
    server.reset_counters()
    done = subprocess.run(
        [python, __file__, "--read", name, path, json.dumps(options)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return done.stderr.strip().splitlines()[-1]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["all"] == given.samples, f"{row}: {found['all']} samples"
    figures = {
        "samples/s": found["rest"] / (found["end"] - found["first"]),
        "first batch s": found["first"] - found["begin"],
        "pass s": found["end"] - found["begin"],
    }
    if options:
        log = sorted(server.log(), key=lambda entry: entry.time)
        waves, last = 0, -1.0
        for entry in log:
            if entry.time < found["first"] and entry.time > last + given.latency / 2:
                waves, last = waves + 1, entry.time
        size = sum(entry.bytes for entry in log) / 1e6
        figures |= {"trips": waves, "requests": len(log), "MB": size}
    return figures


def main() -> None:
    from energon_stream.testing.s3server import S3Server

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--samples", type=int, default=8000)
    parser.add_argument("--latency", type=float, default=0.05)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), help="default: all")
    parser.add_argument("--datasets", default=".venv-datasets/bin/python", help="a Python with datasets")
    given = parser.parse_args()
    chosen = {name: make for name, (make, _) in ROWS.items() if name in given.rows}
    rows = [*chosen, *(f"{name} (s3)" for name, make in chosen.items() if make is not megatron_core)]
    results: dict[str, list[dict[str, Any]]] = {row: [] for row in rows}
    with tempfile.TemporaryDirectory() as folder, S3Server() as server:
        write(Path(folder), given.samples)
        for place in {ROWS[name][1].split("/")[0] for name in chosen}:
            server.upload_folder(Path(folder) / place, f"s3://b/{place}")
        server.shape(first_byte_latency=given.latency)
        for _ in range(given.rounds):
            for row in rows:
                found = measure(row, folder, server, given)
                if isinstance(found, str):
                    print(f"{row}: {found}", flush=True)
                else:
                    results[row].append(found)
    for row, rounds in results.items():
        if rounds:
            medians = {key: round(median(each[key] for each in rounds), 2) for key in rounds[0]}
            print(json.dumps({"row": row, **medians}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--read"]:
        print(json.dumps(read(sys.argv[2], sys.argv[3], json.loads(sys.argv[4]))))
    else:
        main()
