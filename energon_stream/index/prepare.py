"""Preparing a folder of tars: indices and metadata, locally or on object storage."""

from __future__ import annotations

import random
import re
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energon_stream.errors import ConfigError, EmptyDatasetError, ObjectNotFoundError
from energon_stream.index.in_order import ordered_map
from energon_stream.index.index_files import encode_offsets, index_path
from energon_stream.index.media import MediaFile, MediaFilter
from energon_stream.index.media_tables import FoundMedia, MediaReport, MediaTables, find_media
from energon_stream.index.metadata import (
    DATASET_CONFIG,
    INFO_JSON,
    INFO_YAML,
    META_FOLDER,
    SPLIT_CONFIG,
    encode_info,
    encode_split,
)
from energon_stream.index.scan import ShardScan, scan_shard
from energon_stream.index.split import match_names, split_by_patterns, split_by_ratio
from energon_stream.index.sqlite_index import INDEX_SQLITE, SqliteWriter
from energon_stream.index.yaml_io import dump_yaml
from energon_stream.storage import ListEntry, Store, StoreSpec

__all__ = ["PrepareReport", "find_shards", "prepare_dataset"]

_HIDDEN = f"{META_FOLDER}/"


@dataclass(frozen=True, slots=True)
class PrepareReport:
    """What ``prepare_dataset`` found and wrote.

    Attributes:
        shard_counts: Samples of each shard, in the order of their ids.
        split: Shards of each split part.
        parts: Names of all parts in the dataset, sorted.
        files: Paths written, relative to the dataset.
        media: What became of media files; None where no filter was given.
    """

    shard_counts: Mapping[str, int]
    split: Mapping[str, tuple[str, ...]]
    parts: tuple[str, ...]
    files: tuple[str, ...]
    media: MediaReport | None = None

    @property
    def num_samples(self) -> int:
        """Samples of the whole dataset."""
        return sum(self.shard_counts.values())


def prepare_dataset(
    url_or_path: str,
    *,
    shards: str | Sequence[str] | None = None,
    split_ratio: Sequence[float] | Mapping[str, float] | None = None,
    split_patterns: Sequence[str] | None = None,
    exclude: str | None = None,
    dataset_yaml: Mapping[str, Any] | None = None,
    shuffle_tars: bool = False,
    shuffle_seed: int = 42,
    tar_index_only: bool = False,
    media_filter: MediaFilter | None = None,
    workers: int = 16,
    storage_options: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
    force: bool = False,
) -> PrepareReport:
    """Index the tars of a folder and write its ``.nv-meta``.

    The files are those of Megatron-Energon 7.4.1. ``.info.json`` is written last: a folder whose
    preparation was interrupted is not a prepared one.

    Args:
        url_or_path: Local folder or any fsspec URL.
        shards: Names, globs or brace patterns of the tars, relative to the folder; default all
            below it.
        split_ratio: Shares of train, val and test, or of parts by name; exclusive with ``split_patterns``.
        split_patterns: ``NAME:PATTERN`` with a regular expression, glob or brace pattern.
        exclude: Regular expression; tars with a match anywhere in their path are left out.
        dataset_yaml: Content of ``dataset.yaml``; None writes none.
        shuffle_tars: Shuffle the shards before they are split.
        shuffle_seed: The same seed shuffles the same way; the default is Megatron-Energon's.
        tar_index_only: Write the ``.tar.idx`` files only.
        media_filter: Which parts are images whose size is written to the index; None for none.
        workers: Shards that are read at once.
        storage_options: Credentials and the like for the URL's file system.
        progress: Called with the number of shards done and of all.
        force: Replace an existing preparation.

    Raises:
        ObjectNotFoundError: No tars there.
        ConfigError: Options that cannot work, or the dataset is prepared already.
        CorruptTarError: A tar is damaged or cut off; names shard and offset.
        DuplicateKeyError: Two samples share a key.
        EmptyDatasetError: A tar without samples.
    """
    if workers < 1:
        raise ConfigError(f"workers is {workers}", hint="Use 1 or more.")
    if tar_index_only and media_filter is not None:
        raise ConfigError("media metadata lies in index.sqlite, which tar_index_only leaves out")
    if not tar_index_only and (split_ratio is None) == (split_patterns is None):
        raise ConfigError("give either split_ratio or split_patterns")
    store = StoreSpec(url_or_path, storage_options).open()
    existing = {entry.path for entry in store.list(META_FOLDER)}
    if not (force or tar_index_only) and existing & {INFO_JSON, INFO_YAML}:
        raise ConfigError(
            "the dataset is prepared already", where=store.url, hint="Pass force=True (--force-overwrite)."
        )
    entries = find_shards(store, shards=shards, exclude=exclude)
    paths = [entry.path for entry in entries]
    order = list(paths)
    if shuffle_tars:
        random.Random(shuffle_seed).shuffle(order)
    split = split_by_patterns(order, split_patterns) if split_patterns else {}
    split = split_by_ratio(order, split_ratio) if split_ratio is not None else split
    for path in (INDEX_SQLITE, INFO_JSON, INFO_YAML):
        # From here to the end the folder is no prepared one. An index alone would make it a plain folder.
        if path in existing and not tar_index_only:
            store.delete(path)
    counts: dict[str, int] = {}
    parts: set[str] = set()
    files = [index_path(path) for path in paths]
    with tempfile.TemporaryDirectory(prefix="energon-prepare-") as folder:
        database = str(Path(folder) / "index.sqlite")
        tables: MediaTables | None = None
        with nullcontext() if tar_index_only else SqliteWriter(database, paths) as writer:
            if writer is not None and media_filter is not None:
                tables = MediaTables(writer.database, media_filter)
            for tar_id, (scan, media) in enumerate(
                _scan_all(store, entries, workers, media_filter, progress)
            ):
                counts[scan.path] = len(scan.keys)
                parts.update(part[1] for part in scan.parts)
                if writer is not None:
                    writer.add(tar_id, scan)
                if tables is not None and media is not None:
                    tables.add(media)
        if not tar_index_only:
            files += _write_metadata(store, database, counts, split, dataset_yaml, INFO_YAML in existing)
    report = None if tables is None else tables.report
    return PrepareReport(counts, split, tuple(sorted(parts)), tuple(files), report)


def _write_metadata(
    store: Store,
    database: str,
    counts: Mapping[str, int],
    split: Mapping[str, tuple[str, ...]],
    dataset_yaml: Mapping[str, Any] | None,
    with_info_yaml: bool,
) -> list[str]:
    documents = {f"{META_FOLDER}/{SPLIT_CONFIG}": encode_split(split)}
    if dataset_yaml is not None:
        documents[f"{META_FOLDER}/{DATASET_CONFIG}"] = dump_yaml(dict(dataset_yaml))
    documents[f"{META_FOLDER}/index.uuid"] = str(uuid.uuid4()).encode()
    infos = {INFO_YAML: encode_info(counts, as_yaml=True)} if with_info_yaml else {}
    infos[INFO_JSON] = encode_info(counts)
    for path, content in documents.items():
        store.put(path, content)
    store.put_file(INDEX_SQLITE, database)
    for path, content in infos.items():
        store.put(path, content)
    return [*documents, INDEX_SQLITE, *infos]


def find_shards(
    store: Store, *, shards: str | Sequence[str] | None = None, exclude: str | None = None
) -> list[ListEntry]:
    """List the tars of a folder, sorted by path; see :func:`prepare_dataset`.

    Raises:
        ObjectNotFoundError: There are none, or none of that name.
        ConfigError: ``exclude`` is no regular expression.
    """
    entries = {
        entry.path: entry
        for entry in store.list()
        if entry.path.endswith(".tar") and not entry.path.startswith(_HIDDEN)
    }
    names = sorted(entries)
    if shards is not None:
        names = match_names(names, [shards] if isinstance(shards, str) else shards)
    if exclude is not None:
        try:
            expression = re.compile(exclude)
        except re.error as error:
            raise ConfigError(f"{exclude!r} is no regular expression: {error}") from error
        names = [name for name in names if not expression.search(name)]
    if not names:
        among = f" among {len(entries)} tars" if entries else ""
        raise ObjectNotFoundError(
            f"no tar files to prepare{among}", where=store.url, hint="Check the path and the patterns."
        )
    return [entries[name] for name in names]


def _scan_all(
    store: Store,
    entries: Sequence[ListEntry],
    workers: int,
    media_filter: MediaFilter | None,
    progress: Callable[[int, int], None] | None,
) -> Iterator[tuple[ShardScan, FoundMedia | None]]:
    """Scan shards at the same time and write their indices; yields in order, with few waiting."""

    def scan(entry: ListEntry) -> tuple[ShardScan, FoundMedia | None]:
        found = scan_shard(store, entry)
        if not found.keys:
            raise EmptyDatasetError(
                "the tar has no samples",
                where=f"{store.url}/{entry.path}",
                hint="Leave it out with --exclude.",
            )
        store.put(index_path(entry.path), encode_offsets(found.offsets))
        if media_filter is None:
            return found, None
        files = (
            MediaFile(f"{found.keys[sample]}.{part}", entry.path, start, size, entry.meta.etag)
            for sample, part, start, size in found.parts
        )
        return found, find_media(store, media_filter, files)

    for done, result in enumerate(ordered_map(scan, entries, workers), 1):
        yield result
        if progress is not None:
            progress(done, len(entries))
