"""Finds the tars of a folder or path, and opens unprepared ones."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from energon_stream.errors import (
    AccessDeniedError,
    ConfigError,
    NotPreparedError,
    ObjectNotFoundError,
    UnsupportedStoreError,
)
from energon_stream.index.dataset import (
    DatasetMetadata,
    WebDatasetIndex,
    ask_all,
    dataset_kind,
    read_metadata,
)
from energon_stream.index.info_files import META_FOLDER, STAGING
from energon_stream.index.kept_index import PlainTars, sample_counts
from energon_stream.index.shard_names import (
    SPLIT_PARTS,
    check_tars,
    match_names,
    only_tars,
    parse_tar_paths,
    path_hint,
)
from energon_stream.limits import Limits
from energon_stream.printable import strip_credentials
from energon_stream.storage import ListEntry, ObjectMeta, Store, StoreSpec

_log = logging.getLogger(__name__)

_MAX_HEADS = 48  # for more tars, listing their folder takes fewer requests than one HEAD for each


def open_plain(
    root: StoreSpec,
    tars: Sequence[ListEntry],
    *,
    split_part: str,
    skip_bad: bool = False,
    patience: float = 60.0,
    log_seconds: float = 10.0,
) -> WebDatasetIndex:
    """Open tars that :func:`find_tars` or :func:`list_tars` returned. Each split part is all tars.

    ``patience`` is the number of seconds, beyond the time to read a tar at 10 MB/s, to wait for another
    process that indexes the tar. ``log_seconds`` is the shortest time between messages about progress.
    Logs what is odd about the tars; ``skip_bad`` leaves out tars that are damaged.
    """
    if split_part not in SPLIT_PARTS:
        raise ConfigError(
            f"there is no split part {split_part!r:.80}, because the dataset is not prepared",
            where=strip_credentials(root.url),
            hint="use train, val or test, which are all tars, and subset= for a share; or prepare the dataset",
        )
    store = root.open()
    if any(tar.meta.etag is None for tar in tars):
        message = "%s reports no versions: an index is used as long as the tar has the same size"
        _log.warning(message, store.url)
    plain = PlainTars.of(root, store.url, tars)
    plain.tell_versions(store)
    counts = sample_counts(store, plain, patience, log_seconds, skip_bad)
    paths = tuple(tar.path for tar in tars)
    marks = np.array([plain.mark(*each) for each in zip(tars, counts, strict=True)], dtype=np.uint32)
    return WebDatasetIndex(
        root, split_part, paths, np.array(counts, dtype=np.int64), plain=plain, marks=marks
    )


def read_tar_metadata(spec: StoreSpec) -> DatasetMetadata:
    """Do what :func:`read_metadata` does. Raises ConfigError if the shards are no tars, too."""
    check_tars(spec.url)
    found = read_metadata(spec)
    check_tars(spec.url, found.shard_counts)
    return found


def read_metadata_or_tars(
    spec: StoreSpec, *, split_config: str, dataset_config: str
) -> DatasetMetadata | tuple[StoreSpec, list[ListEntry]]:
    """Return the metadata of a prepared folder, or the folder and tars of a path of tars or other folder."""
    if dataset_kind(spec.url) == "tars":
        return find_tars(spec)
    try:
        return read_metadata(spec, split_config=split_config, dataset_config=dataset_config)
    except NotPreparedError:
        tars = list_tars(spec)
        if tars is None:
            raise
        return spec, tars


def find_tars(spec: StoreSpec, limits: Limits | None = None) -> tuple[StoreSpec, list[ListEntry]]:
    """Return the common folder of the tars that a path names, and the tars in the order of the braces.

    Raises ConfigError if the path is wrong, and ObjectNotFoundError if some of the tars do not exist.
    """
    folder, paths = parse_tar_paths(spec.url, limits)
    root = replace(spec, url=folder)
    store = root.open()
    found: dict[str, ObjectMeta] = {}
    if len(paths) > _MAX_HEADS and not store.is_local:
        # Credentials may allow reading only, and folders of web servers cannot be listed.
        with contextlib.suppress(AccessDeniedError, UnsupportedStoreError):
            found = {entry.path: entry.meta for entry in store.list()}
    unknown = [path for path in paths if path not in found]
    found |= ask_all(store, lambda path, store: store.head(path), unknown)
    missing = [path for path in paths if path not in found]
    if missing:
        raise ObjectNotFoundError(
            "there is no such tar"
            if len(paths) == 1
            else f"{len(missing)} of {len(paths)} tars do not exist, the first is {missing[0]!r}",
            where=store.url,
            hint=path_hint(spec.url, "check bucket, folder and braces"),
        )
    return root, [ListEntry(path, found[path]) for path in paths]


def list_tars(spec: StoreSpec) -> list[ListEntry] | None:
    """Return all tars below a folder, as :func:`only_tars` does; None if the folder has metadata."""
    store = spec.open()
    entries = list(store.list())
    if any(entry.path.startswith(f"{META_FOLDER}/") for entry in entries):
        return None
    return only_tars(entries, store.url)


def find_shards(
    store: Store, *, shards: str | Sequence[str] | None = None, exclude: str | None = None
) -> list[ListEntry]:
    """List the tars of a folder; see :func:`select_shards`."""
    return select_shards(store.list(), store.url, shards=shards, exclude=exclude)


def select_shards(
    listed: Iterable[ListEntry],
    url: str,
    *,
    shards: str | Sequence[str] | None = None,
    exclude: str | None = None,
) -> list[ListEntry]:
    """Return the tars of a folder's listing, sorted by path; see :func:`energon_stream.prepare_dataset`.

    Raises ObjectNotFoundError if the folder has no tars, or none that the options select, and ConfigError if
    ``exclude`` is not a regular expression, or all tars are compressed.
    """
    files = (entry for entry in listed if not entry.path.startswith((f"{META_FOLDER}/", f"{STAGING}/")))
    entries = {entry.path: entry for entry in only_tars(files, url)}
    names = match_paths(list(entries), url, shards=shards, exclude=exclude)
    return [entries[name] for name in names]


def match_paths(
    paths: list[str], url: str, *, shards: str | Sequence[str] | None, exclude: str | None, kind: str = "tar"
) -> list[str]:
    """Return the paths that two options select; see :func:`select_shards`."""
    names = paths
    if shards is not None:
        names = match_names(names, [shards] if isinstance(shards, str) else shards)
    if exclude is not None:
        try:
            expression = re.compile(exclude)
        except re.error as error:
            raise ConfigError(f"exclude {exclude!r} is not a regular expression: {error}") from error
        names = [name for name in names if not expression.search(name)]
    if not names:
        raise ObjectNotFoundError(
            f"none of the {len(paths)} {kind}s is selected",
            where=url,
            hint=f"check the patterns; the first {kind} is {paths[0]!r}",
        )
    return names
