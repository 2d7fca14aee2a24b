"""``energon-stream info``: what a prepared dataset holds."""

from __future__ import annotations

from typing import Any

import click

from energon_stream.cli.options import path_argument, storage_option
from energon_stream.index.dataset import DatasetMetadata, read_metadata
from energon_stream.index.metadata import DATASET_CONFIG, SPLIT_CONFIG
from energon_stream.index.scan import peek_parts
from energon_stream.storage import ListEntry, StoreSpec

__all__ = ["info"]


@click.command()
@path_argument
@storage_option
@click.option("--split-config", default=SPLIT_CONFIG, show_default=True)
@click.option("--dataset-config", default=DATASET_CONFIG, show_default=True)
def info(path: str, storage_options: dict[str, Any] | None, split_config: str, dataset_config: str) -> None:
    """Show what a dataset holds.

    Shards, samples, split parts, parts and sample type of the dataset at PATH.
    """
    spec = StoreSpec(path, storage_options)
    metadata = read_metadata(spec, split_config=split_config, dataset_config=dataset_config)
    counts = metadata.shard_counts
    click.echo(f"{metadata.url}: {sum(counts.values())} samples in {len(counts)} shards")
    click.echo(f"Sample type: {_sample_type(metadata)}")
    if counts:
        store = spec.open()
        first = next(iter(counts))
        parts = peek_parts(store, ListEntry(first, store.head(first)))
        click.echo(f"Parts of the first samples: {', '.join(parts)}")
    for name, shards in metadata.split.parts.items():
        samples = sum(counts.get(shard, 0) for shard in shards)
        click.echo(f"{name}: {samples} samples in {len(shards)} shards")
    if metadata.split.exclude:
        click.echo(f"Excluded: {len(metadata.split.exclude)} entries")


def _sample_type(metadata: DatasetMetadata) -> str:
    document = metadata.dataset_yaml
    if document is None:
        return "none (no dataset.yaml)"
    sample_type = document.get("sample_type")
    return str((sample_type if isinstance(sample_type, dict) else document).get("__class__", "unknown"))
