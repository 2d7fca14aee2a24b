"""``energon-stream lint``: check that tars, indices and metadata agree, and that the samples can be made."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from energon_stream.cli.options import (
    dataset_config_option,
    find_split_parts,
    path_argument,
    progress_option,
    split_config_option,
    split_parts_option,
    storage_option,
)
from energon_stream.cli.terminal import echo, echo_text
from energon_stream.conventions import conventions
from energon_stream.errors import ConfigError, DatasetError, FatalSampleError, IndexMismatchError
from energon_stream.index.checksums import checksum_error, digest_samples, read_checksums
from energon_stream.index.dataset import DatasetMetadata, dataset_kind, read_metadata
from energon_stream.index.in_order import ordered_map
from energon_stream.index.index_files import index_path, read_offsets
from energon_stream.index.metadata import DATASET_CONFIG
from energon_stream.index.prepare import find_shards
from energon_stream.index.scan import scan_shard
from energon_stream.progress import Progress
from energon_stream.storage import ListEntry, Store, StoreSpec

if TYPE_CHECKING:
    from energon_stream.arrays import UInt64Array
    from energon_stream.recipe.options import SharedOptions


@click.command()
@path_argument
@storage_option
@progress_option
@split_parts_option
@dataset_config_option
@split_config_option
@click.option(
    "--parallel",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of tars that are read at once, and of processes that make samples.",
)
@click.option("--decode/--no-decode", default=True, show_default=True, help="Also make all samples.")
def lint(
    path: str,
    storage_options: dict[str, Any] | None,
    progress: bool | None,
    split_parts: str | None,
    dataset_config: str,
    split_config: str,
    parallel: int,
    decode: bool,
) -> None:
    """Check tars against their indices, and make the samples of all split parts.

    PATH is a dataset or a metadataset; the tars of a metadataset are not checked. The exit status is 1 if
    anything is wrong.
    """
    if conventions() == "energon":
        click.echo("Checking the index files...")
    metadata, errors = None, 0
    if dataset_kind(path) == "webdataset":
        spec = StoreSpec(path, storage_options)
        metadata = read_metadata(spec, split_config=split_config, dataset_config=dataset_config)
        if metadata.dataset_yaml is None and dataset_config != DATASET_CONFIG:
            raise ConfigError(f"the dataset has no {dataset_config}", where=metadata.url)
        errors = _check_shards(spec, metadata, parallel, progress)
        decode = decode and metadata.dataset_yaml is not None
    if decode and not errors:
        options: SharedOptions = {
            "storage_options": storage_options,
            "split_config": split_config,
            "dataset_config": dataset_config,
        }
        splits = find_split_parts(path, split_parts, storage_options, metadata)
        errors = sum(_check_samples(path, split, options, parallel, progress) for split in splits)
    if errors:
        raise click.exceptions.Exit(1)


def _check_shards(spec: StoreSpec, metadata: DatasetMetadata, parallel: int, progress: bool | None) -> int:
    """Walk all tars, and return the number of damaged ones."""
    counts = metadata.shard_counts
    store = spec.open()
    listed = {entry.path: entry for entry in find_shards(store)}
    checksums = read_checksums(store, sum(counts.values()), metadata.info_digest)
    errors = 0
    with Progress(len(counts), unit="tar", enabled=progress) as shown:
        check = partial(_shard_error, store, listed, counts)
        for error in ordered_map(lambda item: check(*item), _checksums_of(counts, checksums), parallel):
            if error is not None:
                errors += 1
                echo_text(error, err=True)
            shown.advance()
    verified = "" if checksums is None else ", all samples compared with their checksums"
    click.echo(
        f"{sum(counts.values())} samples in {len(counts)} shards, {errors} shards with errors{verified}"
    )
    return errors


@dataclass(frozen=True, slots=True)
class _Failures:
    """Handler of samples that fail, in any process. It shows errors, and counts them as bytes of a file."""

    path: str

    def __call__(self, error: Exception, sample: Any, sources: Any = None) -> None:
        with open(self.path, "ab") as file:
            file.write(b".")
        echo_text(error, err=True)

    def count(self) -> int:
        """Return the number of failures in all processes."""
        return os.path.getsize(self.path)


def _check_samples(
    path: str, split: str, options: SharedOptions, parallel: int, progress: bool | None
) -> int:
    """Make the samples of a split, and return the number of failures. Too many in a row end the check."""
    from energon_stream.loader import get_loader
    from energon_stream.recipe import get_val_dataset
    from energon_stream.worker import WorkerConfig

    samples = 0
    with tempfile.NamedTemporaryFile(prefix="energon-lint-") as counted:
        note = _Failures(counted.name)
        config = WorkerConfig(0, 1, parallel if parallel > 1 else 0, global_error_handler=note)
        try:
            dataset = get_val_dataset(
                path, batch_size=None, split_part=split, worker_config=config, **options
            )
            with Progress(unit="sample", enabled=progress) as shown:
                for _ in dataset if parallel == 1 else get_loader(dataset):
                    samples += 1
                    shown.advance()
        except (DatasetError, FatalSampleError) as error:
            note(error, None)
        errors = note.count()
    echo(f"{split}: {samples} samples made, {errors} errors")
    return errors


def _checksums_of(
    counts: Mapping[str, int], checksums: UInt64Array | None
) -> Iterator[tuple[str, list[int] | None]]:
    """Yield each shard with the checksums of its samples; None if there are none."""
    first = 0
    for shard, count in counts.items():
        yield shard, None if checksums is None else checksums[first : first + count].tolist()
        first += count


def _shard_error(
    store: Store,
    listed: Mapping[str, ListEntry],
    counts: Mapping[str, int],
    shard: str,
    checksums: list[int] | None,
) -> DatasetError | None:
    """Return what is wrong with a tar or its index; None if nothing is."""
    try:
        _check_shard(store, listed, shard, counts[shard], checksums)
    except DatasetError as error:
        return error
    return None


def _check_shard(
    store: Store, listed: Mapping[str, ListEntry], shard: str, count: int, checksums: list[int] | None
) -> None:
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
    if checksums is not None:
        found = digest_samples(store, listed[shard], scan.offsets)
        wrong = [
            number for number, pair in enumerate(zip(found, checksums, strict=True)) if len(set(pair)) > 1
        ]
        if wrong:
            raise checksum_error(f"{store.url}/{shard}", wrong[0])
