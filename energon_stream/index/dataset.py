"""A prepared WebDataset, opened: shards and counts of one split part."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from energon_stream.arrays import Int64Array
from energon_stream.errors import (
    ConfigError,
    EmptyDatasetError,
    MetadataError,
    NotPreparedError,
    ObjectNotFoundError,
)
from energon_stream.index.index_files import OffsetWindow, read_offsets
from energon_stream.index.kept_index import PlainTars
from energon_stream.index.metadata import (
    DATASET_CONFIG,
    INFO_JSON,
    INFO_YAML,
    META_FOLDER,
    SPLIT_CONFIG,
    SplitConfig,
    load_document,
    parse_info,
    parse_split,
)
from energon_stream.index.shard_names import names_tars
from energon_stream.storage import Store, StoreSpec, is_local, local_path, shared_fetcher

__all__ = [
    "DatasetIndex",
    "DatasetKind",
    "DatasetMetadata",
    "WebDatasetIndex",
    "dataset_kind",
    "open_webdataset",
    "read_metadata",
    "select_part",
]

_log = logging.getLogger(__name__)

DatasetKind = Literal["webdataset", "metadataset", "jsonl", "tars"]


class DatasetIndex(Protocol):
    """An opened dataset: a numbered sequence of samples in shards."""

    @property
    def spec(self) -> StoreSpec:
        """Where it lies."""

    @property
    def split_part(self) -> str:
        """Name of the split part."""

    @property
    def num_samples(self) -> int:
        """Its samples, excluded ones included."""

    @property
    def shard_paths(self) -> tuple[str, ...]:
        """Names of what holds the samples."""

    @property
    def shard_counts(self) -> Int64Array:
        """``int64``: samples of each shard."""

    @property
    def shard_starts(self) -> Int64Array:
        """``int64``: first sample of each shard, and the total."""

    @property
    def excluded(self) -> Mapping[str, frozenset[str]]:
        """Shard path to keys of its samples that are not to be used."""


@dataclass(frozen=True, slots=True, eq=False)
class WebDatasetIndex:
    """What training needs to know of a dataset before the first byte of a shard; picklable.

    Attributes:
        spec: The dataset's root.
        split_part: Name of the split part.
        shard_paths: Shards of the part, relative to the root, in order.
        shard_counts: ``int64`` array: samples of each shard.
        shard_starts: ``int64`` array, one longer: number of the first sample of each shard, and
            the total.
        excluded: Shard path, of any part, to keys of its samples that are not to be used. They count in
            lengths.
        dataset_yaml: Content of ``dataset.yaml``; None where there is none.
        excluded_shards: Shards of the part that are not to be used at all; they are not in the others.
        shard_ids: ``int64`` array: place of each shard in ``.info.json``, which is its number in
            ``index.sqlite``; None where that is not known.
        plain: The tars of a dataset that was not prepared; None for one that was.
    """

    spec: StoreSpec
    split_part: str
    shard_paths: tuple[str, ...]
    shard_counts: Int64Array
    excluded: Mapping[str, frozenset[str]] = field(default_factory=dict)
    dataset_yaml: Mapping[str, Any] | None = None
    excluded_shards: tuple[str, ...] = ()
    shard_ids: Int64Array | None = None
    plain: PlainTars | None = None
    shard_starts: Int64Array = field(init=False)

    def __post_init__(self) -> None:
        starts = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(self.shard_counts, dtype=np.int64)])
        object.__setattr__(self, "shard_starts", starts)

    @property
    def num_samples(self) -> int:
        """Samples of the part, excluded ones included."""
        return int(self.shard_starts[-1])

    def is_excluded(self, shard: int, key: str) -> bool:
        """Whether the sample ``key`` of shard number ``shard`` is not to be used."""
        if not self.excluded:
            return False
        return key in self.excluded.get(self.shard_paths[shard], ())

    def read_offsets(self, store: Store, shard: int, first: int, last: int) -> OffsetWindow:
        """Read entries of a shard's index, wherever it lies.

        Args:
            store: The dataset's root.
            shard: Number of the shard.
            first: First entry wanted.
            last: Last entry wanted, inclusive; the one after the last sample is its end.

        Raises:
            NotPreparedError: There is no index.
            IndexMismatchError: The index is damaged, or of another number of samples.
        """
        count = int(self.shard_counts[shard])
        if self.plain is not None:
            return self.plain.read_offsets(shard, count, first, last)
        return read_offsets(store, self.shard_paths[shard], count, first, last)


def dataset_kind(url: str) -> DatasetKind:
    """What a path names, by its suffix and without any request: ``.jsonl``, ``.yaml``, ``.tar`` or a folder."""
    if url.endswith(".jsonl"):
        return "jsonl"
    if names_tars(url):
        return "tars"
    return "metadataset" if url.endswith((".yaml", ".yml")) else "webdataset"


@dataclass(frozen=True, slots=True)
class DatasetMetadata:
    """The metadata files of a dataset.

    Attributes:
        url: The dataset's root.
        shard_counts: Shard path to number of samples, in the order of the shards' ids.
        split: The split file.
        split_url: Where it lies, for messages.
        dataset_yaml: The dataset file; None where there is none.
    """

    url: str
    shard_counts: Mapping[str, int]
    split: SplitConfig
    split_url: str
    dataset_yaml: Mapping[str, Any] | None


def open_webdataset(
    spec: StoreSpec,
    *,
    split_part: str,
    split_config: str = SPLIT_CONFIG,
    dataset_config: str = DATASET_CONFIG,
) -> WebDatasetIndex:
    """Open one split part of a dataset.

    Args:
        spec: Folder of the dataset.
        split_part: ``train``, ``val``, …
        split_config: File in ``.nv-meta`` that says which shards belong to which part.
        dataset_config: File in ``.nv-meta`` that says how samples are made; it may be absent.

    Raises:
        ConfigError: No such split part.
        EmptyDatasetError: The part has no samples.
        EnergonStreamError: As :func:`read_metadata`.
    """
    metadata = read_metadata(spec, split_config=split_config, dataset_config=dataset_config)
    return select_part(spec, split_part, metadata)


def read_metadata(
    spec: StoreSpec, *, split_config: str = SPLIT_CONFIG, dataset_config: str = DATASET_CONFIG
) -> DatasetMetadata:
    """Read the metadata files of a dataset, all at once; older names only if the usual ones are missing.

    Raises:
        ObjectNotFoundError: No such folder or bucket.
        NotPreparedError: No ``.nv-meta`` in it, or no split file.
        MetadataError: A file has a wrong form.
    """
    store = spec.open()
    info, split, config = INFO_JSON, f"{META_FOLDER}/{split_config}", f"{META_FOLDER}/{dataset_config}"
    found = _fetch_all(store, [info, split, config])
    if info not in found or split not in found:
        older = {info: INFO_YAML, split: split.removesuffix(".yaml") + ".json"}
        found |= _fetch_all(store, [older[path] for path in (info, split) if path not in found])
        info, split = (path if path in found else older[path] for path in (info, split))
    if info not in found:
        raise _missing_info(store)
    if split not in found:
        raise NotPreparedError(
            f"the dataset has no {split_config}",
            where=f"{store.url}/{META_FOLDER}",
            hint=_prepare_hint(store),
        )
    return DatasetMetadata(
        store.url,
        parse_info(found[info], f"{store.url}/{info}"),
        parse_split(found[split], f"{store.url}/{split}"),
        f"{store.url}/{split}",
        load_document(found[config], f"{store.url}/{config}") if config in found else None,
    )


def _fetch_all(store: Store, paths: Iterable[str]) -> dict[str, memoryview]:
    """Read whole objects at the same time; those that do not exist are left out."""
    fetcher = shared_fetcher()
    futures = {
        path: fetcher.call(functools.partial(store.get, path), deadline=-1, inline=store.is_local)
        for path in paths
    }
    found = {}
    for path, future in futures.items():
        try:
            found[path] = future.result().data
        except ObjectNotFoundError:
            continue
    return found


def _prepare_hint(store: Store) -> str:
    return f"Check the path, or run `energon-stream prepare {store.url}`."


def _missing_info(store: Store) -> NotPreparedError | ObjectNotFoundError:
    """Find out why there is no ``.info.json``; a missing bucket raises by itself."""
    if is_local(store.url) and not Path(local_path(store.url)).is_dir():
        return ObjectNotFoundError("no such folder", where=store.url, hint="Check the path.")
    names = [entry.path.rpartition("/")[2] for entry in store.list(META_FOLDER)]
    if not names:
        hint = f"{_prepare_hint(store)} With sample_type= it is read unprepared, and indexed on first use."
        return NotPreparedError(f"no {META_FOLDER} folder", where=store.url, hint=hint)
    if "index.sqlite" in names and SPLIT_CONFIG not in names:
        return NotPreparedError(
            "a plain folder with media metadata holds no samples to train on",
            where=store.url,
            hint="Use it as auxiliary data.",
        )
    return NotPreparedError(f"{META_FOLDER} has no .info.json", where=store.url, hint=_prepare_hint(store))


def select_part(spec: StoreSpec, split_part: str, metadata: DatasetMetadata) -> WebDatasetIndex:
    """One split part of a dataset whose metadata was read; raises as :func:`open_webdataset`."""
    counts, split, where = metadata.shard_counts, metadata.split, metadata.split_url
    if split_part not in split.parts:
        raise ConfigError(
            f"no split part {split_part!r}",
            where=where,
            hint=f"There are: {', '.join(split.parts) or 'none'}.",
        )
    whole, by_shard = _sort_excludes(split.exclude, counts, where)
    paths = tuple(path for path in split.parts[split_part] if path not in whole)
    for path in paths:
        if path not in counts:
            raise MetadataError(
                f"split part {split_part!r} lists the shard {path!r}, which .info.json does not know",
                where=where,
                hint="Correct the name, or run `energon-stream prepare` again.",
            )
    shard_counts = np.array([counts[path] for path in paths], dtype=np.int64)
    if not shard_counts.sum():
        raise EmptyDatasetError(
            f"split part {split_part!r} has no samples", where=where, hint=f"Parts: {', '.join(split.parts)}."
        )
    excluded = {shard: frozenset(keys) for shard, keys in by_shard.items()}
    left_out = tuple(path for path in split.parts[split_part] if path in whole)
    numbers = {path: number for number, path in enumerate(counts)}
    ids = np.array([numbers[path] for path in paths], dtype=np.int64)
    return WebDatasetIndex(
        spec, split_part, paths, shard_counts, excluded, metadata.dataset_yaml, left_out, ids
    )


def _sort_excludes(
    exclude: Iterable[str], counts: Mapping[str, int], where: str
) -> tuple[set[str], dict[str, set[str]]]:
    """Whole shards, and sample keys by shard."""
    whole: set[str] = set()
    by_shard: dict[str, set[str]] = {}
    for entry in exclude:
        shard, slash, key = entry.partition(".tar/")
        if slash and f"{shard}.tar" in counts:
            by_shard.setdefault(f"{shard}.tar", set()).add(key)
        elif entry in counts:
            whole.add(entry)
        else:
            _log.warning("%s excludes %r, which names no shard of the dataset", where, entry)
    return whole, by_shard
