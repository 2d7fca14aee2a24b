"""``energon-stream info``: show what a dataset contains."""

from __future__ import annotations

import contextlib
from typing import Any

import click

from energon_stream.cli.options import (
    dataset_config_option,
    path_argument,
    split_config_option,
    storage_option,
)
from energon_stream.cli.terminal import echo
from energon_stream.errors import IndexMismatchError, NotPreparedError
from energon_stream.index.dataset import DatasetMetadata, dataset_kind, read_metadata
from energon_stream.index.jsonl import open_jsonl
from energon_stream.index.kept_index import PlainTars
from energon_stream.index.plain import find_tars, list_tars
from energon_stream.index.scan import peek_parts
from energon_stream.storage import ListEntry, StoreSpec


@click.command()
@path_argument
@storage_option
@split_config_option
@dataset_config_option
def info(path: str, storage_options: dict[str, Any] | None, split_config: str, dataset_config: str) -> None:
    """Show what a dataset contains.

    Prints shards, samples, split parts, parts and sample type of the dataset at PATH; the splits of a
    metadataset; and, for tars that are not prepared, how many of them this node has indexed.
    """
    kind = dataset_kind(path)
    spec = StoreSpec(path, storage_options)
    if kind == "metadataset":
        _show_metadataset(path, storage_options)
        return
    if kind == "jsonl":
        echo(f"{path}: {open_jsonl(spec).num_samples} samples")
        return
    if kind == "tars":
        _show_plain(*find_tars(spec))
        return
    try:
        metadata = read_metadata(spec, split_config=split_config, dataset_config=dataset_config)
    except NotPreparedError:
        tars = list_tars(spec)
        if tars is None:
            raise
        _show_plain(spec, tars)
        return
    counts = metadata.shard_counts
    echo(f"{metadata.url}: {sum(counts.values())} samples in {len(counts)} shards")
    echo(f"Sample type: {_sample_type(metadata)}")
    if counts:
        store = spec.open()
        first = next(iter(counts))
        parts = peek_parts(store, ListEntry(first, store.head(first)))
        echo(f"Parts of the first samples: {', '.join(parts)}")
    for name, shards in metadata.split.split_parts.items():
        samples = sum(counts.get(shard, 0) for shard in shards)
        echo(f"{name}: {samples} samples in {len(shards)} shards")
    if metadata.split.exclude:
        echo(f"Excluded: {len(metadata.split.exclude)} entries")


def _show_plain(root: StoreSpec, tars: list[ListEntry]) -> None:
    store = root.open()
    plain = PlainTars.of(root, store.url, tars)
    counts = []
    for tar in tars:
        with contextlib.suppress(IndexMismatchError):  # the next use builds it again
            if (count := plain.count(tar)) is not None:
                counts.append(count)
    echo(f"{store.url}: {len(tars)} tars of {sum(tar.meta.size for tar in tars) / 1e6:.1f} MB, not prepared")
    echo(f"Indexed on this node: {len(counts)} of them, {sum(counts)} samples, in {plain.folder}")
    echo(f"Parts of the first samples: {', '.join(peek_parts(store, tars[0]))}")


def _show_metadataset(path: str, storage_options: dict[str, Any] | None) -> None:
    from energon_stream.recipe.metadataset_files import MetadatasetFiles
    from energon_stream.recipe.tree import JoinRef

    files = MetadatasetFiles(storage_options)
    for split, root in files.document(path).splits.items():
        for item in files.items(root):
            leaves = [m.leaf for m in item.ref.members] if isinstance(item.ref, JoinRef) else [item.ref]
            names = " joined with ".join(f"{leaf.path} [{leaf.split_part}]" for leaf in leaves)
            share = f"{item.repetitions:g} times" if item.weight is None else f"{item.weight:.1%} of samples"
            echo(f"{split}: {share} from {names}")


def _sample_type(metadata: DatasetMetadata) -> str:
    document = metadata.dataset_yaml
    if document is None:
        return "none (no dataset.yaml)"
    sample_type = document.get("sample_type")
    return str((sample_type if isinstance(sample_type, dict) else document).get("__class__", "unknown"))
