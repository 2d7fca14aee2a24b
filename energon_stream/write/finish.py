"""Publishes a dataset that was written: builds the index from the records of its shards."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from energon_stream.errors import ConfigError, EmptyDatasetError
from energon_stream.index.info_files import (
    DATASET_CONFIG,
    INFO_JSON,
    INFO_YAML,
    META_FOLDER,
    SPLIT_CONFIG,
    encode_split,
    read_info,
)
from energon_stream.index.shard_names import split_by_patterns, split_by_ratio
from energon_stream.index.sqlite_index import temporary_folder
from energon_stream.index.yaml_io import dump_yaml
from energon_stream.prepare.builder import IndexBuilder
from energon_stream.prepare.publish import NewFiles, publish
from energon_stream.prepare.shard_record import ShardSummary
from energon_stream.storage import StoreSpec
from energon_stream.storage.in_order import ordered_map
from energon_stream.urls import local_path
from energon_stream.write.journal import WRITING, load_part, load_shard, part_files, record_files

if TYPE_CHECKING:
    from energon_stream.engine.tasks import TaskEngine
    from energon_stream.storage import Store
    from energon_stream.tar.scan import ShardScan

CRUDE: Mapping[str, Any] = {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}
"""Content of ``dataset.yaml`` for samples that are used as they are."""

_READERS = 16


def publish_written(
    store: Store,
    builder: IndexBuilder,
    *,
    split: Mapping[str, Sequence[str]],
    dataset_yaml: Mapping[str, Any] | None,
    exclude: Sequence[str] = (),
) -> None:
    """Write the metadata of the dataset, ``.info.json`` last, and remove the records of the shards."""
    others = (
        {} if dataset_yaml is None else {f"{META_FOLDER}/{DATASET_CONFIG}": dump_yaml(dict(dataset_yaml))}
    )
    split_file = f"{META_FOLDER}/{SPLIT_CONFIG}", encode_split(split, exclude)
    publish(store, None, NewFiles.of(builder.complete(), split_file, others), {})
    remove_records(store)


def add_records(builder: IndexBuilder, spec: StoreSpec, records: Sequence[str], engine: TaskEngine) -> None:
    """Add all shards to an index, given the paths of their records. Processes of the engine write the rows.

    Raises DuplicateKeyError if two samples share a key.
    """
    summaries = engine.map(partial(_load_summary, spec), records, in_order=True)
    builder.add_all(
        summaries, lambda first, stop: partial(_load_scans, spec, tuple(records[first:stop])), engine
    )


def _load_summary(spec: StoreSpec, path: str) -> ShardSummary:
    return ShardSummary.of(load_shard(spec.open(), path))


def _load_scans(spec: StoreSpec, paths: Sequence[str]) -> Iterator[ShardScan]:
    store = spec.open()
    return (record.scan for record in ordered_map(partial(load_shard, store), paths, 2))


def finish_dataset(
    url_or_path: str,
    *,
    split_ratio: Sequence[float] | Mapping[str, float] | None = None,
    split_patterns: Sequence[str] | None = None,
    dataset_yaml: Mapping[str, Any] | None = CRUDE,
    storage_options: Mapping[str, Any] | None = None,
    tmp_path: str | os.PathLike[str] | None = None,
    engine: TaskEngine | None = None,
) -> dict[str, int]:
    """Publish a dataset that several writers have written, when all of them are done.

    The index is made from the records that the writers left; no tar is read. Finishing twice does no harm.

    Args:
        url_or_path: The folder or URL that the writers were given.
        split_ratio: Shares of train, val and test, or of split parts by name. Without this and
            ``split_patterns``, all shards are in ``train``.
        split_patterns: ``NAME:PATTERN`` with a regular expression, glob or brace pattern.
        dataset_yaml: Content of ``dataset.yaml``, which says what samples are; None to write no such file.
            The default is crude samples.
        storage_options: Credentials and the like for the URL's file system.
        tmp_path: Local folder for the index until it is uploaded; None for the system's.
        engine: Processes that build the index of a large dataset, such as ``LocalEngine()``; all must see
            ``tmp_path``. None for this process.

    Returns:
        Number of samples by shard path.

    Raises:
        ConfigError: No writer was here, or some part is not complete.
        DuplicateKeyError: Two samples of different parts have the same key.
        EmptyDatasetError: There are no samples.

    Example:
        >>> from energon_stream import ShardWriter, finish_dataset
        >>> for part in range(2):  # in two processes, for example
        ...     with ShardWriter("numbers", part=part, parts=2) as writer:
        ...         for number in range(part, 10, 2):
        ...             writer.write({"__key__": f"{number:04d}", "cls": number})
        >>> finish_dataset("numbers")
        {'data-00000-000000.tar': 5, 'data-00001-000000.tar': 5}
    """
    store = StoreSpec(url_or_path, storage_options).open()
    existing = {entry.path for entry in store.list(META_FOLDER)}
    if existing & {INFO_JSON, INFO_YAML}:
        remove_records(store)
        return read_info(store)
    _check_complete(store, existing)
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder(tmp_path))
        builder = stack.enter_context(IndexBuilder(folder, checksums=True))
        records = record_files(existing)
        if engine is not None:
            add_records(builder, StoreSpec(url_or_path, storage_options), records, engine)
        else:
            for record in ordered_map(partial(load_shard, store), records, _READERS):
                builder.add(record)
        split = find_split(store, builder.counts, split_ratio, split_patterns)
        publish_written(store, builder, split=split, dataset_yaml=dataset_yaml)
    return builder.counts


def find_split(
    store: Store,
    counts: Mapping[str, int],
    split_ratio: Sequence[float] | Mapping[str, float] | None,
    split_patterns: Sequence[str] | None,
) -> Mapping[str, Sequence[str]]:
    """Return the shards of each split part.

    Raises ConfigError if both ways are given, or one is wrong, and EmptyDatasetError if there are no shards.
    """
    if split_ratio is not None and split_patterns is not None:
        raise ConfigError("give either split_ratio or split_patterns")
    if not counts:
        raise EmptyDatasetError("no sample was written", where=store.url, hint="write one or more")
    if split_patterns is not None:
        return split_by_patterns([*counts], split_patterns)
    return split_by_ratio([*counts], (1, 0, 0) if split_ratio is None else split_ratio)


def remove_records(store: Store) -> None:
    """Remove the records of a published dataset."""
    for entry in list(store.list(WRITING)):
        store.delete(entry.path)
    if store.is_local:
        for folder, _, _ in os.walk(os.path.join(local_path(store.url), WRITING), topdown=False):
            with suppress(OSError):  # another writer has just begun
                os.rmdir(folder)


def _check_complete(store: Store, existing: set[str]) -> None:
    states = [load_part(store, path) for path in part_files(existing)]
    if not states:
        raise ConfigError("no writer has written here", where=store.url, hint="check the path")
    parts = states[0][0].parts
    complete = {arguments.part for arguments, is_complete in states if is_complete}
    missing = [part for part in range(parts) if part not in complete]
    if missing:
        raise ConfigError(
            f"{len(missing)} of {parts} parts are not complete, the first is part {missing[0]}",
            where=store.url,
            hint="open its writer again; it goes on after its last complete shard",
        )
