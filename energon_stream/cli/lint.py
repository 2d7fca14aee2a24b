"""``energon-stream lint``: check that tars, indices and metadata agree, and that the samples can be made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
import numpy as np

from energon_stream.cli.options import path_argument, progress_option, storage_option
from energon_stream.errors import DatasetError, FatalSampleError, IndexMismatchError
from energon_stream.index.dataset import DatasetMetadata, dataset_kind, read_metadata
from energon_stream.index.index_files import index_path, read_offsets
from energon_stream.index.prepare import find_shards
from energon_stream.index.scan import scan_shard
from energon_stream.progress import Progress
from energon_stream.storage import ListEntry, Store, StoreSpec


@click.command()
@path_argument
@storage_option
@progress_option
@click.option("--decode/--no-decode", default=True, show_default=True, help="Also make all samples.")
def lint(path: str, storage_options: dict[str, Any] | None, progress: bool | None, decode: bool) -> None:
    """Check tars against their indices, and make the samples of all split parts.

    PATH is a dataset or a metadataset; the tars of a metadataset are not checked. The exit status is 1 if
    anything is wrong.
    """
    kind = dataset_kind(path)
    errors = 0
    splits = ["train"]
    if kind == "webdataset":
        spec = StoreSpec(path, storage_options)
        metadata = read_metadata(spec)
        errors = _check_shards(spec, metadata, progress)
        splits = [name for name, shards in metadata.split.split_parts.items() if shards]
        decode = decode and metadata.dataset_yaml is not None
    elif kind == "metadataset":
        from energon_stream.recipe.metadataset_files import MetadatasetFiles

        splits = list(MetadatasetFiles(storage_options).document(path).splits)
    if decode and not errors:
        errors = sum(_check_samples(path, split, storage_options, progress) for split in splits)
    if errors:
        raise click.exceptions.Exit(1)


def _check_shards(spec: StoreSpec, metadata: DatasetMetadata, progress: bool | None) -> int:
    """Walk all tars, and return the number of damaged ones."""
    counts = metadata.shard_counts
    store = spec.open()
    listed = {entry.path: entry for entry in find_shards(store)}
    errors = 0
    with Progress(len(counts), unit="tar", enabled=progress) as shown:
        for shard, count in counts.items():
            try:
                _check_shard(store, listed, shard, count)
            except DatasetError as error:
                errors += 1
                click.echo(f"{error}", err=True)
            shown.advance()
    click.echo(f"{sum(counts.values())} samples in {len(counts)} shards, {errors} shards with errors")
    return errors


def _check_samples(
    path: str, split: str, storage_options: dict[str, Any] | None, progress: bool | None
) -> int:
    """Make the samples of a split, and return the number of failures. Too many in a row end the check."""
    from energon_stream.recipe import get_val_dataset
    from energon_stream.worker import WorkerConfig

    errors = samples = 0

    def note(error: Exception, sample: Any, sources: Any = None) -> None:
        nonlocal errors
        errors += 1
        click.echo(f"{error}", err=True)

    config = WorkerConfig(0, 1, 0, global_error_handler=note)
    try:
        dataset = get_val_dataset(
            path, batch_size=None, split_part=split, worker_config=config, storage_options=storage_options
        )
        with Progress(unit="sample", enabled=progress) as shown:
            for _ in dataset:
                samples += 1
                shown.advance()
    except (DatasetError, FatalSampleError) as error:
        errors += 1
        click.echo(f"{error}", err=True)
    click.echo(f"{split}: {samples} samples made, {errors} errors")
    return errors


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
            f"entry {int(different[0]) + 1} of the index is not where a sample of the tar begins",
            where=f"{store.url}/{index_path(shard)}",
        )
