"""Prepares metadatasets: builds the indices of their joins."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from energon_stream.config.metadataset_files import MetadatasetFiles
from energon_stream.config.opening import join_members, open_all
from energon_stream.config.references import JoinRef, MetadatasetRef, references
from energon_stream.errors import LimitError
from energon_stream.index.join_index import JoinReport, build_join_index
from energon_stream.limits import Limits
from energon_stream.storage import StoreSpec, Transport, run_isolated


def prepare_metadataset(
    path: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    transport: Transport = "auto",
    limits: Limits | None = None,
    allow_urls: Sequence[str] | None = None,
) -> list[JoinReport]:
    """Build the join indices of a metadataset and of the metadatasets that it names. Only joins need this.

    The indices are written to ``<metadataset file>.cache/``. Indices there that no join of the file uses any
    more are removed.

    Args:
        path: The metadataset file; a local path or any fsspec URL.
        storage_options: See :func:`load_dataset`, also for the next three.
        transport: Client for remote data.
        limits: Bounds on what the datasets may cost.
        allow_urls: Prefixes of URLs that a metadataset in a store may name.

    Returns:
        One report for each join.

    Raises:
        DatasetError: A sample has no partner in a dataset with ``nonmatch: error``.
        EnergonStreamError: A metadataset or dataset cannot be read.

    Example:
        >>> from energon_stream import prepare_metadataset
        >>> prepare_metadataset("mix.yaml")
        []
    """
    bounds = limits or Limits.from_environment()
    files = MetadatasetFiles(storage_options, transport, limits=bounds, allow_urls=allow_urls)
    return run_isolated(_prepare, os.fspath(path), files)


def _prepare(path: str, files: MetadatasetFiles) -> list[JoinReport]:
    reports: list[JoinReport] = []
    paths, seen = [path], {path}
    while paths:
        url = paths.pop(0)
        joins: list[JoinRef] = []
        for split in files.document(url).splits.values():
            for ref in references(split):
                if isinstance(ref, JoinRef):
                    joins.append(ref)
                elif isinstance(ref, MetadatasetRef) and ref.spec.url not in seen:
                    seen.add(ref.spec.url)
                    paths.append(ref.spec.url)
                    if len(seen) > files.limits.references:
                        problem = f"the metadatasets name {len(seen):,} others or more"
                        raise LimitError(**files.limits.exceeded("references", problem), where=path)
        if joins:
            reports += _build(files.spec(url), joins, files.limits)
    return reports


def _build(file: StoreSpec, joins: list[JoinRef], limits: Limits) -> list[JoinReport]:
    indices = iter(open_all([member.leaf for join in joins for member in join.members], limits))
    # All members are opened before the first index is written.
    members = [join_members(join, [next(indices) for _ in join.members]) for join in joins]
    reports = [build_join_index(file, entries) for entries in members]
    used = {report.url.rpartition("/")[2] for report in reports}
    store = replace(file, url=f"{file.url}.cache").open()
    for entry in list(store.list()):
        if entry.path.startswith("join_index_") and entry.path not in used:
            store.delete(entry.path)
    return reports
