"""Findings about the datasets that a metadataset names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from energon_stream.config.metadataset_files import MetadatasetFiles
from energon_stream.config.opening import open_all
from energon_stream.errors import EnergonStreamError
from energon_stream.index.dataset import WebDatasetIndex
from energon_stream.printable import strip_credentials
from energon_stream.storage import server_of
from energon_stream.tools.doctor.findings import Finding
from energon_stream.tools.doctor.server_findings import check_server

if TYPE_CHECKING:
    from energon_stream.config.references import LeafRef
    from energon_stream.index.dataset import DatasetIndex
    from energon_stream.storage import StoreSpec

_AT_ONCE = 8


def datasets_of(spec: StoreSpec) -> list[tuple[LeafRef, list[str]]]:
    """Return the datasets of a metadataset, each once, with the names of the splits that use it.

    Raises what :meth:`MetadatasetFiles.document` and :meth:`MetadatasetFiles.items` raise.
    """
    files = MetadatasetFiles(spec.storage_options, spec.transport)
    found: dict[tuple[str, str, str], tuple[LeafRef, list[str]]] = {}
    for split, root in files.document(spec.url).splits.items():
        for item in files.items(root):
            for leaf in item.ref.leaves:
                key = leaf.spec.url, leaf.split_part, leaf.split_config
                splits = found.setdefault(key, (leaf, []))[1]
                if split not in splits:
                    splits.append(split)
    return list(found.values())


def look_at_all(
    datasets: Sequence[tuple[LeafRef, list[str]]],
) -> Iterator[tuple[Finding, DatasetIndex | None]]:
    """Open datasets as training does; yield a finding about each, and the dataset if it could be opened."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        yield from pool.map(_look_at, datasets)


def check_servers(spec: StoreSpec, datasets: Sequence[tuple[LeafRef, list[str]]]) -> Iterator[Finding]:
    """Yield findings about the servers of datasets, without that of the metadataset."""
    seen = {_server(spec)}
    for leaf, _ in datasets:
        if _server(leaf.spec) not in seen:
            seen.add(_server(leaf.spec))
            yield from check_server(leaf.spec.url, leaf.spec.storage_options or {})


def _server(spec: StoreSpec) -> object:
    try:
        return server_of(spec.url, spec.storage_options or {})
    except EnergonStreamError:
        return None


def _look_at(dataset: tuple[LeafRef, list[str]]) -> tuple[Finding, DatasetIndex | None]:
    leaf, splits = dataset
    name = f"{strip_credentials(leaf.path)} [{leaf.split_part}] of {', '.join(splits)}"
    try:
        (index,) = open_all([leaf])
    except EnergonStreamError as error:
        return Finding("dataset", "error", f"{name}: {error.what}", error.hint or ""), None
    shards = f" in {len(index.shard_paths):,} shards" if isinstance(index, WebDatasetIndex) else ""
    return Finding("dataset", "ok", f"{name}: {index.num_samples:,} samples{shards}"), index
