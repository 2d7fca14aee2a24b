"""The benchmark's datasets, by name; each is a folder of the bucket, prepared.

Long datasets are sparse: their payloads are holes of the file, so that gigabytes are written in seconds and
take no room on the disk. The server sends zeros for them, as many bytes as it would of anything else.
"""

from __future__ import annotations

import io
import json
import sqlite3
import struct
import tarfile
import uuid
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image

from energon_stream.index.info_files import encode_info, encode_split
from energon_stream.index.sample_sizes import SampleSizes
from energon_stream.index.yaml_io import dump_yaml
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.testing.datasets import CRUDE_YAML, prepared_binary_dataset, random_bytes, write_shards

BUCKET = "bench"
CRUDE = "__module__: megatron.energon\n__class__: CrudeWebdataset\n"
JSON_BYTES = 80
BLOCK = tarfile.BLOCKSIZE
PHOTO_SIDE, DIFFERENT_PHOTOS = 256, 200


@dataclass(frozen=True, slots=True)
class Dataset:
    """Content of a dataset: ``samples`` of one ``bin`` of ``payload`` bytes and 80 bytes of JSON, in
    ``shards`` tars.
    """

    samples: int
    payload: int
    shards: int
    write: Callable[[Path, Dataset], None]

    @property
    def sample_bytes(self) -> int:
        """Bytes of a sample's parts."""
        return self.payload + JSON_BYTES

    @property
    def tar_bytes(self) -> int:
        """The same with headers and padding."""
        return sum(BLOCK + _padded(n) for n in (self.payload, JSON_BYTES))

    @property
    def total(self) -> int:
        """Bytes of all parts of all samples."""
        return self.samples * self.sample_bytes

    @property
    def per_shard(self) -> int:
        """Samples of a tar."""
        return self.samples // self.shards


def _full(folder: Path, about: Dataset) -> None:
    prepared_binary_dataset(folder, samples=about.samples, payload_bytes=about.payload, shards=about.shards)


def _three_parts(folder: Path, about: Dataset) -> None:
    def parts(index: int) -> dict[str, bytes]:
        data = random_bytes(about.payload, index)
        return {"a": data[:20_000], "b": data[20_000:], "json": b"{}".ljust(JSON_BYTES)}

    write_shards(folder, shards=about.shards, samples_per_shard=about.per_shard, parts=parts)
    prepare_dataset(str(folder), split_ratio=(1, 0, 0), dataset_yaml=CRUDE_YAML)


def photo(index: int, side: int) -> bytes:
    """A JPEG that costs about what a photo costs: smooth shapes and some noise."""
    dice = np.random.default_rng(index)
    coarse = Image.fromarray(dice.integers(0, 256, (32, 32, 3), dtype=np.uint8)).resize(
        (side, side), Image.Resampling.BICUBIC
    )
    noise = dice.normal(0, 6, (side, side, 3))
    pixels = np.clip(np.asarray(coarse) + noise, 0, 255).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


def _photos(folder: Path, about: Dataset) -> None:
    found = [photo(index, PHOTO_SIDE) for index in range(DIFFERENT_PHOTOS)]

    def parts(index: int) -> dict[str, bytes]:
        return {"jpg": found[index % DIFFERENT_PHOTOS], "json": b"{}".ljust(JSON_BYTES)}

    write_shards(folder, shards=about.shards, samples_per_shard=about.per_shard, parts=parts)
    prepare_dataset(str(folder), split_ratio=(1, 0, 0), dataset_yaml=CRUDE_YAML)


def _sparse(folder: Path, about: Dataset) -> None:
    """Offsets are known while writing, so no tar is read again. ``index.sqlite`` is an empty database and
    the sizes of samples. The loader reads only these.
    """
    meta = folder / ".nv-meta"
    meta.mkdir(parents=True)
    names = [f"data-{shard:06d}.tar" for shard in range(about.shards)]
    offsets = struct.pack(
        f"<{about.per_shard + 1}Q", *range(0, (about.per_shard + 1) * about.tar_bytes, about.tar_bytes)
    )
    for shard, name in enumerate(names):
        with (folder / name).open("wb") as file:
            for index in range(shard * about.per_shard, (shard + 1) * about.per_shard):
                _header(file, f"{index:08d}.bin", about.payload)
                file.seek(_padded(about.payload), 1)
                _header(file, f"{index:08d}.json", JSON_BYTES)
                file.write(json.dumps({"index": index}).encode().ljust(JSON_BYTES).ljust(BLOCK, b"\0"))
            file.write(bytes(2 * BLOCK))
        (folder / name).with_suffix(".tar.idx").write_bytes(offsets)
    info = {"energon_version": "7.4.1", "shard_counts": dict.fromkeys(names, about.per_shard)}
    (meta / ".info.json").write_text(json.dumps(info))
    sizes = SampleSizes()
    for _ in names:
        sizes.add(range(0, (about.per_shard + 1) * about.tar_bytes, about.tar_bytes))
    with closing(sqlite3.connect(meta / "index.sqlite")) as database:
        database.execute("CREATE TABLE samples (sample_key TEXT)")
    with (meta / "index.sqlite").open("ab") as file:
        file.write(sizes.encode(json.dumps(info).encode()) or b"")
    (meta / "split.yaml").write_text(json.dumps({"split_parts": {"train": names}, "exclude": []}))
    (meta / "dataset.yaml").write_text(CRUDE)
    (meta / "index.uuid").write_text(str(uuid.uuid4()))


def _header(file: BinaryIO, name: str, size: int) -> None:
    member = tarfile.TarInfo(name)
    member.size = size
    file.write(member.tobuf(tarfile.USTAR_FORMAT))


def _padded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


KB, MB = 1000, 1_000_000
DATASETS = {
    "d40x8": Dataset(4000, 40 * KB, 8, _full),
    "d40x64": Dataset(64 * 62, 40 * KB, 64, _full),
    "p12": Dataset(4000, 36 * KB, 8, _three_parts),
    "photos": Dataset(12_000, 17 * KB, 8, _photos),
    "photos3k": Dataset(3200, 17 * KB, 8, _photos),
    "long50": Dataset(26_000, 40 * KB, 50, _sparse),
    "long100": Dataset(52_000, 40 * KB, 100, _sparse),
    "long200": Dataset(104_000, 40 * KB, 200, _sparse),
    "long400": Dataset(26_000, 40 * KB, 400, _sparse),
    "huge1": Dataset(26_000, 40 * KB, 1, _sparse),
    "size4k": Dataset(32_000, 4 * KB, 8, _sparse),
    "size4kx64": Dataset(32_000, 4 * KB, 64, _sparse),
    "size400k": Dataset(800, 400 * KB, 8, _sparse),
    "size4m": Dataset(80, 4 * MB, 8, _sparse),
    "mem1k": Dataset(60_000, 1 * KB, 8, _sparse),
    "mem4m": Dataset(250, 4 * MB, 10, _sparse),
    "mem300m": Dataset(6, 300 * MB, 3, _sparse),
    "tiny": Dataset(64, 1 * KB, 1, _sparse),
}


def linked_dataset(
    one: Path, folder: Path, shards: int, samples: int, *, listed: bool, links: int | None = None
) -> None:
    """Write a dataset whose tars, or the first ``links`` of them, are links to that of the dataset ``one``.

    ``split.yaml`` names each tar, or has a brace pattern.
    """
    names = [f"data-{number:06d}.tar" for number in range(shards)]
    meta = folder / ".nv-meta"
    meta.mkdir(parents=True)
    (meta / ".info.json").write_bytes(encode_info(dict.fromkeys(names, samples)))
    split = {"split_parts": {"train": names}, "exclude": []}
    (meta / "split.yaml").write_bytes(dump_yaml(split) if listed else encode_split({"train": names}))
    (meta / "dataset.yaml").write_bytes(dump_yaml(CRUDE_YAML))
    for name in names[:links]:
        for suffix in ("", ".idx"):
            (folder / f"{name}{suffix}").symlink_to(one / f"data-000000.tar{suffix}")


def write(root: Path, names: Iterable[str]) -> None:
    """Write these datasets as folders of the bucket below ``root``."""
    for name in names:
        folder, about = root / BUCKET / name, DATASETS[name]
        about.write(folder, about)
        (folder / ".nv-meta" / "json_only.yaml").write_text(CRUDE + "part_filter:\n- json\n")
