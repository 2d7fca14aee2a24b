"""Media metadata in the ``index.sqlite`` of prepared datasets and of plain folders."""

from __future__ import annotations

import operator
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import astuple, dataclass
from itertools import islice
from typing import TypeAlias

from energon_stream.errors import (
    ConfigError,
    DecodeError,
    MetadataError,
    MissingPackageError,
    NotPreparedError,
    ObjectNotFoundError,
)
from energon_stream.index.in_order import ordered_map
from energon_stream.index.media import MediaFile, MediaFilter, read_av, read_images
from energon_stream.index.metadata import INFO_JSON, INFO_YAML, META_FOLDER, parse_info
from energon_stream.index.sqlite_index import INDEX_SQLITE, sqlite_file, temporary_folder
from energon_stream.media.metadata import MediaMetadataBase
from energon_stream.storage import ObjectMeta, Store, StoreSpec

MEDIA_TABLES = """
CREATE TABLE IF NOT EXISTS media_metadata (
  entry_key TEXT PRIMARY KEY, metadata_type TEXT NOT NULL, metadata_json TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS media_filters (
  filter_id INTEGER PRIMARY KEY AUTOINCREMENT, strategy TEXT NOT NULL, patterns TEXT,
  created_at_utc TEXT DEFAULT CURRENT_TIMESTAMP, UNIQUE(strategy, patterns));
"""
_PARTS = """
SELECT sample_key || '.' || part_name, tar_file_id, content_byte_offset, content_byte_size
FROM sample_parts JOIN samples USING (tar_file_id, sample_index)
ORDER BY tar_file_id, sample_index, content_byte_offset
"""
_BATCH = 128  # files that one thread reads at a time


@dataclass(frozen=True, slots=True)
class MediaReport:
    """Outcome for the files that a media filter matches."""

    stored: int = 0  # number of files whose metadata is in the index now
    skipped_av: int = 0  # number of audio and video files that were skipped, because PyAV is not installed
    # Names of the files that cannot be read. ``HEADER``, which tries all files, names no images here.
    unreadable: tuple[str, ...] = ()

    def __add__(self, other: MediaReport) -> MediaReport:
        return MediaReport(*map(operator.add, astuple(self), astuple(other)))


FoundMedia: TypeAlias = tuple[Mapping[str, MediaMetadataBase], MediaReport]
"""Metadata of some files by name, and the outcome for these files."""


def find_media(store: Store, media_filter: MediaFilter, files: Iterable[MediaFile]) -> FoundMedia:
    """Read the metadata of the files that a filter matches. Raises the errors of :func:`read_images`."""
    matching = [file for file in files if media_filter.matches(file.name)]
    candidates = [file for file in matching if not file.is_av]
    known: dict[str, MediaMetadataBase] = {}
    unreadable: list[str] = []
    for start in range(0, len(candidates), _BATCH):
        batch = candidates[start : start + _BATCH]
        for file, image in zip(batch, read_images(store, batch), strict=True):
            if image is not None:
                known[file.name] = image
            elif media_filter.strategy != "HEADER":
                unreadable.append(file.name)
    skipped = 0
    for file in (file for file in matching if file.is_av):
        try:
            known[file.name] = read_av(store, file)
        except MissingPackageError:
            skipped += 1
        except DecodeError:
            if media_filter.strategy != "HEADER":
                unreadable.append(file.name)
    return known, MediaReport(len(known), skipped, tuple(unreadable))


class MediaTables:
    """Writes the two tables of media metadata into an open database. Rows of earlier filters stay."""

    def __init__(self, database: sqlite3.Connection, media_filter: MediaFilter) -> None:
        self._database = database
        self.report = MediaReport()  # outcome so far
        for statement in MEDIA_TABLES.split(";"):  # executescript() would commit the caller's transaction
            database.execute(statement)
        database.execute(
            "INSERT OR IGNORE INTO media_filters (strategy, patterns) VALUES (?, ?)",
            (media_filter.strategy, ",".join(media_filter.patterns)),
        )

    def add(self, found: FoundMedia) -> None:
        """Store metadata, and count the files in ``report``."""
        known, report = found
        self._database.executemany(
            "INSERT OR REPLACE INTO media_metadata VALUES (?, ?, ?)",
            ((name, one.metadata_type.value, one.to_json()) for name, one in known.items()),
        )
        self.report += report


def prepare_media(
    url_or_path: str,
    media_filter: MediaFilter,
    *,
    workers: int = 16,
    tmp_path: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, object] | None = None,
    progress: Callable[[int], object] | None = None,
) -> MediaReport:
    """Add media metadata to the index of a prepared dataset, or create the index of a plain folder.

    The new index replaces the old one at the end. A run that fails changes nothing.

    Args:
        url_or_path: Local folder or any fsspec URL.
        media_filter: Selects the media files.
        workers: Number of batches of files that are read at the same time.
        tmp_path: Local folder for a temporary folder, made if missing, in which the index is built; None for
            the system's.
        storage_options: Credentials and the like for the URL's file system.
        progress: Called with the number of files checked since the last call.

    Raises:
        ConfigError: The filter finds no readable file, or ``workers`` is not positive.
        NotPreparedError: The folder has tars and is not prepared, or has no index.
        MetadataError: The index is damaged, or does not match ``.info.json``.
        ObjectNotFoundError: There is no such folder, or a shard is missing.

    Example:
        >>> prepare_media("captions", MediaFilter("EXTENSION"))
        MediaReport(stored=64, skipped_av=0, unreadable=())
    """
    if workers < 1:
        raise ConfigError(f"workers is {workers}", hint="use 1 or more")
    store = StoreSpec(url_or_path, storage_options).open()
    entries = {entry.path: entry.meta for entry in store.list()}
    info = next((path for path in (INFO_JSON, INFO_YAML) if path in entries), None)
    _check_kind(store, entries, info)
    with temporary_folder(tmp_path) as folder:
        path = os.path.join(folder, "index.sqlite")
        if info is not None or INDEX_SQLITE in entries:
            with sqlite_file(store, folder) as existing:
                shutil.copyfile(existing, path)
        try:
            with closing(sqlite3.connect(path, isolation_level=None)) as database:
                database.execute("BEGIN")
                tables, done = MediaTables(database, media_filter), 0
                files = _files(entries) if info is None else _parts(database, store, info, entries)
                for size, found in ordered_map(
                    lambda batch: (len(batch), find_media(store, media_filter, batch)),
                    _batches(files),
                    workers,
                ):
                    tables.add(found)
                    done += size
                    if progress is not None:
                        progress(size)
                database.execute("COMMIT")
        except sqlite3.DatabaseError as error:
            where = f"{store.url}/{INDEX_SQLITE}"
            raise MetadataError(f"index.sqlite cannot be used: {error}", where=where) from error
        if not tables.report.stored:
            raise ConfigError(
                f"the media filter {media_filter.strategy} found no readable media among {done} files "
                f"({tables.report.skipped_av} skipped because the extra 'av' is not installed, "
                f"{len(tables.report.unreadable)} unreadable)",
                where=store.url,
                hint="patterns match samplekey.part in a prepared dataset, and the path in a plain folder",
            )
        store.put_file(INDEX_SQLITE, path)
    return tables.report


def _check_kind(store: Store, entries: Mapping[str, ObjectMeta], info: str | None) -> None:
    if not entries:
        raise ObjectNotFoundError("the folder has no files", where=store.url, hint="check the path")
    if info is None and any(path.endswith(".tar") for path in entries):
        # For every reader, an index alone would turn the folder into a plain one.
        raise NotPreparedError(
            "the folder has tars that are not prepared",
            where=store.url,
            hint="run `energon-stream prepare` with the same media option instead",
        )


def _batches(files: Iterator[MediaFile]) -> Iterator[list[MediaFile]]:
    while batch := list(islice(files, _BATCH)):
        yield batch


def _files(entries: Mapping[str, ObjectMeta]) -> Iterator[MediaFile]:
    for path, meta in entries.items():
        if not path.startswith(f"{META_FOLDER}/"):
            yield MediaFile(path, path, 0, meta.size, meta.etag)


def _parts(
    database: sqlite3.Connection, store: Store, info: str, entries: Mapping[str, ObjectMeta]
) -> Iterator[MediaFile]:
    shards = list(parse_info(store.get(info).data, f"{store.url}/{info}"))
    for name, shard, start, size in database.execute(_PARTS):
        if shard >= len(shards):
            raise MetadataError(
                "index.sqlite has more shards than .info.json",
                where=store.url,
                hint="run `energon-stream prepare` again",
            )
        path = shards[shard]
        if path not in entries:
            raise ObjectNotFoundError("the shard does not exist", where=f"{store.url}/{path}")
        yield MediaFile(name, path, start, size, entries[path].etag)
