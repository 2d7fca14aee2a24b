"""Compares two datasets, sample by sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from energon_stream.arguments import DATASET_CONFIG, SPLIT_CONFIG
from energon_stream.engine.processes import LocalEngine
from energon_stream.index.checksums import new_digest
from energon_stream.index.plain import read_tar_metadata
from energon_stream.storage import ListEntry, StoreSpec
from energon_stream.tar.scan import ShardScan, scan_shard
from energon_stream.tools.shard_copies import local_copy

if TYPE_CHECKING:
    import numpy.typing as npt

    from energon_stream.engine.tasks import TaskEngine
    from energon_stream.index.dataset import DatasetMetadata

_ROW = np.dtype([("key", "<u8"), ("content", "<u8"), ("shard", "<u4"), ("sample", "<u4")])
"""A sample: hashes of its key and of its parts, and its place."""


@dataclass(frozen=True, slots=True)
class DatasetDiff:
    """Result of :func:`diff_datasets`. Lists of keys have the first ones only; the numbers are of all."""

    only_first_shards: tuple[str, ...]  # shards that only the first dataset has
    only_second_shards: tuple[str, ...]  # shards that only the second dataset has
    counts: Mapping[str, tuple[int, int]]  # numbers of samples of shards that both have, where they differ
    only_first: int  # number of samples that only the first dataset has
    only_second: int  # number of samples that only the second dataset has
    changed: int  # number of samples that both have, with other parts
    only_first_keys: tuple[str, ...]  # keys of such samples, with their shards
    only_second_keys: tuple[str, ...]  # as above
    changed_keys: tuple[str, ...]  # as above
    metadata: tuple[str, ...]  # names of the files of metadata that differ in content, whatever their form

    @property
    def same_samples(self) -> bool:
        """True if both have the same samples, in whatever shards."""
        return not (self.only_first or self.only_second or self.changed)

    @property
    def is_equal(self) -> bool:
        """True if nothing differs."""
        shards = self.only_first_shards or self.only_second_shards or self.counts
        return self.same_samples and not shards and not self.metadata

    def as_json(self) -> dict[str, Any]:
        """Return the result as plain values."""
        return asdict(self) | {"equal": self.is_equal, "same_samples": self.same_samples}


def diff_datasets(
    first: str,
    second: str,
    *,
    content: bool = True,
    most: int = 20,
    engine: TaskEngine | None = None,
    storage_options: Mapping[str, Any] | None = None,
    on_done: Callable[[int, int], None] | None = None,
) -> DatasetDiff:
    """Compare two prepared datasets: shards, counts, keys, parts of all samples, and metadata.

    Samples are matched by key, so that datasets with other shards are compared as well. Parts are compared by
    name, size and content; headers of tars do not count. It takes 24 bytes of memory for each sample.

    Args:
        first: One dataset.
        second: The dataset that it is compared with.
        content: Whether the bytes of parts are compared. Without this, only headers are read: names and sizes
            are compared.
        most: Number of keys of each kind to list.
        engine: Where shards are read; None for this process.
        storage_options: Options of their file system, such as credentials.
        on_done: Called with the number of shards that are done, and of all shards of both datasets.

    Raises:
        EnergonStreamError: A dataset cannot be read, or a tar is damaged.

    Example:
        >>> from energon_stream import diff_datasets
        >>> difference = diff_datasets("captions", "crude")
        >>> difference.same_samples, difference.changed, difference.metadata
        (False, 64, ('dataset.yaml',))
    """
    specs = [StoreSpec(url, storage_options) for url in (first, second)]
    found = [read_tar_metadata(spec) for spec in specs]
    tasks = [(number, shard) for number in range(2) for shard in found[number].shard_counts]
    read = partial(_read_shard, specs, content)
    runner = engine or LocalEngine(0)
    rows: list[list[npt.NDArray[Any]]] = [[], []]
    for (side, _), data in zip(tasks, runner.map(read, tasks, in_order=True, on_done=on_done), strict=True):
        own = np.frombuffer(data, _ROW).copy()
        own["shard"] = len(rows[side])
        rows[side].append(own)
    sides = [np.concatenate([np.zeros(0, _ROW), *parts]) for parts in rows]
    alone, changed = _compare(*sides)
    shards = [list(metadata.shard_counts) for metadata in found]
    names = [partial(_names, specs[side], shards[side], most) for side in range(2)]
    counts = [metadata.shard_counts for metadata in found]
    return DatasetDiff(
        tuple(shard for shard in counts[0] if shard not in counts[1]),
        tuple(shard for shard in counts[1] if shard not in counts[0]),
        {s: (n, counts[1][s]) for s, n in counts[0].items() if counts[1].get(s, n) != n},
        len(alone[0]),
        len(alone[1]),
        len(changed),
        names[0](alone[0]),
        names[1](alone[1]),
        names[0](changed),
        _metadata(*found),
    )


def _compare(
    first: npt.NDArray[Any], second: npt.NDArray[Any]
) -> tuple[tuple[npt.NDArray[Any], npt.NDArray[Any]], npt.NDArray[Any]]:
    """Return the rows that only one side has, and those of the first side that differ on the other."""
    first, second = (np.sort(side, order=["key", "content"]) for side in (first, second))
    alone = tuple(
        mine[~np.isin(mine["key"], other["key"])] for mine, other in ((first, second), (second, first))
    )
    both = first[np.isin(first["key"], second["key"])]
    if not len(both):
        return (alone[0], alone[1]), both
    at = np.searchsorted(second["key"], both["key"])
    return (alone[0], alone[1]), both[second["content"][at] != both["content"]]


def _read_shard(specs: Sequence[StoreSpec], content: bool, task: tuple[int, str]) -> bytes:
    """Return a row for each sample of a shard."""
    side, shard = task
    store = specs[side].open()
    entry = ListEntry(shard, store.head(shard))
    with local_copy(store, entry, content) as copy:
        scan = scan_shard(copy.store, entry)
        data = copy.store.get(shard, etag=entry.meta.etag).data if content else None
        rows = np.zeros(len(scan.keys), _ROW)
        rows["key"] = [new_digest(_bytes(key)).intdigest() for key in scan.keys]
        rows["content"] = _contents(scan, data)
        rows["sample"] = np.arange(len(scan.keys))
        return rows.tobytes()


def _contents(scan: ShardScan, data: memoryview | None) -> list[int]:
    hashers = [new_digest() for _ in scan.keys]
    for sample, name, start, size in sorted(scan.parts, key=lambda part: (part[0], part[1])):
        hasher = hashers[sample]
        hasher.update(_bytes(f"{name}\0{size}\0"))
        if data is not None:
            hasher.update(data[start : start + size])
    return [hasher.intdigest() for hasher in hashers]


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _names(spec: StoreSpec, shards: Sequence[str], most: int, rows: npt.NDArray[Any]) -> tuple[str, ...]:
    """Return shard and key of the first rows."""
    store, names, scans = spec.open(), [], dict[str, ShardScan]()
    for row in np.sort(rows, order=["shard", "sample"])[:most]:
        shard = shards[int(row["shard"])]
        if shard not in scans:
            scans[shard] = scan_shard(store, ListEntry(shard, store.head(shard)))
        names.append(f"{shard}/{scans[shard].keys[int(row['sample'])]}")
    return tuple(names)


def _metadata(first: DatasetMetadata, second: DatasetMetadata) -> tuple[str, ...]:
    differs = {
        SPLIT_CONFIG.rpartition("/")[2]: first.split != second.split,
        DATASET_CONFIG: first.dataset_yaml != second.dataset_yaml,
    }
    return tuple(name for name, differ in differs.items() if differ)
