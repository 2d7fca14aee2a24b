"""Prepares a folder of tars: writes indices and metadata, locally or on object storage."""

from __future__ import annotations

import random
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from energon_stream.errors import ConfigError, EmptyDatasetError, ObjectNotFoundError
from energon_stream.index.checksums import CHECKSUMS, digest_samples, encode_checksums
from energon_stream.index.duplicates import separate_tars
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
from energon_stream.index.sample_sizes import MOST_BYTES, SampleSizes, appended_bytes
from energon_stream.index.scan import ShardScan, check_names, scan_shard
from energon_stream.index.shard_names import match_names, only_tars, split_by_patterns, split_by_ratio
from energon_stream.index.sqlite_index import INDEX_SQLITE, SqliteWriter, temporary_folder
from energon_stream.index.yaml_io import dump_yaml
from energon_stream.storage import ListEntry, Store, StoreSpec

if TYPE_CHECKING:
    import os


@dataclass(frozen=True, slots=True)
class PrepareReport:
    """Result of :func:`prepare_dataset`.

    Attributes:
        shard_counts: Number of samples by shard path, in the order of ``.info.json``.
        split: Shards of each split part.
        parts: Sorted names of all parts in the dataset.
        files: Paths of the written files, relative to the dataset.
        media: Result of the media filter; None if there was none.
    """

    shard_counts: Mapping[str, int]
    split: Mapping[str, tuple[str, ...]]
    parts: tuple[str, ...]
    files: tuple[str, ...]
    media: MediaReport | None = None

    @property
    def num_samples(self) -> int:
        """Number of samples in the dataset."""
        return sum(self.shard_counts.values())


def prepare_dataset(
    url_or_path: str,
    *,
    shards: str | Sequence[str] | None = None,
    split_ratio: Sequence[float] | Mapping[str, float] | None = None,
    split_patterns: Sequence[str] | None = None,
    exclude: str | None = None,
    split_config: str = SPLIT_CONFIG,
    dataset_yaml: Mapping[str, Any] | None = None,
    dataset_config: str = DATASET_CONFIG,
    shuffle_tars: bool = False,
    shuffle_seed: int = 42,
    tar_index_only: bool = False,
    fix_duplicates: bool = False,
    checksums: bool = False,
    media_filter: MediaFilter | None = None,
    tmp_path: str | os.PathLike[str] | None = None,
    workers: int = 16,
    storage_options: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
    force: bool = False,
) -> PrepareReport:
    """Index the tars of a folder and write its ``.nv-meta``.

    The files are those of Megatron-Energon 7.4.1. If the samples are not very many, their sizes are behind
    the last page of ``index.sqlite``, which saves a round trip when the dataset is opened. ``.info.json`` is
    written last, so a folder whose preparation was interrupted is not a prepared dataset.

    Args:
        url_or_path: Local folder or any fsspec URL.
        shards: Names, globs or brace patterns of the tars, relative to the folder; None for all tars below
            it.
        split_ratio: Shares of train, val and test, or of split parts by name. Give this or
            ``split_patterns``.
        split_patterns: ``NAME:PATTERN`` with a regular expression, glob or brace pattern.
        exclude: Regular expression; tars with a match anywhere in their path are left out.
        split_config: Name of the file in ``.nv-meta`` that has the split parts.
        dataset_yaml: Content of ``dataset.yaml``; None to write no such file.
        dataset_config: Name of the file in ``.nv-meta`` that ``dataset_yaml`` is written to.
        shuffle_tars: Shuffle the shards before they are split.
        shuffle_seed: Seed of the shuffle. Megatron-Energon has the same default.
        tar_index_only: Write the ``.tar.idx`` files only.
        fix_duplicates: If tars share sample keys, rename the members of all tars first, which writes the tars
            anew: ``x.jpg`` of ``a.tar`` becomes ``a.tar/x.jpg``.
        checksums: Also read all bytes, and write a checksum for each sample, which ``ReadOptions(verify=…)``
            compares. Without this, checksums of an earlier preparation are removed.
        media_filter: Images whose size is written to the index; None for none.
        tmp_path: Local folder for a temporary folder, made if missing, in which files are built before they
            are uploaded; None for the system's. It takes the index, and with ``fix_duplicates`` a tar for
            each worker.
        workers: Number of shards that are read at the same time.
        storage_options: Credentials and the like for the URL's file system.
        progress: Called with the number of shards that are done, and of all shards.
        force: Replace an existing preparation.

    Raises:
        ObjectNotFoundError: The folder has no tars, or none that the options select.
        ConfigError: The options contradict each other, all tars are compressed, or the dataset is prepared
            already.
        CorruptTarError: A tar is damaged or cut off, or a member's name is not UTF-8; names the shard.
        DuplicateKeyError: Two samples have the same key.
        EmptyDatasetError: A tar has no samples.

    Example:
        >>> report = prepare_dataset("tars", split_ratio=(3, 1, 0))
        >>> report.num_samples, report.parts, report.split["val"]
        (64, ('jpg', 'txt'), ('data-000003.tar',))
    """
    if workers < 1:
        raise ConfigError(f"workers is {workers}", hint="use 1 or more")
    if tar_index_only and media_filter is not None:
        raise ConfigError(
            "tar_index_only excludes media_filter, because media metadata is written to index.sqlite"
        )
    if tar_index_only and fix_duplicates:
        raise ConfigError(
            "tar_index_only excludes fix_duplicates, because new keys are written to index.sqlite"
        )
    if tar_index_only and checksums:
        raise ConfigError("tar_index_only excludes checksums, which belong to the whole preparation")
    check_file_names(split_config=split_config, dataset_config=dataset_config)
    if not tar_index_only and (split_ratio is None) == (split_patterns is None):
        raise ConfigError("give either split_ratio or split_patterns")
    store = StoreSpec(url_or_path, storage_options).open()
    existing = {entry.path for entry in store.list(META_FOLDER)}
    if not (force or tar_index_only) and existing & {INFO_JSON, INFO_YAML}:
        raise ConfigError(
            "the dataset is prepared already",
            where=store.url,
            hint="pass force=True to replace the preparation",
        )
    entries = find_shards(store, shards=shards, exclude=exclude)
    paths = [entry.path for entry in entries]
    order = list(paths)
    if shuffle_tars:
        random.Random(shuffle_seed).shuffle(order)
    split = split_by_patterns(order, split_patterns) if split_patterns else {}
    split = split_by_ratio(order, split_ratio) if split_ratio is not None else split
    digests: list[Sequence[int]] | None = [] if checksums else None  # of the samples, tar by tar
    index = partial(_index, store, workers, media_filter, progress, digests)
    files = tuple(map(index_path, paths))
    sizes = SampleSizes()
    if tar_index_only:
        counts, parts, media = index(entries, None, sizes)
        if {INDEX_SQLITE, INFO_JSON} <= existing:
            _remove_other_sizes(store, sizes.encode(bytes(store.get(INFO_JSON).data)))
        return PrepareReport(counts, split, parts, files, media)
    with temporary_folder(tmp_path) as folder:
        database = str(Path(folder) / "index.sqlite")
        # The folder counts as not prepared from here to the end. With an index alone it would be a plain
        # folder.
        for path in (INDEX_SQLITE, INFO_JSON, INFO_YAML, CHECKSUMS):
            if path in existing:
                store.delete(path)
        if fix_duplicates and separate_tars(store, entries, workers, folder):
            entries = find_shards(store, shards=shards, exclude=exclude)
        with SqliteWriter(database, paths) as writer:
            counts, parts, media = index(entries, writer, sizes)
        documents = {split_config: encode_split(split)}
        if dataset_yaml is not None:
            documents[dataset_config] = dump_yaml(dict(dataset_yaml))
        if digests is not None:
            store.put(CHECKSUMS, encode_checksums(digests, encode_info(counts)))
            files += (CHECKSUMS,)
        files += _write_metadata(store, database, counts, documents, sizes, INFO_YAML in existing)
    return PrepareReport(counts, split, parts, files, media)


def _index(
    store: Store,
    workers: int,
    media_filter: MediaFilter | None,
    progress: Callable[[int, int], None] | None,
    digests: list[Sequence[int]] | None,
    entries: Sequence[ListEntry],
    writer: SqliteWriter | None,
    sizes: SampleSizes,
) -> tuple[dict[str, int], tuple[str, ...], MediaReport | None]:
    """Scan tars concurrently, and write a ``.tar.idx`` file for each, the database and the sizes. Add the
    checksums of each tar's samples to ``digests``, unless it is None.

    Return the number of samples by tar, the sorted part names, and the report on media.
    """
    tables = MediaTables(writer.database, media_filter) if writer and media_filter else None

    def scan(entry: ListEntry) -> tuple[ShardScan, FoundMedia | None, Sequence[int]]:
        found = scan_shard(store, entry)
        if not found.keys:
            raise EmptyDatasetError(
                "the tar has no samples",
                where=f"{store.url}/{entry.path}",
                hint="leave it out with exclude=",
            )
        check_names(found, store)
        store.put(index_path(entry.path), encode_offsets(found.offsets))
        checked = () if digests is None else digest_samples(store, entry, found.offsets)
        if media_filter is None:
            return found, None, checked
        files = (
            MediaFile(f"{found.keys[sample]}.{part}", entry.path, start, size, entry.meta.etag)
            for sample, part, start, size in found.parts
        )
        return found, find_media(store, media_filter, files), checked

    counts: dict[str, int] = {}
    parts: set[str] = set()
    for tar_id, (found, media, checked) in enumerate(ordered_map(scan, entries, workers)):
        counts[found.path] = len(found.keys)
        sizes.add(found.offsets)
        if digests is not None:
            digests.append(checked)
        parts.update(part for _, part, _, _ in found.parts)
        if writer is not None:
            writer.add(tar_id, found)
        if tables is not None and media is not None:
            tables.add(media)
        if progress is not None:
            progress(tar_id + 1, len(entries))
    return counts, tuple(sorted(parts)), None if tables is None else tables.report


def _write_metadata(
    store: Store,
    database: str,
    counts: Mapping[str, int],
    named: Mapping[str, bytes],
    sizes: SampleSizes,
    with_info_yaml: bool,
) -> tuple[str, ...]:
    documents = {f"{META_FOLDER}/{name}": content for name, content in named.items()}
    documents[f"{META_FOLDER}/index.uuid"] = str(uuid.uuid4()).encode()
    infos = {INFO_YAML: encode_info(counts, as_yaml=True)} if with_info_yaml else {}
    infos[INFO_JSON] = encode_info(counts)
    for path, content in documents.items():
        store.put(path, content)
    with open(database, "ab") as file:
        file.write(sizes.encode(infos[INFO_JSON]) or b"")
    store.put_file(INDEX_SQLITE, database)
    for path, content in infos.items():
        store.put(path, content)
    return (*documents, INDEX_SQLITE, *infos)


def _remove_other_sizes(store: Store, expected: bytes | None) -> None:
    """Remove the sizes behind the database if they are not those of the tars."""
    tail = store.get_suffix(INDEX_SQLITE, MOST_BYTES).data
    length = appended_bytes(tail)
    if length and bytes(tail[-length:]) != expected:
        store.put(INDEX_SQLITE, bytes(store.get(INDEX_SQLITE).data[:-length]))


def check_file_names(**names: str) -> None:
    """Raise ConfigError if a name of a file in ``.nv-meta`` is not one; ``names`` is by argument."""
    for argument, name in names.items():
        if not name.endswith((".yaml", ".yml")) or "/" in name:
            raise ConfigError(f"{argument} is {name!r}", hint="give a file name such as other.yaml")


def find_shards(
    store: Store, *, shards: str | Sequence[str] | None = None, exclude: str | None = None
) -> list[ListEntry]:
    """List the tars of a folder, sorted by path; see :func:`prepare_dataset`.

    Raises ObjectNotFoundError if the folder has no tars, or none that the options select, and ConfigError if
    ``exclude`` is not a regular expression, or all tars are compressed.
    """
    listed = (entry for entry in store.list() if not entry.path.startswith(f"{META_FOLDER}/"))
    entries = {entry.path: entry for entry in only_tars(listed, store.url)}
    names = list(entries)
    if shards is not None:
        names = match_names(names, [shards] if isinstance(shards, str) else shards)
    if exclude is not None:
        try:
            expression = re.compile(exclude)
        except re.error as error:
            raise ConfigError(f"exclude {exclude!r} is not a regular expression: {error}") from error
        names = [name for name in names if not expression.search(name)]
    if not names:
        raise ObjectNotFoundError(
            f"none of the {len(entries)} tars is selected",
            where=store.url,
            hint=f"check the patterns; the first tar is {next(iter(entries))!r}",
        )
    return [entries[name] for name in names]
