"""Publishes a dataset that was written: builds the index from the records of its shards."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from energon_stream.errors import ConfigError, EmptyDatasetError
from energon_stream.index.checksums import CHECKSUMS, encode_checksums
from energon_stream.index.in_order import ordered_map
from energon_stream.index.metadata import (
    DATASET_CONFIG,
    INFO_JSON,
    INFO_YAML,
    META_FOLDER,
    SPLIT_CONFIG,
    encode_info,
    encode_split,
    read_info,
)
from energon_stream.index.sample_sizes import SampleSizes
from energon_stream.index.shard_names import split_by_patterns, split_by_ratio
from energon_stream.index.sqlite_index import INDEX_SQLITE, SqliteWriter, temporary_folder
from energon_stream.index.yaml_io import dump_yaml
from energon_stream.storage import StoreSpec, local_path
from energon_stream.write.journal import WRITING, load_part, load_shard, part_files, record_files

if TYPE_CHECKING:
    from energon_stream.storage import Store
    from energon_stream.write.journal import ShardRecord

CRUDE: Mapping[str, Any] = {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}
"""Content of ``dataset.yaml`` for samples that are used as they are."""

_READERS = 16


class IndexBuilder:
    """Collects the shards of a dataset, in order, in a database in a local folder.

    Use it as a context; leaving it drops what was not published.
    """

    def __init__(self, folder: str) -> None:
        self.counts: dict[str, int] = {}
        self._paths: list[str] = []
        self._database = str(Path(folder) / "index.sqlite")
        self._writer = SqliteWriter(self._database, self._paths)
        self._sizes = SampleSizes()
        self._digests: list[Sequence[int]] = []
        self._is_open = True

    def add(self, record: ShardRecord) -> None:
        """Add the next shard. Raises DuplicateKeyError if two samples share a key."""
        scan = record.scan
        self._paths.append(scan.path)
        self._writer.add(len(self._paths) - 1, scan)
        self._sizes.add(scan.offsets)
        self._digests.append(record.digests)
        self.counts[scan.path] = len(scan.keys)

    def publish(
        self, store: Store, *, split: Mapping[str, Sequence[str]], dataset_yaml: Mapping[str, Any] | None
    ) -> None:
        """Write the metadata of the dataset, ``.info.json`` last, and remove the records of the shards."""
        self._is_open = False
        self._writer.__exit__(None)
        info = encode_info(self.counts)
        documents = {SPLIT_CONFIG: encode_split(split), "index.uuid": str(uuid.uuid4()).encode()}
        if dataset_yaml is not None:
            documents[DATASET_CONFIG] = dump_yaml(dict(dataset_yaml))
        for name, content in documents.items():
            store.put(f"{META_FOLDER}/{name}", content)
        store.put(CHECKSUMS, encode_checksums(self._digests, info))
        with open(self._database, "ab") as file:
            file.write(self._sizes.encode(info) or b"")
        store.put_file(INDEX_SQLITE, self._database)
        store.put(INFO_JSON, info)
        remove_records(store)

    def __enter__(self) -> IndexBuilder:
        return self

    def __exit__(self, *error: object) -> None:
        if self._is_open:
            self._is_open = False
            self._writer.__exit__(KeyboardInterrupt)  # any error: the database is closed and not completed


def finish_dataset(
    url_or_path: str,
    *,
    split_ratio: Sequence[float] | Mapping[str, float] | None = None,
    split_patterns: Sequence[str] | None = None,
    dataset_yaml: Mapping[str, Any] | None = CRUDE,
    storage_options: Mapping[str, Any] | None = None,
    tmp_path: str | os.PathLike[str] | None = None,
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
        builder = stack.enter_context(IndexBuilder(folder))
        for record in ordered_map(partial(load_shard, store), record_files(existing), _READERS):
            builder.add(record)
        split = find_split(store, builder.counts, split_ratio, split_patterns)
        builder.publish(store, split=split, dataset_yaml=dataset_yaml)
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
        with suppress(OSError):  # it is not there, or another writer has just begun
            os.rmdir(os.path.join(local_path(store.url), WRITING))


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
