"""``energon-stream lint``: whether tars, indices and metadata of a dataset agree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
import numpy as np

from energon_stream.cli.options import path_argument, storage_option
from energon_stream.errors import DatasetError, IndexMismatchError
from energon_stream.index.dataset import read_metadata
from energon_stream.index.prepare import find_shards
from energon_stream.index.scan import scan_shard
from energon_stream.index.tar_index import index_path, read_offsets
from energon_stream.storage import ListEntry, Store, StoreSpec

__all__ = ["lint"]


@click.command()
@path_argument
@storage_option
def lint(path: str, storage_options: dict[str, Any] | None) -> None:
    """Check tars against their indices.

    Walks all tars of the dataset at PATH; the exit status is 1 if any of them is wrong.
    """
    spec = StoreSpec(path, storage_options)
    counts = read_metadata(spec).shard_counts
    store = spec.open()
    listed = {entry.path: entry for entry in find_shards(store)}
    errors = 0
    for shard, count in counts.items():
        try:
            _check_shard(store, listed, shard, count)
        except DatasetError as error:
            errors += 1
            click.echo(f"{error}", err=True)
    click.echo(f"{sum(counts.values())} samples in {len(counts)} shards, {errors} shards with errors")
    if errors:
        raise click.exceptions.Exit(1)


def _check_shard(store: Store, listed: Mapping[str, ListEntry], shard: str, count: int) -> None:
    if shard not in listed:
        raise IndexMismatchError(".info.json names a shard that does not exist", where=f"{store.url}/{shard}")
    scan = scan_shard(store, listed[shard])
    if len(scan.keys) != count:
        raise IndexMismatchError(
            f"the tar has {len(scan.keys)} samples, .info.json says {count}", where=f"{store.url}/{shard}"
        )
    offsets = read_offsets(store, shard, count, 0, count).offsets
    different = np.flatnonzero(offsets[1:] != np.array(scan.offsets[1:], dtype=np.int64))
    if len(different):
        raise IndexMismatchError(
            f"entry {int(different[0]) + 1} of the index is not where the tar's sample lies",
            where=f"{store.url}/{index_path(shard)}",
        )
