"""Lists the datasets of a path: the split parts of one, or those of a metadataset with their shares."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from energon_stream.arguments import DATASET_CONFIG, SPLIT_CONFIG
from energon_stream.config.metadataset_files import MetadatasetFiles
from energon_stream.config.opening import open_all
from energon_stream.config.references import JoinRef, MixtureItem
from energon_stream.errors import ConfigError, EmptyDatasetError, NotPreparedError
from energon_stream.index.dataset import (
    DatasetIndex,
    WebDatasetIndex,
    dataset_kind,
    read_metadata,
    select_split_part,
)
from energon_stream.index.file_format import find_format
from energon_stream.index.files_index import open_file, open_folder
from energon_stream.index.info_files import read_info
from energon_stream.index.plain import find_tars, list_tars, open_plain
from energon_stream.limits import Limits
from energon_stream.printable import strip_credentials
from energon_stream.storage import StoreSpec
from energon_stream.tools.browse.sample_source import SampleSource

RETRY_SECONDS = 20.0
"""Time for which failing requests are tried again: somebody waits for the answer."""

Opened = tuple["DatasetIndex", Sequence[str]]
"""A dataset, and the paths of all shards of its folder; none if they are unknown."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A dataset that can be looked at."""

    split: str  # split part, or split of the metadataset
    url: str  # path or URL of the dataset, without credentials
    share: str  # its part of the mixture, in words; empty for a single dataset
    samples: int | None  # number of samples; None if it is not known before the dataset is opened
    open: Callable[[], Opened]  # opens the dataset


class Catalog:
    """The datasets of a path, opened when they are looked at. For any threads.

    Raises NotPreparedError if there is neither metadata nor a tar, and DatasetError if the metadata is wrong.
    """

    def __init__(
        self,
        path: str,
        storage_options: Mapping[str, Any] | None = None,
        *,
        split_config: str = SPLIT_CONFIG,
        dataset_config: str = DATASET_CONFIG,
    ) -> None:
        self.url: str = strip_credentials(path)
        self.entries: tuple[Entry, ...] = tuple(
            _mixtures(path, storage_options)
            if dataset_kind(path) == "metadataset"
            else _single(
                StoreSpec(path, storage_options, retry_deadline=RETRY_SECONDS), split_config, dataset_config
            )
        )
        if not self.entries:
            raise EmptyDatasetError("there is no split part with samples", where=self.url)
        self._lock = threading.Lock()
        self._locks = [threading.Lock() for _ in self.entries]
        self._by_entry: dict[int, int] = {}  # number of the source by that of the entry
        self._sources: list[SampleSource] = []

    def open(self, entry: int) -> int:
        """Open an entry if it is not open, and return the number of its source."""
        if not 0 <= entry < len(self.entries):
            raise ConfigError(f"there is no dataset number {entry}", where=self.url)
        with self._locks[entry]:
            if entry not in self._by_entry:
                self._by_entry[entry] = self.add(*self.entries[entry].open())
            return self._by_entry[entry]

    def add(self, index: DatasetIndex, shards: Sequence[str] = ()) -> int:
        """Return the number of the source of an opened dataset, which may be a new one."""
        with self._lock:
            for number, source in enumerate(self._sources):
                if _is_same(source.index, index):
                    return number
            self._sources.append(SampleSource(index, shards))
            return len(self._sources) - 1

    def source(self, number: int) -> SampleSource:
        """Return a source by its number. Raises ConfigError if there is none."""
        if not 0 <= number < len(self._sources):
            raise ConfigError(f"there is no open dataset number {number}", hint="load the page again")
        return self._sources[number]


def _is_same(one: DatasetIndex, other: DatasetIndex) -> bool:
    return (
        (type(one), one.spec.url, one.split_part) == (type(other), other.spec.url, other.split_part)
        and one.num_samples == other.num_samples
        and one.shard_paths == other.shard_paths
    )


def _single(spec: StoreSpec, split_config: str, dataset_config: str) -> list[Entry]:
    url, kind = strip_credentials(spec.url), dataset_kind(spec.url)
    if (format := find_format(spec.url)) is not None:
        lines = open_file(spec, format)
        return [Entry(lines.split_part, url, "", lines.num_samples, lambda: (lines, ()))]
    if kind == "tars":
        return [_plain(url, open_plain(*find_tars(spec), split_part="train"))]
    try:
        found = read_metadata(spec, split_config=split_config, dataset_config=dataset_config, with_sizes=True)
    except NotPreparedError:
        tars = list_tars(spec)
        if tars is None:
            raise
        return [_plain(url, open_plain(spec, tars, split_part="train"))]
    shards = list(found.shard_counts)

    def opened(name: str) -> Opened:
        index = select_split_part(spec, name, found)
        format = find_format(shards[0])
        return (index if format is None else open_folder(index, format, Limits())), shards

    counts = {
        name: sum(found.shard_counts.get(path, 0) for path in paths)
        for name, paths in found.split.split_parts.items()
    }
    return [Entry(name, url, "", count, partial(opened, name)) for name, count in counts.items() if count]


def _plain(url: str, index: WebDatasetIndex) -> Entry:
    return Entry("all tars", url, "", index.num_samples, lambda: (index, ()))


def _mixtures(path: str, storage_options: Mapping[str, Any] | None) -> list[Entry]:
    files = MetadatasetFiles(storage_options, retry_deadline=RETRY_SECONDS)
    splits = files.document(path).splits
    return [
        entry
        for split, root in splits.items()
        for item in files.items(root)
        for entry in _of_item(split, item)
    ]


def _of_item(split: str, item: MixtureItem) -> list[Entry]:
    """Return an entry for each dataset of an item, which are several for a join."""
    is_join = isinstance(item.ref, JoinRef)
    leaves = item.ref.leaves
    share = f"{item.repetitions:g} times" if item.weight is None else f"{item.weight:.1%}"

    def opened(number: int) -> Opened:
        leaf = leaves[number]
        (index,) = open_all([leaf])
        is_prepared = isinstance(index, WebDatasetIndex) and index.plain is None
        return index, list(read_info(index.spec.open())) if is_prepared else ()

    return [
        Entry(
            split,
            f"{strip_credentials(leaf.path)} [{leaf.split_part}]",
            f"{share}, joined {number + 1} of {len(leaves)}" if is_join else share,
            None,
            partial(opened, number),
        )
        for number, leaf in enumerate(leaves)
    ]
