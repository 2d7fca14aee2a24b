"""The data and the loop that the chaos scripts train with: every payload follows from its index.

A loop delivers batches of packed samples from a blend of two datasets, and notes the indices of each batch.
"""

from __future__ import annotations

import struct
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import xxhash
import yaml

from energon_stream import DefaultTaskEncoder, TextSample, WorkerConfig, get_train_dataset, stateless
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.testing.datasets import TEXT_YAML

REPEATS = 6
WRONG = 0xFFFFFFFF
"""What is noted instead of the index of a sample whose payload is not the one of its key."""
BATCH = 16
_MAGIC = 0x5EED
_HEAD = struct.Struct("<III")  # magic, number of the batch, samples in it


def payload(index: int, salt: str = "") -> str:
    """Return the text of a sample: 200 characters that depend on all bits of its index."""
    return f"{index:08d}" + xxhash.xxh3_128_hexdigest(f"{index}{salt}".encode()) * REPEATS


def write_dataset(root: Path, samples: int, shard_samples: int) -> None:
    """Write two prepared datasets with half of the samples each, and a blend of them."""
    for name, first in (("a", 0), ("b", samples // 2)):
        folder = root / name
        folder.mkdir(parents=True)
        for number, start in enumerate(range(first, first + samples // 2, shard_samples)):
            stop = min(start + shard_samples, first + samples // 2)
            (folder / f"{number:05d}.tar").write_bytes(tar(range(start, stop)))
        prepare_dataset(str(folder), split_ratio=(1, 0, 0), dataset_yaml=TEXT_YAML)
    blend = [{"weight": 2, "path": "a"}, {"weight": 1, "path": "b"}]
    document = {
        "__module__": "megatron.energon",
        "__class__": "MetadatasetV2",
        "splits": {"train": {"blend": blend}},
    }
    (root / "mix.yaml").write_text(yaml.safe_dump(document))


def tar(indices: range, salt: str = "") -> bytes:
    """Return a tar of samples. Python's ``tarfile`` would take a minute for a million members."""
    member = tarfile.TarInfo("00000000.txt")
    member.size = len(payload(0))
    head = member.tobuf(tarfile.USTAR_FORMAT)
    base = int(head[148:154], 8) - 8 * ord("0")
    padding = bytes(-member.size % 512)
    parts = []
    for index in indices:
        name = b"%08d" % index
        parts.append(name + head[8:148] + b"%06o\0 " % (base + sum(name)) + head[156:])
        parts.append(payload(index, salt).encode() + padding)
    return b"".join(parts) + bytes(1024)


class Encoder(DefaultTaskEncoder):
    """Compares each payload with its key, and packs one to five samples."""

    @stateless
    def encode_sample(self, sample: TextSample) -> TextSample:
        index = int(sample.__key__.rpartition("/")[2])
        sample.text = str(index if sample.text == payload(index) else WRONG)
        return sample

    def select_samples_to_pack(self, samples: list) -> list[list]:
        groups, start = [], 0
        while start < len(samples):
            size = 1 + int(samples[start].text) % 5
            groups.append(samples[start : start + size])
            start += size
        return groups

    @stateless
    def pack_selected_samples(self, samples: list[TextSample]) -> TextSample:
        samples[0].text = " ".join(sample.text for sample in samples)
        return samples[0]


def fail(error: Exception, sample: Any, sources: Any) -> NoReturn:
    """End the run at a sample that fails: skipping it would be a lost sample."""
    raise error


def open_dataset(path: str, *, rank: int, world_size: int, workers: int, seed: int, **options: Any) -> Any:
    """Open the blend, shuffled and packed."""
    config = WorkerConfig(rank, world_size, workers, seed_offset=seed, global_error_handler=fail)
    return get_train_dataset(
        path,
        batch_size=BATCH,
        worker_config=config,
        task_encoder=Encoder(),
        shuffle_buffer_size=200,
        max_samples_per_sequence=500,
        packing_buffer_size=60,
        **options,
    )


def indices(batch: Any) -> np.ndarray:
    """Return the indices of a batch's samples."""
    return np.array(" ".join(batch.text).split(), dtype=np.uint32)


def note(number: int, found: np.ndarray) -> bytes:
    """Return the note of one batch, for the end of a file."""
    return _HEAD.pack(_MAGIC, number, len(found)) + found.tobytes()


def read_notes(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield number and indices of each batch that was noted, in order; a batch may come several times."""
    raw, at = path.read_bytes() if path.exists() else b"", 0
    while at + _HEAD.size <= len(raw):
        magic, number, count = _HEAD.unpack_from(raw, at)
        if magic != _MAGIC:
            raise ValueError(f"{path}: damaged notes at byte {at}")
        stop = at + _HEAD.size + 4 * count
        if stop > len(raw):
            return
        yield number, raw[at + _HEAD.size : stop]
        at = stop


def compare(
    planned: list[bytes], delivered: Iterator[tuple[int, bytes]], complete: bool = True
) -> dict[str, int]:
    """Compare deliveries with the plan; return numbers of lost, repeated, reordered and wrong samples.

    Batches that were delivered again after a restore count too: they must be the planned ones.
    """
    counts = dict.fromkeys(("lost", "repeated", "reordered", "wrong", "delivered", "again"), 0)
    seen = set()
    for number, raw in delivered:
        counts["again"] += number in seen
        seen.add(number)
        expected = planned[number] if number < len(planned) else b""
        counts["delivered"] += len(raw) // 4
        if raw == expected:
            continue
        found, wanted = np.frombuffer(raw, np.uint32), np.frombuffer(expected, np.uint32)
        counts["wrong"] += int((found == WRONG).sum())
        lost = np.setdiff1d(wanted, found).size
        more = found[found != WRONG].size - np.intersect1d(found, wanted).size
        counts["lost"] += lost
        counts["repeated"] += more
        counts["reordered"] += int(not lost and not more)
    if complete:
        counts["lost"] += sum(len(planned[n]) // 4 for n in range(len(planned)) if n not in seen)
    return counts
