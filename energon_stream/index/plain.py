"""Opening tars that nobody prepared: their indices are built on first use and kept on this node."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from energon_stream.errors import (
    AccessDeniedError,
    ConfigError,
    ObjectNotFoundError,
    UnsupportedStoreError,
)
from energon_stream.index.dataset import WebDatasetIndex
from energon_stream.index.kept_index import KeptIndices, PlainTars
from energon_stream.index.metadata import META_FOLDER
from energon_stream.index.plain_build import sample_counts
from energon_stream.index.shard_names import is_compressed, parse_tar_paths
from energon_stream.storage import ListEntry, ObjectMeta, Store, StoreSpec, shared_fetcher, strip_credentials

__all__ = ["PLAIN_PARTS", "find_tars", "list_tars", "open_plain"]

_log = logging.getLogger(__name__)

PLAIN_PARTS = ("train", "val", "test")
"""Names for all of a dataset that has no split."""

_MAX_HEADS = 48
"""Named tars that are asked for one by one; of more, a listing of their folder tells with fewer requests."""


def open_plain(root: StoreSpec, tars: Sequence[ListEntry], *, split_part: str) -> WebDatasetIndex:
    """Open tars that were found by :func:`find_tars` or :func:`list_tars`.

    Args:
        root: Their common folder.
        tars: The tars.
        split_part: One of :data:`PLAIN_PARTS`; each is all of the tars.

    Raises:
        ConfigError: Another split part.
        EnergonStreamError: What :func:`sample_counts` raises.
    """
    if split_part not in PLAIN_PARTS:
        raise ConfigError(
            f"there is no split part {split_part!r}, because the dataset is not prepared",
            where=strip_credentials(root.url),
            hint="Use train, val or test, which are all of it, and subset= for a share; or prepare it.",
        )
    store = root.open()
    if any(tar.meta.etag is None for tar in tars):
        _log.warning("%s tells no versions: indices are used as long as sizes are the same", store.url)
    plain = PlainTars(tuple(tars), KeptIndices.of(root, store.url))
    plain.tell_versions(store)
    counts = np.array(sample_counts(store, tars, plain.indices), dtype=np.int64)
    return WebDatasetIndex(root, split_part, tuple(tar.path for tar in tars), counts, plain=plain)


def find_tars(spec: StoreSpec) -> tuple[StoreSpec, list[ListEntry]]:
    """Tars that a path names, as they are now.

    Returns:
        Their common folder, and the tars in the order of the braces.

    Raises:
        ConfigError: The path is wrong; see :func:`parse_tar_paths`.
        ObjectNotFoundError: Some of them do not exist.
    """
    named = parse_tar_paths(spec.url)
    root = replace(spec, url=named.root)
    store = root.open()
    found = _metas(store, named.paths)
    missing = [path for path in named.paths if path not in found]
    if missing:
        raise ObjectNotFoundError(
            f"{len(missing)} of {len(named.paths)} tars do not exist, the first is {missing[0]!r}",
            where=store.url,
            hint="Check bucket, folder and braces.",
        )
    return root, [ListEntry(path, found[path]) for path in named.paths]


def _metas(store: Store, paths: Sequence[str]) -> dict[str, ObjectMeta]:
    """Versions and sizes of those that exist."""
    found = {}
    if len(paths) > _MAX_HEADS and not store.is_local:
        # One may be allowed to read, and not to list; of web servers, folders cannot be listed.
        with contextlib.suppress(AccessDeniedError, UnsupportedStoreError):
            found = {entry.path: entry.meta for entry in store.list()}
    fetcher = shared_fetcher()
    asked = {
        path: fetcher.call(functools.partial(store.head, path), inline=store.is_local)
        for path in paths
        if path not in found
    }
    for path, meta in asked.items():
        try:
            found[path] = meta.result()
        except ObjectNotFoundError:
            continue
    return found


def list_tars(spec: StoreSpec) -> list[ListEntry] | None:
    """All tars below a folder, sorted by path; None if the folder has metadata.

    Raises:
        ObjectNotFoundError: There are none.
        ConfigError: They are compressed.
    """
    store = spec.open()
    entries = list(store.list())
    if any(entry.path.startswith(f"{META_FOLDER}/") for entry in entries):
        return None
    tars = [entry for entry in entries if entry.path.endswith(".tar")]
    compressed = [entry.path for entry in entries if is_compressed(entry.path)]
    if compressed and not tars:
        raise ConfigError(
            f"the tars are compressed, so that no part of them can be read alone; the first is {compressed[0]!r}",
            where=store.url,
            hint="Decompress them; images and the like hardly become larger.",
        )
    if not tars:
        raise ObjectNotFoundError("there are no tars", where=store.url, hint="Check the path.")
    if compressed:
        _log.warning("%s: %d compressed tars are left out", store.url, len(compressed))
    return tars
