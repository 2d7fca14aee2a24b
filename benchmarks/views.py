"""Views: seconds and memory until a selection of many rows is ready, and what a 10 % view fetches.

    python benchmarks/views.py select [--rows 100000000] [--folder FOLDER]
    python benchmarks/views.py fetch [--sizes 1000 10000 40000 200000] [--latency 0.05]

``select`` writes a table of a float32 and a bool, with an index but no tars, and opens views of it in fresh
processes; memory is the peak of the process ("VmHWM") above its imports. ``fetch`` reads a pass of a view of
10 % of the samples, chosen at random, from the S3 stand-in; it counts distinct requests for tars. The
payload is the samples as the tars have them, with headers: what a rewritten dataset would have.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

PER_SHARD = 10_000
GROUP = 1 << 20
VIEWS = {
    "clip > 0.28 and not duplicate": {"where": "clip > 0.28 and not duplicate"},
    "the same, of 9 of 10 shards": {"where": "clip > 0.28 and not duplicate", "split_part": "train"},
    "the same, and a share of 10 %": {"where": "clip > 0.28 and not duplicate", "share": 0.1},
    "weight_by: clip": {"weight_by": "clip"},
}


def memory(name: str) -> int:
    """Bytes by a name of ``/proc/self/status``."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    raise KeyError(name)


def write_rows(folder: Path, rows: int) -> None:
    """Write an index without tars, and a table for it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from energon_stream.index.info_files import encode_info, encode_split
    from energon_stream.prepare.add_tables import add_table

    names = [f"data-{number:06d}.tar" for number in range(rows // PER_SHARD)]
    meta = folder / ".nv-meta"
    meta.mkdir(parents=True)
    (meta / ".info.json").write_bytes(encode_info(dict.fromkeys(names, PER_SHARD)))
    cut = len(names) * 9 // 10
    (meta / "split.yaml").write_bytes(encode_split({"all": names, "train": names[:cut], "val": names[cut:]}))
    rng = np.random.default_rng(0)
    schema = pa.schema([("clip", pa.float32()), ("duplicate", pa.bool_())])
    with pq.ParquetWriter(folder / "rows.parquet", schema) as writer:
        for first in range(0, rows, GROUP):
            count = min(GROUP, rows - first)
            clip, duplicate = rng.random(count, dtype=np.float32), rng.random(count) < 0.2
            writer.write_table(pa.table({"clip": clip, "duplicate": duplicate}, schema=schema))
    begin = time.perf_counter()
    add_table(folder, folder / "rows.parquet")
    (folder / "rows.parquet").unlink()
    size = (meta / "tables/samples.parquet").stat().st_size
    print(f"{rows:,} rows, {size / 1e6:.0f} MB; added in {time.perf_counter() - begin:.1f} s")


def select(folder: str, view: dict[str, object]) -> dict[str, float]:
    """Open a view in this process."""
    import pyarrow.compute
    import pyarrow.parquet  # noqa: F401

    from energon_stream.config.view import parse_view, with_view
    from energon_stream.index.dataset import open_webdataset
    from energon_stream.limits import Limits
    from energon_stream.storage import StoreSpec

    imported = memory("VmRSS")
    begin = time.perf_counter()
    index = open_webdataset(StoreSpec(folder), split_part=str(view.pop("split_part", "all")))
    opened = time.perf_counter()
    parsed = parse_view(view, "", StoreSpec)
    assert parsed is not None
    found = with_view(index, parsed, Limits()).selection
    assert found is not None
    end = time.perf_counter()
    return {
        "index": opened - begin,
        "seconds": end - opened,
        "cpu": time.process_time(),
        "megabytes": (memory("VmHWM") - imported) / 1e6,
        "selected": found.num_samples,
    }


def selections(rows: int, parent: str | None) -> None:
    with tempfile.TemporaryDirectory(dir=parent) as root:
        write_rows(Path(root) / "data", rows)
        print("| view | selected | s, first | MB | s, again | MB |\n|---|--:|--:|--:|--:|--:|")
        for name, view in VIEWS.items():
            environment = {**os.environ, "ENERGON_STREAM_CACHE_DIR": f"{root}/cache"}
            command = [
                sys.executable,
                __file__,
                "one",
                "--folder",
                f"{root}/data",
                "--view",
                json.dumps(view),
            ]
            found = [
                json.loads(subprocess.run(command, env=environment, check=True, capture_output=True).stdout)
                for _ in range(2)
            ]
            cells = [f"{each['seconds']:.2f} | {each['megabytes']:.0f}" for each in found]
            print(f"| {name} | {found[0]['selected']:,} | {' | '.join(cells)} |", flush=True)
        print(f"The index before it: {found[0]['index']:.2f} s.")


def fetch(size: int, samples: int, waste: float, latency: float) -> dict[str, float]:
    """Read a pass of a view of 10 % from the stand-in."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from energon_stream import (
        DefaultTaskEncoder,
        ReadOptions,
        WorkerConfig,
        add_table,
        get_loader,
        get_train_dataset,
    )
    from energon_stream.prepare.prepare import prepare_dataset
    from energon_stream.testing.datasets import CRUDE_YAML, random_bytes, write_shards
    from energon_stream.testing.s3server import S3Server

    class Undecoded(DefaultTaskEncoder):
        decoder = None

    with tempfile.TemporaryDirectory() as root:
        folder, shards = Path(root) / "bucket/data", 8
        write_shards(
            folder,
            shards=shards,
            samples_per_shard=samples // shards,
            parts=lambda number: {"bin": random_bytes(size, number)},
        )
        prepare_dataset(str(folder), split_ratio=(1, 0, 0), dataset_yaml=CRUDE_YAML)
        chosen = np.random.default_rng(0).random(samples) < 0.1
        pq.write_table(pa.table({"chosen": chosen}), f"{root}/chosen.parquet")
        add_table(folder, f"{root}/chosen.parquet")
        with S3Server(root, own_process=True) as server:
            dataset = get_train_dataset(
                "s3://bucket/data",
                batch_size=None,
                repeat=False,
                shuffle_buffer_size=100,
                max_samples_per_sequence=100,
                worker_config=WorkerConfig(0, 1, 0),
                task_encoder=Undecoded(),
                where="chosen",
                read_options=ReadOptions(max_waste=waste),
                storage_options=server.storage_options,
            )
            server.shape(first_byte_latency=latency, rate=85e6)
            begin = time.perf_counter()
            count = sum(1 for _ in get_loader(dataset))
            seconds = time.perf_counter() - begin
            asked = {
                (each.key, each.range): each.bytes
                for each in server.log()
                if each.method == "GET" and each.key.endswith(".tar") and each.status == 206
            }
    assert count == chosen.sum()
    payload = count * (512 + -(-size // 512) * 512)
    return {
        "ratio": sum(asked.values()) / payload,
        "requests": len(asked) / count,
        "speed": count / seconds,
    }


def fetches(sizes: list[int], latency: float) -> None:
    print("| sample | max_waste | bytes / payload | requests a sample | samples/s |\n|--:|--:|--:|--:|--:|")
    for size in sizes:
        for waste in (0.0, 0.3, 1.0, math.inf):
            found = fetch(size, 400_000_000 // max(size, 10_000), waste, latency)
            cells = f"{found['ratio']:.2f} | {found['requests']:.3f} | {found['speed']:,.0f}"
            print(f"| {size / 1000:.0f} kB | {waste} | {cells} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["select", "fetch", "one"])
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--folder")
    parser.add_argument("--view", type=json.loads)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 10_000, 40_000, 200_000])
    parser.add_argument("--latency", type=float, default=0.05)
    given = parser.parse_args()
    if given.what == "one":
        print(json.dumps(select(given.folder, given.view)))
    elif given.what == "select":
        selections(given.rows, given.folder)
    else:
        fetches(given.sizes, given.latency)


if __name__ == "__main__":
    main()
