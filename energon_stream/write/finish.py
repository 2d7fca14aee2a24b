"""Publishes a dataset that was written: builds the index from the records of its shards."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from energon_stream.errors import ConfigError, EmptyDatasetError
from energon_stream.index.info_files import INFO_JSON, INFO_YAML, META_FOLDER, read_info
from energon_stream.prepare.builder import IndexBuilder
from energon_stream.prepare.publish import MetadataOptions, NewFiles, publish
from energon_stream.prepare.shard_records import ShardRecords
from energon_stream.storage import Store, StoreSpec
from energon_stream.temporary_folders import temporary_folder
from energon_stream.write.dealing import Dealer, parse_dealing
from energon_stream.write.journal import WRITING, PartArguments, load_part, load_shards, part_files

CRUDE: Mapping[str, Any] = {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}
"""Content of ``dataset.yaml`` for samples that are used as they are."""


def split_of(
    arguments: PartArguments | None, counts: Mapping[str, int], options: MetadataOptions, url: str
) -> Mapping[str, Sequence[str]]:
    """Return the shards of each split part: as the writers dealt samples, else as the options say."""
    if arguments is None or not arguments.dealing:
        return options.split(counts)
    asked = arguments.dealing if options.split_ratio is None else parse_dealing(options.split_ratio)
    if options.split_patterns is not None or asked != arguments.dealing:
        raise ConfigError(
            f"the samples were dealt to split parts when they were written: {arguments.dealing}",
            where=url,
            hint="leave split_ratio and split_patterns out, or give the ratio of the writers",
        )
    split = arguments.split(counts)
    found = {name: sum(counts[shard] for shard in shards) for name, shards in split.items()}
    Dealer(arguments.dealing).check(found, url)
    return split


def publish_written(
    store: Store,
    builder: IndexBuilder,
    options: MetadataOptions,
    split: Mapping[str, Sequence[str]],
    exclude: Sequence[str] = (),
) -> None:
    """Write the metadata of the dataset, ``.info.json`` last, and remove the records of the shards."""
    if not builder.counts:
        raise EmptyDatasetError("no sample was written", where=store.url, hint="write one or more")
    publish(store, None, NewFiles.of(builder.complete(), options, split, exclude=exclude), {})
    ShardRecords(store, WRITING).remove()


def publish_shards(
    store: Store,
    shards: Sequence[str],
    options: MetadataOptions,
    *,
    split: Mapping[str, Sequence[str]] | PartArguments | None,
    exclude: Sequence[str] = (),
    tmp_path: str | os.PathLike[str] | None = None,
) -> dict[str, int]:
    """Build the index from the records of shards, publish the dataset, and return its samples by shard.

    ``split`` has the shards of each split part, or is for :func:`split_of`. Raises DuplicateKeyError if two
    samples have the same key.
    """
    with temporary_folder(tmp_path) as folder, IndexBuilder(folder, checksums=True) as builder:
        for record in load_shards(store, shards):
            builder.add(record)
        if split is None or isinstance(split, PartArguments):
            split = split_of(split, builder.counts, options, store.url)
        publish_written(store, builder, options, split, exclude)
    return builder.counts


def finish_dataset(
    url_or_path: str | os.PathLike[str],
    *,
    split_ratio: Sequence[float] | Mapping[str, float] | None = None,
    split_patterns: Sequence[str] | None = None,
    dataset_yaml: Mapping[str, Any] | None = CRUDE,
    storage_options: Mapping[str, Any] | None = None,
    tmp_path: str | os.PathLike[str] | None = None,
) -> dict[str, int]:
    """Publish a dataset that several writers have written, when all of them are done.

    The index is made from the records that the writers left; no tar is read. A second call does nothing.

    Args:
        url_or_path: The folder or URL that the writers were given.
        split_ratio: Shares of the tars in train, val and test, or in split parts by name. Give it to the
            writers instead, and they deal samples. Without this and ``split_patterns``, all shards are in
            ``train``.
        split_patterns: ``NAME:PATTERN`` with a regular expression, glob or brace pattern.
        dataset_yaml: Content of ``dataset.yaml``, which says what samples are; None to write no such file.
            The default is the sample type of the writers, or crude samples.
        storage_options: Options of the URL's file system, such as credentials.
        tmp_path: Local folder for the index until it is uploaded; None for the system's.

    Returns:
        Number of samples by shard path.

    Raises:
        ConfigError: No writer was here, some part is not complete, or a split part with a share is empty.
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
    options = MetadataOptions(split_ratio, split_patterns, dataset_yaml)
    store = StoreSpec(os.fspath(url_or_path), storage_options).open()
    existing = {entry.path for entry in store.list(META_FOLDER)}
    records = ShardRecords(store, WRITING, existing)
    if existing & {INFO_JSON, INFO_YAML}:
        records.remove()
        return read_info(store)
    states = [load_part(store, path) for path in part_files(existing)]
    if not states:
        raise ConfigError("no writer has written here", where=store.url, hint="check the path")
    parts = states[0][0].parts
    if dataset_yaml is CRUDE and states[0][0].declared:
        options = replace(options, dataset_yaml=json.loads(states[0][0].declared))
    complete = {arguments.part for arguments, is_complete in states if is_complete}
    missing = [part for part in range(parts) if part not in complete]
    if missing:
        raise ConfigError(
            f"{len(missing)} of {parts} parts are not complete, the first is part {missing[0]}",
            where=store.url,
            hint="open its writer again; it goes on after its last complete shard",
        )
    return publish_shards(store, records.shards(), options, split=states[0][0], tmp_path=tmp_path)
