"""Makes datasets of others: several joined to one, one divided, or a small one out of a large one.

The sources are only read. A new dataset is complete or absent, and a run that was stopped goes on after its
last complete shard.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from energon_stream.arrays import Int64Array
from energon_stream.engine.processes import LocalEngine
from energon_stream.engine.tasks import TaskEngine
from energon_stream.errors import ConfigError, MetadataError, ObjectNotFoundError
from energon_stream.index.checksums import digest
from energon_stream.index.database import index_database
from energon_stream.index.dataset import DatasetMetadata
from energon_stream.index.index_files import read_offsets
from energon_stream.index.info_files import META_FOLDER, read_info
from energon_stream.index.plain import read_tar_metadata
from energon_stream.prepare.publish import MetadataOptions
from energon_stream.prepare.shard_records import ShardRecord, ShardRecords
from energon_stream.printable import counted
from energon_stream.quantities import parse_size
from energon_stream.rng import derive_key
from energon_stream.storage import ListEntry, Store, StoreSpec
from energon_stream.tar.scan import scan_shard
from energon_stream.tools.shard_copies import SampleRange, check_outside, local_copy, read_samples
from energon_stream.write.dealing import check_filled
from energon_stream.write.finish import publish_shards
from energon_stream.write.journal import WRITING, PartArguments, resume_part, save_part
from energon_stream.write.shard_writer import ShardWriter, existing_metadata, put_shard
from energon_stream.write.tar_shard import MAX_SIZE

_PLACE = "SELECT tar_file_id, sample_index, byte_offset, byte_size FROM samples WHERE sample_key = ?"
_CODE = ("sample_loader", "part_filter")


def merge_datasets(
    sources: Sequence[str | os.PathLike[str]],
    target: str | os.PathLike[str],
    *,
    engine: TaskEngine | None = None,
    storage_options: Mapping[str, Any] | None = None,
    tmp_path: str | os.PathLike[str] | None = None,
    on_done: Callable[[int, int], None] | None = None,
) -> Mapping[str, int]:
    """Join datasets to a new one, which has copies of their shards. Split parts of the same name are joined.

    The shards of each source lie in a folder with the last name of the source's path. Their bytes pass
    through this machine, or the engine's. To join datasets without copying, name them in a metadataset.

    Args:
        sources: Prepared datasets with the same ``dataset.yaml``.
        target: New folder, local or any fsspec URL.
        engine: Where shards are copied; None for this process.
        storage_options: Options of their file system, such as credentials.
        tmp_path: Local folder for the index until it is uploaded; None for the system's.
        on_done: Called with the number of shards that are done, and of all shards.

    Returns:
        Number of samples by shard path of the new dataset.

    Raises:
        ConfigError: The sources have different sample types, or the target has a dataset or tars.
        DuplicateKeyError: Two samples have the same key.
        EnergonStreamError: A source cannot be read, or the target cannot be written.

    Example:
        >>> from energon_stream import merge_datasets, split_dataset
        >>> targets = {"one": "half-one", "two": "half-two"}
        >>> halves = split_dataset("texts", targets, ratio={"one": 1, "two": 1})
        >>> sum(merge_datasets(["half-one", "half-two"], "whole").values())
        64
    """
    urls, target = [os.fspath(url) for url in sources], os.fspath(target)
    check_outside(urls, target)
    specs = [StoreSpec(url, storage_options) for url in urls]
    out = StoreSpec(target, storage_options)
    found = [read_tar_metadata(spec) for spec in specs]
    for metadata in found[1:]:
        if metadata.dataset_yaml != found[0].dataset_yaml:
            raise ConfigError(
                "the datasets have different sample types or field maps",
                where=metadata.url,
                hint="make their dataset.yaml equal, or name them in a metadataset",
            )
    names = _folders([metadata.url for metadata in found])
    tasks = [
        (number, shard, f"{names[number]}/{shard}")
        for number, metadata in enumerate(found)
        for shard in metadata.shard_counts
    ]
    store = out.open()
    done = _begin(store, "merge", *(str(metadata.info_digest) for metadata in found), *names)
    left = [task for task in tasks if not done.has(task[2])]
    copy = partial(_copy_shard, specs, out)
    before = len(tasks) - len(left)
    count = None if on_done is None else lambda number, _: on_done(before + number, len(tasks))
    for _ in (engine or LocalEngine(0)).map(copy, left, on_done=count):
        pass
    parts: dict[str, list[str]] = {}
    for name, metadata in zip(names, found, strict=True):
        for split, shards in metadata.split.split_parts.items():
            parts.setdefault(split, []).extend(f"{name}/{shard}" for shard in shards)
    excluded = [
        f"{name}/{entry}"
        for name, metadata in zip(names, found, strict=True)
        for entry in metadata.split.exclude
    ]
    copy_code(specs[0].open(), store, found[0])
    copied = [path for _, _, path in tasks]
    options = MetadataOptions(dataset_yaml=found[0].dataset_yaml)
    return publish_shards(store, copied, options, split=parts, exclude=excluded, tmp_path=tmp_path)


def split_dataset(
    source: str | os.PathLike[str],
    targets: Mapping[str, str | os.PathLike[str]],
    *,
    ratio: Mapping[str, float] | None = None,
    keys: Mapping[str, Iterable[str]] | None = None,
    rest: str | None = None,
    seed: int = 0,
    max_size: int | str = MAX_SIZE,
    max_count: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Mapping[str, int]:
    """Divide the samples of a dataset among new datasets, at random or by lists of keys.

    Each sample is read once, by range. If it is stopped, the same call goes on.

    Args:
        source: A prepared dataset.
        targets: New folders by name.
        ratio: Shares by name; samples are drawn at random, as many as the shares say. Give this or ``keys``.
        keys: Sample keys by name.
        rest: Name that takes the samples which ``keys`` does not name; None to leave them out.
        seed: Which samples ``ratio`` draws.
        max_size: Largest size of a new tar: bytes, or a text such as ``"500MB"``.
        max_count: Largest number of samples of a new tar.
        storage_options: Options of their file system, such as credentials.

    Returns:
        Number of samples by name.

    Raises:
        ConfigError: An option cannot work, a key is not in the dataset, or a target has another dataset.
        EnergonStreamError: The source cannot be read, or a target cannot be written.

    Example:
        >>> from energon_stream import split_dataset
        >>> found = split_dataset("texts", {"a": "new/a", "b": "new/b"}, keys={"a": ["00000007"]}, rest="b")
        >>> found
        {'a': 1, 'b': 63}
    """
    source, outs = os.fspath(source), {name: os.fspath(url) for name, url in targets.items()}
    if (ratio is None) == (keys is None) or (rest is not None and keys is None):
        raise ConfigError("give either ratio or keys, and rest with keys only")
    named = {*(ratio or keys or {}), *([] if rest is None else [rest])}
    if named != outs.keys() or (ratio is not None and not min(ratio.values()) >= 0 < sum(ratio.values())):
        raise ConfigError("each name needs a target and a share above 0, or keys", where=source)
    for target in outs.values():
        check_outside([source], target)
    spec = StoreSpec(source, storage_options)
    metadata = read_tar_metadata(spec)
    chosen = (
        _by_ratio(metadata, ratio, seed) if ratio is not None else _by_keys(spec, metadata, keys or {}, rest)
    )
    signature = f"{metadata.info_digest}:shares:{seed}:{sorted((ratio or {}).items())}"
    options = {
        "max_size": parse_size(max_size, "max_size"),
        "max_count": max_count,
        "storage_options": storage_options,
    }
    return {
        name: _write(spec, metadata, chosen[name], target, signature=f"{signature}:{name}", **options)
        for name, target in outs.items()
    }


def sample_dataset(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    count: int | None = None,
    share: float | None = None,
    keys: Iterable[str] | None = None,
    seed: int = 0,
    max_size: int | str = MAX_SIZE,
    max_count: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> int:
    """Make a small dataset of some samples of a large one. Only their bytes are fetched.

    Args:
        source: A prepared dataset.
        target: New folder, local or any fsspec URL.
        count: Number of samples, drawn at random. Give this, ``share`` or ``keys``.
        share: Share of the samples, drawn at random.
        keys: Keys of the samples.
        seed: Which samples are drawn.
        max_size: Largest size of a new tar: bytes, or a text such as ``"500MB"``.
        max_count: Largest number of samples of a new tar.
        storage_options: Options of their file system, such as credentials.

    Returns:
        Number of samples of the new dataset.

    Raises:
        ConfigError: An option cannot work, a key is not in the dataset, or the target has another dataset.
        EnergonStreamError: The source cannot be read, or the target cannot be written.

    Example:
        >>> from energon_stream import sample_dataset
        >>> sample_dataset("captions", "few", count=5)
        5
    """
    source, target = os.fspath(source), os.fspath(target)
    if sum(value is not None for value in (count, share, keys)) != 1:
        raise ConfigError("give one of count, share and keys")
    check_outside([source], target)
    spec = StoreSpec(source, storage_options)
    metadata = read_tar_metadata(spec)
    total = sum(metadata.shard_counts.values())
    if keys is not None:
        wanted = _by_keys(spec, metadata, {"": keys}, None)[""]
    else:
        number = round(total * share) if share is not None else count or 0
        if not 0 < number <= total:
            raise ConfigError(f"{number} samples of {total}", where=metadata.url, hint="take 1 or more")
        draws = np.random.Generator(np.random.Philox(key=derive_key("sample", seed)))
        drawn = np.sort(draws.choice(total, number, replace=False, shuffle=False))
        wanted = _by_shard(metadata, drawn)
    signature = f"{metadata.info_digest}:sample:{seed}:{sum(map(len, wanted.values()))}"
    return _write(
        spec, metadata, wanted, target,
        signature=signature, max_size=parse_size(max_size), max_count=max_count, storage_options=storage_options,
    )  # fmt: skip


def _write(
    spec: StoreSpec, metadata: DatasetMetadata, wanted: Mapping[str, Int64Array], target: str, **options: Any
) -> int:
    """Write samples, given by their numbers within shards, to a new dataset; return their number."""
    store, total = spec.open(), sum(map(len, wanted.values()))
    out = StoreSpec(target, options["storage_options"]).open()
    try:
        if sum(read_info(out).values()) == total:  # a run before has finished it
            return total
    except ObjectNotFoundError:
        copy_code(store, out, metadata)
    with ShardWriter(target, dataset_yaml=metadata.dataset_yaml, **options) as writer:
        for sample in read_samples(store, islice(_places(store, metadata, wanted), writer.written, None)):
            writer.write(sample)
    return writer.written


def _places(
    store: Store, metadata: DatasetMetadata, wanted: Mapping[str, Int64Array]
) -> Iterator[SampleRange]:
    """Yield the places of samples, shard by shard."""
    for shard, numbers in wanted.items():
        if len(numbers):
            count, first, last = metadata.shard_counts[shard], int(numbers[0]), int(numbers[-1])
            offsets = read_offsets(store, shard, count, first, last + 1)
            for number in (numbers - first).tolist():
                yield SampleRange(shard, int(offsets[number]), int(offsets[number + 1]))


def _by_shard(metadata: DatasetMetadata, numbers: Int64Array) -> dict[str, Int64Array]:
    """Return numbers within shards, given sorted numbers within the dataset."""
    counts = np.fromiter(metadata.shard_counts.values(), dtype=np.int64)
    ends = np.cumsum(counts)
    pieces = np.split(numbers, np.searchsorted(numbers, ends[:-1]))
    return {
        shard: piece - start
        for shard, piece, start in zip(metadata.shard_counts, pieces, (ends - counts).tolist(), strict=True)
    }


def _by_ratio(
    metadata: DatasetMetadata, ratio: Mapping[str, float], seed: int
) -> dict[str, dict[str, Int64Array]]:
    draws = {
        shard: np.random.Generator(np.random.Philox(key=derive_key("split", seed, shard))).random(count)
        for shard, count in metadata.shard_counts.items()
    }
    order = np.sort(np.concatenate([*draws.values()]))
    ends = np.rint(np.cumsum([*ratio.values()]) / sum(ratio.values()) * len(order)).astype(np.int64)
    counts = zip(ratio, np.diff(ends, prepend=0).tolist(), strict=True)
    check_filled({name: count for name, count in counts if ratio[name]}, metadata.url)
    bounds = np.where(ends > 0, order[ends - 1], -1.0)
    found: dict[str, dict[str, Int64Array]] = {name: {} for name in ratio}
    for shard, drawn in draws.items():
        owners = np.searchsorted(bounds, drawn)
        for number, name in enumerate(ratio):
            found[name][shard] = np.flatnonzero(owners == number)
    return found


def _by_keys(
    spec: StoreSpec, metadata: DatasetMetadata, keys: Mapping[str, Iterable[str]], rest: str | None
) -> dict[str, dict[str, Int64Array]]:
    database, shards = index_database(spec), list(metadata.shard_counts)
    found: dict[str, dict[str, Int64Array]] = {}
    taken: dict[str, set[int]] = {shard: set() for shard in shards}
    for name, wanted in keys.items():
        numbers: dict[str, set[int]] = {}
        missing = []
        for key in wanted:
            rows = database.rows(_PLACE, (key,))
            if not rows:
                missing.append(key)
                continue
            if not 0 <= rows[0][0] < len(shards):
                raise MetadataError(
                    "index.sqlite names a shard that is not in .info.json", where=metadata.url
                )
            shard = shards[rows[0][0]]
            if rows[0][1] in taken[shard] and rows[0][1] not in numbers.get(shard, ()):
                raise ConfigError(f"the key {key!r:.80} is named twice, for several datasets")
            numbers.setdefault(shard, set()).add(rows[0][1])
            taken[shard].add(rows[0][1])
        if missing:
            raise ConfigError(
                f"{counted(len(missing), 'key')} {'is' if len(missing) == 1 else 'are'} not in the dataset, the first is {missing[0]!r:.80}",
                where=metadata.url,
            )
        found[name] = {shard: _sorted(numbers.get(shard, ())) for shard in shards}
    if rest is not None:
        found[rest] = {
            shard: np.setdiff1d(np.arange(count), _sorted(taken[shard]), assume_unique=True)
            for shard, count in metadata.shard_counts.items()
        }
    return found


def _sorted(numbers: Iterable[int]) -> Int64Array:
    return np.array(sorted(numbers), dtype=np.int64)


def _begin(store: Store, *about: str) -> ShardRecords:
    """Note what a dataset is made of, or check that it is the same; return the records of its shards."""
    existing = existing_metadata(store)
    arguments = PartArguments(0, 1, "merged", 1, 0, format(digest("\0".join(about).encode()), "016x"))
    resume_part(store, arguments, existing)
    save_part(store, arguments, is_complete=False)
    return ShardRecords(store, WRITING, existing)


def _folders(urls: Sequence[str]) -> list[str]:
    """Return a name for each dataset: the last of its path, with a number if several have the same."""
    names = [url.rstrip("/").rpartition("/")[2] or "data" for url in urls]
    if len({*names}) == len(names):
        return names
    return [f"{number:03d}-{name}" for number, name in enumerate(names)]


def _copy_shard(specs: Sequence[StoreSpec], target: StoreSpec, task: tuple[int, str, str]) -> None:
    """Copy a shard, and write its index and its record."""
    number, shard, path = task
    store, out = specs[number].open(), target.open()
    entry = ListEntry(shard, store.head(shard))
    with local_copy(store, entry) as copy:
        scan = scan_shard(copy.store, entry)
        data = copy.store.get(shard, etag=entry.meta.etag).data
        digests = [digest(data[start:stop]) for start, stop in scan.bounds()]
        scan.path = path
        put_shard(out, copy.path, ShardRecord(scan, digests), move=False)


def copy_code(source: Store, target: Store, metadata: DatasetMetadata) -> None:
    """Copy the files of code that ``dataset.yaml`` names."""
    for key in _CODE:
        named = (metadata.dataset_yaml or {}).get(key)
        if isinstance(named, str) and ":" in named and "/" not in named:
            path = f"{META_FOLDER}/{named.partition(':')[0]}"
            target.put(path, bytes(source.get(path).data))
