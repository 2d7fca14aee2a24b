"""Media metadata in the ``index.sqlite`` of prepared datasets and of plain folders."""

from __future__ import annotations

import operator
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import astuple, dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import apsw

from energon_stream.errors import (
    ConfigError,
    DecodeError,
    MetadataError,
    MissingPackageError,
    NotPreparedError,
    ObjectNotFoundError,
)
from energon_stream.index.file_format import find_format
from energon_stream.index.guarded_sqlite import IndexConnection, connect_to_write, damaged_index, indexed_name
from energon_stream.index.info_files import INFO_JSON, INFO_YAML, META_FOLDER, parse_info, read_info
from energon_stream.index.shard_names import check_tars, conversion_hint
from energon_stream.index.sqlite_index import INDEX_SQLITE, sqlite_file
from energon_stream.index.yaml_io import read_document
from energon_stream.prepare.media_headers import MediaFile, MediaFilter, read_av, read_images
from energon_stream.storage import ListEntry, ObjectMeta, Store, StoreSpec
from energon_stream.storage.in_order import ordered_map
from energon_stream.tar.scan import ShardScan, scan_shard
from energon_stream.temporary_folders import temporary_folder

if TYPE_CHECKING:
    import sqlite3

    from energon_stream.engine.tasks import TaskEngine
    from energon_stream.media.file_layout import FileLayout
    from energon_stream.media.metadata import MediaMetadataBase

# Megatron-Energon's tables, and one of our own, of which it takes no notice.
MEDIA_TABLES = """
CREATE TABLE IF NOT EXISTS media_metadata (
  entry_key TEXT PRIMARY KEY, metadata_type TEXT NOT NULL, metadata_json TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS media_filters (
  filter_id INTEGER PRIMARY KEY AUTOINCREMENT, strategy TEXT NOT NULL, patterns TEXT,
  created_at_utc TEXT DEFAULT CURRENT_TIMESTAMP, UNIQUE(strategy, patterns));
CREATE TABLE IF NOT EXISTS media_layouts (entry_key TEXT PRIMARY KEY, layout_json TEXT NOT NULL);
"""
_PARTS = """
SELECT sample_key || '.' || part_name AS entry_key, tar_file_id, content_byte_offset, content_byte_size
FROM sample_parts JOIN samples USING (tar_file_id, sample_index)
ORDER BY tar_file_id, sample_index, content_byte_offset
"""
_PATTERNS = "patterns match samplekey.part in a prepared dataset, and the path in a plain folder"
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


class FoundMedia(NamedTuple):
    """Metadata and layouts of some files."""

    metadata: Mapping[str, MediaMetadataBase]  # by name
    layouts: Mapping[str, FileLayout]  # of video and audio, by name
    report: MediaReport


def find_media(store: Store, media_filter: MediaFilter, files: Iterable[MediaFile]) -> FoundMedia:
    """Read the metadata of the files that a filter matches. Raises the errors of :func:`read_images`."""
    matching = [file for file in files if media_filter.matches(file.name)]
    candidates = [file for file in matching if not file.is_av]
    known: dict[str, MediaMetadataBase] = {}
    layouts: dict[str, FileLayout] = {}
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
            known[file.name], layouts[file.name] = read_av(store, file)
        except MissingPackageError:
            skipped += 1
        except DecodeError:
            if media_filter.strategy != "HEADER":
                unreadable.append(file.name)
    return FoundMedia(known, layouts, MediaReport(len(known), skipped, tuple(unreadable)))


class MediaTables:
    """Writes the tables of media metadata into an open database. Rows of earlier filters stay."""

    def __init__(self, database: sqlite3.Connection | IndexConnection, media_filter: MediaFilter) -> None:
        self._database = database
        self.report: MediaReport = MediaReport()  # outcome so far
        for statement in MEDIA_TABLES.split(";"):  # executescript() would commit the caller's transaction
            database.execute(statement)
        database.execute(
            "INSERT OR IGNORE INTO media_filters (strategy, patterns) VALUES (?, ?)",
            (media_filter.strategy, ",".join(media_filter.patterns)),
        )

    def add(self, found: FoundMedia) -> None:
        """Store metadata and layouts, and count the files in ``report``."""
        self._database.executemany(
            "INSERT OR REPLACE INTO media_metadata VALUES (?, ?, ?)",
            (
                (indexed_name(name), one.metadata_type.value, one.to_json())
                for name, one in found.metadata.items()
            ),
        )
        self._database.executemany(
            "INSERT OR REPLACE INTO media_layouts VALUES (?, ?)",
            ((indexed_name(name), layout.to_json()) for name, layout in found.layouts.items()),
        )
        self.report += found.report


def prepare_media(
    url_or_path: str,
    media_filter: MediaFilter,
    *,
    workers: int = 16,
    tmp_path: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, object] | None = None,
    progress: Callable[[int], object] | None = None,
    engine: TaskEngine | None = None,
) -> MediaReport:
    """Add media metadata to the index of a prepared dataset, or create the index of a plain folder.

    The new index replaces the old one at the end. A run that fails changes nothing.

    Args:
        url_or_path: Local folder or any fsspec URL.
        media_filter: Selects the media files.
        workers: Number of batches of files that are read at the same time.
        tmp_path: Local folder for a temporary folder, made if missing, in which the index is built; None for
            the system's.
        storage_options: Options of the URL's file system, such as credentials.
        progress: Called with the number of files checked since the last call.
        engine: Where files are read, shard by shard: processes, or a cluster. None for threads of this
            process.

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
    spec = StoreSpec(url_or_path, storage_options)
    store = spec.open()
    entries = {entry.path: entry.meta for entry in store.list()}
    if not entries:
        raise ObjectNotFoundError(
            "there is no such folder, or it has no files",
            where=store.url,
            hint="check the path, which is that of a folder",
        )
    info = next((path for path in (INFO_JSON, INFO_YAML) if path in entries), None)
    if info is None and any(path.endswith(".tar") for path in entries):
        # For every reader, an index alone would turn the folder into a plain one.
        raise NotPreparedError(
            "the folder has tars that are not prepared",
            where=store.url,
            hint="run `energon-stream prepare` with the same media option instead",
        )
    if info is not None:
        check_tars(store.url, read_info(store))
    with temporary_folder(tmp_path) as folder:
        path, where = os.path.join(folder, "index.sqlite"), f"{store.url}/{INDEX_SQLITE}"
        if info is not None or INDEX_SQLITE in entries:
            with sqlite_file(store, folder) as existing:
                shutil.copyfile(existing, path)
        try:
            with closing(connect_to_write(path, where)) as database:
                database.execute("BEGIN")
                tables, done = MediaTables(database, media_filter), 0
                batches: Iterator[tuple[int, FoundMedia]]
                if engine is None:
                    files = _files(entries) if info is None else _parts(database, store, info, entries)
                    batches = ordered_map(
                        lambda batch: (len(batch), find_media(store, media_filter, batch)),
                        _batches(files),
                        workers,
                    )
                else:
                    tasks = [*_batches(_files(entries))] if info is None else _shards(store, info, entries)
                    batches = engine.map(partial(_find, spec, media_filter), tasks, in_order=True)
                for size, found in batches:
                    tables.add(found)
                    done += size
                    if progress is not None:
                        progress(size)
                database.execute("COMMIT")
        except apsw.Error as error:
            raise damaged_index(where, str(error)) from error
        if not tables.report.stored:
            raise ConfigError(
                f"the media filter {media_filter.strategy} found no readable media among {done} files "
                f"({tables.report.skipped_av} skipped because the extra 'av' is not installed, "
                f"{len(tables.report.unreadable)} unreadable)",
                where=store.url,
                hint=conversion_hint(store.url) if any(map(find_format, entries)) else _PATTERNS,
            )
        store.put_file(INDEX_SQLITE, path)
    return tables.report


def _find(
    spec: StoreSpec, media_filter: MediaFilter, task: ListEntry | list[MediaFile]
) -> tuple[int, FoundMedia]:
    """Read the metadata of a shard's parts, or of some files; return their number as well."""
    store = spec.open()
    files = task if isinstance(task, list) else media_files(scan_shard(store, task), task.meta.etag)
    return len(files), find_media(store, media_filter, files)


def media_files(scan: ShardScan, etag: str | None) -> list[MediaFile]:
    """Return the parts of a shard."""
    return [
        MediaFile(f"{scan.keys[sample]}.{part}", scan.path, start, size, etag)
        for sample, part, start, size in scan.parts
    ]


def _shards(store: Store, info: str, entries: Mapping[str, ObjectMeta]) -> list[ListEntry]:
    paths = parse_info(store.get(info).data, f"{store.url}/{info}")
    return [ListEntry(path, _meta(store, entries, path)) for path in paths]


def _meta(store: Store, entries: Mapping[str, ObjectMeta], path: str) -> ObjectMeta:
    if path not in entries:
        raise ObjectNotFoundError("the shard does not exist", where=f"{store.url}/{path}")
    return entries[path]


def _batches(files: Iterator[MediaFile]) -> Iterator[list[MediaFile]]:
    return iter(lambda: list(islice(files, _BATCH)), [])


def _files(entries: Mapping[str, ObjectMeta]) -> Iterator[MediaFile]:
    for path, meta in entries.items():
        if not path.startswith(f"{META_FOLDER}/"):
            yield MediaFile(path, path, 0, meta.size, meta.etag)


def _parts(
    database: IndexConnection, store: Store, info: str, entries: Mapping[str, ObjectMeta]
) -> Iterator[MediaFile]:
    shards = list(parse_info(read_document(info, store).data, f"{store.url}/{info}"))
    for name, shard, start, size in database.select(_PARTS):
        if shard >= len(shards):
            raise MetadataError(
                "index.sqlite has more shards than .info.json",
                where=store.url,
                hint="run `energon-stream prepare` again",
            )
        path = shards[shard]
        yield MediaFile(name, path, start, size, _meta(store, entries, path).etag)
