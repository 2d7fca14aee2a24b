"""``energon-stream info``: show what a dataset contains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from energon_stream.cli.options import dataset_arguments, dataset_config_option, split_config_option
from energon_stream.cli.terminal import echo, emit
from energon_stream.printable import counted

if TYPE_CHECKING:
    from energon_stream.index.dataset import DatasetMetadata
    from energon_stream.storage import ListEntry, StoreSpec


@click.command()
@dataset_arguments
@split_config_option
@dataset_config_option
def info(path: str, storage_options: dict[str, Any] | None, split_config: str, dataset_config: str) -> None:
    """Show what a dataset contains.

    Prints shards, samples, split parts, parts and sample type of the dataset at PATH; the splits of a
    metadataset; and, for tars that are not prepared, how many of them this node has indexed.
    """
    from energon_stream.index.dataset import dataset_kind
    from energon_stream.index.file_format import find_format
    from energon_stream.index.files_index import open_file
    from energon_stream.index.plain import read_metadata_or_tars
    from energon_stream.storage import StoreSpec

    kind = dataset_kind(path)
    spec = StoreSpec(path, storage_options)
    if kind == "metadataset":
        splits = _of_metadataset(path, storage_options)
        emit({"kind": kind, "url": path, "splits": splits}, lambda: _show_metadataset(splits))
        return
    if (format := find_format(path)) is not None:
        samples = open_file(spec, format).num_samples
        document = {"kind": kind, "url": path, "samples": samples}
        emit(document, lambda: echo(f"{path}: {counted(samples, 'sample')}"))
        return
    metadata = read_metadata_or_tars(spec, split_config=split_config, dataset_config=dataset_config)
    if isinstance(metadata, tuple):
        found = _of_plain(*metadata)
        emit(found, lambda: _show_plain(found))
    else:
        found = _of_prepared(metadata, spec)
        emit(found, lambda: _show_prepared(found))


def _of_prepared(metadata: DatasetMetadata, spec: StoreSpec) -> dict[str, Any]:
    from energon_stream.index.shard_names import names_tars
    from energon_stream.prepare.publish import read_skipped
    from energon_stream.storage import ListEntry
    from energon_stream.tar.scan import peek_parts

    counts, store = metadata.shard_counts, spec.open()
    first = next(iter(counts), None)
    return {
        "kind": "webdataset",
        "url": metadata.url,
        "samples": sum(counts.values()),
        "shards": len(counts),
        "sample_type": _sample_type(metadata),
        "parts": []
        if first is None or not names_tars(first)
        else list(peek_parts(store, ListEntry(first, store.head(first)))),
        "split_parts": {
            name: {"samples": sum(counts.get(shard, 0) for shard in shards), "shards": len(shards)}
            for name, shards in metadata.split.split_parts.items()
        },
        "excluded": len(metadata.split.exclude),
        "skipped": dict(read_skipped(store)),
    }


def _show_prepared(found: dict[str, Any]) -> None:
    echo(f"{found['url']}: {counted(found['samples'], 'sample')} in {counted(found['shards'], 'shard')}")
    echo(f"Sample type: {found['sample_type'] or 'none (no dataset.yaml)'}")
    if found["parts"]:
        echo(f"Parts of the first samples: {', '.join(found['parts'])}")
    for name, part in found["split_parts"].items():
        echo(f"{name}: {counted(part['samples'], 'sample')} in {counted(part['shards'], 'shard')}")
    if found["excluded"]:
        echo(f"Excluded: {found['excluded']:,} {'entry' if found['excluded'] == 1 else 'entries'}")
    for shard, problem in found["skipped"].items():
        echo(f"Skipped {shard}: {problem}")


def _of_plain(root: StoreSpec, tars: list[ListEntry]) -> dict[str, Any]:
    from energon_stream.index.kept_index import PlainTars
    from energon_stream.tar.scan import peek_parts

    store = root.open()
    plain = PlainTars.of(root, store.url, tars)
    counts = [count for tar in tars if (count := plain.count(tar)) is not None]
    return {
        "kind": "tars",
        "url": store.url,
        "tars": len(tars),
        "bytes": sum(tar.meta.size for tar in tars),
        "indexed_tars": len(counts),
        "indexed_samples": sum(counts),
        "index_folder": str(plain.folder),
        "parts": list(peek_parts(store, tars[0])),
    }


def _show_plain(found: dict[str, Any]) -> None:
    echo(f"{found['url']}: {counted(found['tars'], 'tar')} of {found['bytes'] / 1e6:.1f} MB, not prepared")
    of = f"{found['indexed_tars']} of them, {counted(found['indexed_samples'], 'sample')}"
    echo(f"Indexed on this node: {of}, in {found['index_folder']}")
    echo(f"Parts of the first samples: {', '.join(found['parts'])}")


def _of_metadataset(path: str, storage_options: dict[str, Any] | None) -> dict[str, list[dict[str, Any]]]:
    from energon_stream.config.metadataset_files import MetadatasetFiles

    files = MetadatasetFiles(storage_options)
    splits: dict[str, list[dict[str, Any]]] = {}
    for split, root in files.document(path).splits.items():
        items = splits[split] = []
        for item in files.items(root):
            names = [f"{leaf.path} [{leaf.split_part}]" for leaf in item.ref.leaves]
            items.append({"datasets": names, "weight": item.weight, "repetitions": item.repetitions})
    return splits


def _show_metadataset(splits: dict[str, list[dict[str, Any]]]) -> None:
    for split, items in splits.items():
        for item in items:
            weight = item["weight"]
            share = f"{item['repetitions']:g} times" if weight is None else f"{weight:.1%} of samples"
            echo(f"{split}: {share} from {' joined with '.join(item['datasets'])}")


def _sample_type(metadata: DatasetMetadata) -> str | None:
    document = metadata.dataset_yaml
    if document is None:
        return None
    sample_type = document.get("sample_type")
    return str((sample_type if isinstance(sample_type, dict) else document).get("__class__", "unknown"))
