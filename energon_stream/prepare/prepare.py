"""Prepares a folder of tars: writes indices and metadata, locally or on object storage."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from energon_stream.arguments import DATASET_CONFIG, SPLIT_CONFIG
from energon_stream.atomic_files import remove_temporaries
from energon_stream.errors import ConfigError, DatasetError, ObjectChangedError, ObjectNotFoundError
from energon_stream.index.checksums import CHECKSUMS
from energon_stream.index.files_index import FILES_JSON
from energon_stream.index.index_files import encode_offsets, index_path
from energon_stream.index.info_files import (
    INFO_JSON,
    INFO_YAML,
    STAGING,
    read_info,
)
from energon_stream.index.plain import find_shards, select_shards
from energon_stream.index.sample_sizes import MOST_BYTES, SampleSizes
from energon_stream.index.shard_marks import encode_marks, shard_mark, trailer_bytes
from energon_stream.index.shard_names import check_tar_names, names_tars, only_visible
from energon_stream.index.sqlite_index import INDEX_SQLITE, sqlite_file
from energon_stream.prepare.append import OldDataset
from energon_stream.prepare.builder import IndexBuilder
from energon_stream.prepare.duplicates import separate_tars
from energon_stream.prepare.prepare_files import prepare_files
from energon_stream.prepare.publish import (
    SKIPPED,
    MetadataOptions,
    NewFiles,
    Publishing,
    publish,
    write_offsets,
)
from energon_stream.prepare.scanning import Scanner, ScanOptions
from energon_stream.prepare.shard_records import ShardRecords
from energon_stream.storage import ListEntry, Store, StoreSpec
from energon_stream.temporary_folders import temporary_folder
from energon_stream.urls import local_path

if TYPE_CHECKING:
    from energon_stream.engine.tasks import Part, TaskEngine
    from energon_stream.prepare.media_headers import MediaFilter
    from energon_stream.prepare.media_tables import MediaReport


@dataclass(frozen=True, slots=True)
class PrepareReport:
    """Result of :func:`prepare_dataset`.

    Attributes:
        shard_counts: Number of samples by shard path, in the order of ``.info.json``.
        split: Shards of each split part.
        parts: Sorted names of all parts in the dataset.
        files: Paths of the written files, relative to the dataset.
        media: Result of the media filter; None if there was none.
        skipped: What is wrong with the tars that were left out, by path.
        remarks: What is odd about the tars, a text for each kind; each is logged as well.

    Example:
        >>> PrepareReport({"a.tar": 3, "b.tar": 4}, {"train": ("a.tar", "b.tar")}, ("txt",), ()).num_samples
        7
    """

    shard_counts: Mapping[str, int]
    split: Mapping[str, tuple[str, ...]]
    parts: tuple[str, ...]
    files: tuple[str, ...]
    media: MediaReport | None = None
    skipped: Mapping[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    @property
    def num_samples(self) -> int:
        """Number of samples in the dataset."""
        return sum(self.shard_counts.values())


def prepare_dataset(
    url_or_path: str | os.PathLike[str],
    *,
    shards: str | Sequence[str] | None = None,
    split_ratio: Sequence[float] | Mapping[str, float] | None = None,
    split_patterns: Sequence[str] | None = None,
    exclude: str | None = None,
    split_config: str = SPLIT_CONFIG,
    dataset_yaml: Mapping[str, Any] | None = None,
    dataset_config: str = DATASET_CONFIG,
    shuffle_tars: bool = False,
    shuffle_seed: int = 42,
    tar_index_only: bool = False,
    fix_duplicates: bool = False,
    checksums: bool = False,
    media_filter: MediaFilter | None = None,
    tmp_path: str | os.PathLike[str] | None = None,
    workers: int = 16,
    storage_options: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
    force: bool = False,
    skip_bad: bool = False,
    append: bool = False,
    engine: TaskEngine | None = None,
    part: Part | None = None,
    max_gap: int | None = None,
) -> PrepareReport:
    """Index the tars of a folder and write its ``.nv-meta``; or its files of JSON lines, Parquet, or another
    :class:`FileFormat`, if it has no tars.

    Megatron-Energon 7.4.1 reads the same files. In datasets of moderate size, the sizes of the samples follow
    the last page of ``index.sqlite``, which saves a round trip when the dataset is opened.

    An existing preparation stays as it is until all tars are scanned and checked. Then the new one is
    published, one whole file after another, so that readers see the old dataset or the new one; the first
    preparation is seen when ``.info.json`` is written, last. What was scanned is kept in ``.nv-staging``: a
    run that was stopped goes on when it is called again.

    Args:
        url_or_path: Local folder or any fsspec URL.
        shards: Names, globs or brace patterns of the tars, relative to the folder; None for all tars below
            it.
        split_ratio: Shares of train, val and test, or of split parts by name. Give this or
            ``split_patterns``.
        split_patterns: ``NAME:PATTERN`` with a regular expression, glob or brace pattern.
        exclude: Regular expression; tars with a match anywhere in their path are left out.
        split_config: Name of the file in ``.nv-meta`` that has the split parts.
        dataset_yaml: Content of ``dataset.yaml``; None to write no such file.
        dataset_config: Name of the file in ``.nv-meta`` that ``dataset_yaml`` is written to.
        shuffle_tars: Shuffle the shards before they are split.
        shuffle_seed: Seed of the shuffle. Megatron-Energon has the same default.
        tar_index_only: Write the ``.tar.idx`` files only.
        fix_duplicates: If tars share sample keys, rename the members of all tars first, which writes the tars
            anew: ``x.jpg`` of ``a.tar`` becomes ``a.tar/x.jpg``.
        checksums: Also read all bytes, and write a checksum for each sample, which ``ReadOptions(verify=…)``
            compares. Without this, checksums of an earlier preparation are removed.
        media_filter: Images whose size is written to the index; None for none.
        tmp_path: Local folder for a temporary folder, made if missing, in which files are built before they
            are uploaded; None for the system's. It takes the index, and with ``fix_duplicates`` a tar for
            each worker.
        workers: Number of shards that are read at the same time.
        storage_options: Options of the URL's file system, such as credentials.
        progress: Called with the number of shards that are done, and of all shards.
        force: Replace an existing preparation.
        skip_bad: Leave out tars that are damaged, and name them in ``.nv-meta/skipped.json``. Tars without
            samples are left out in any case.
        append: Add tars that the prepared dataset does not have. Old entries stay as they are, and the split
            options are for the new tars alone.
        engine: Reads the tars in processes of this machine or of a cluster; None for ``workers`` threads of
            this process.
        part: Share of the tars that is read by this call, and kept in ``.nv-staging``. When all shares are
            done, a call without ``part`` publishes the dataset. None for everything at once.
        max_gap: Bytes of a payload that are read on a store rather than jumped over by one more request; None
            for 256 KiB. With 0, hardly more than headers is read, which takes a request for each payload.

    Raises:
        ObjectNotFoundError: The folder has no tars, or none that the options select.
        ConfigError: The options contradict each other, all tars are compressed, or the dataset is prepared
            already.
        BadShardsError: Tars are damaged or cut off, or no tar has samples;
            names all.
        DuplicateKeyError: Two samples have the same key.
        ObjectChangedError: A tar was changed meanwhile.
        IndexMismatchError: ``append``, and an old shard was changed or is gone.
        NotPreparedError: ``append``, and there is no dataset.
        StorageError: The store or the local disk cannot be written to. In all these cases readers see what
            they saw before.

    Example:
        >>> report = prepare_dataset("tars", split_ratio=(3, 1, 0))
        >>> report.num_samples, report.parts, report.split["val"]
        (64, ('jpg', 'txt'), ('data-000003.tar',))
    """
    _check_exclusions(given := locals())
    of_tars = [name for name in _OF_TARS if given[name]]
    for name, number, least in (("workers", workers, 1), ("max_gap", max_gap or 0, 0)):
        if number < least:
            raise ConfigError(f"{name} is {number}", hint=f"use {least} or more")
    dataset = MetadataOptions(
        split_ratio,
        split_patterns,
        dataset_yaml,
        split_config,
        dataset_config,
        shuffle_seed if shuffle_tars else None,
    )
    is_split = split_ratio is not None or split_patterns is not None
    if not (is_split or tar_index_only):
        raise ConfigError("split_ratio or split_patterns is missing", hint="pass split_ratio=(8, 1, 1)")
    spec = StoreSpec(os.fspath(url_or_path), storage_options)
    store = spec.open()
    if store.is_local:
        remove_temporaries(local_path(store.url))
    listed = list(store.list())
    existing = {entry.path for entry in listed}
    staging = ShardRecords(store, STAGING, existing)
    if existing & {INFO_JSON, INFO_YAML} and not (
        tar_index_only or force or append or Publishing.of(staging)
    ):
        raise ConfigError(
            "the dataset is prepared already",
            where=store.url,
            hint="pass force=True to replace the preparation, or append=True to add tars that it does not have",
        )
    if not any(names_tars(entry.path) for entry in only_visible(listed, store.url)):
        choice: dict[str, Any] = {
            "shards": shards,
            "exclude": exclude,
            "workers": workers,
            "progress": progress,
        }
        counts = prepare_files(spec, listed, dataset, of_tars=of_tars, **choice)
        if counts is not None:
            return PrepareReport(counts, dataset.split(counts), (), (FILES_JSON, INFO_JSON))
    entries = select_shards(listed, store.url, shards=shards, exclude=exclude)
    check_tar_names((entry.path for entry in entries), store.url)
    options = ScanOptions(checksums, media_filter, max_gap)
    if tar_index_only:
        found, parts, remarks = _index_tars(store, entries, listed, workers, progress, options)
        split = dataset.split(found) if is_split else {}
        files = tuple(map(index_path, found))
        return PrepareReport(found, split, tuple(sorted(parts)), files, remarks=remarks)
    at = None if engine is None else (engine, spec)
    job = _Preparation(store, staging, workers, progress, skip_bad, dataset, at, part)
    with temporary_folder(tmp_path) as folder:
        if append:
            return job.append(folder, entries, listed, options)
        scanner = job.scanner(options)
        if part is not None:
            return job.scan_part(scanner, entries, part)
        dataset.split(entry.path for entry in entries)  # a split that fails does so before the tars are read
        if fix_duplicates and job.separate(scanner, folder, entries):
            entries = find_shards(store, shards=shards, exclude=exclude)
        with IndexBuilder(folder, media_filter=media_filter, checksums=checksums) as builder:
            good = job.scan(scanner, entries, builder)
            present: Mapping[str, int] | None = None
            if existing & {INFO_JSON, INFO_YAML}:
                with suppress(DatasetError, ObjectNotFoundError):
                    present = read_info(store)
            return job.publish(builder, scanner, good, present)


@dataclass(frozen=True, slots=True)
class _Preparation:
    """The steps of a preparation: scan, check, publish."""

    store: Store  # of the dataset's root
    staging: ShardRecords  # what earlier runs have found
    workers: int  # tars that are read at the same time
    progress: Callable[[int, int], None] | None  # called with the tars that are done, and all
    skip_bad: bool  # whether tars that cannot be used are left out
    dataset: MetadataOptions  # split parts and metadata
    engine: tuple[TaskEngine, StoreSpec] | None  # what runs the scans, and what it reads; None for threads
    part: Part | None  # share of the tars that is scanned, and not published; None for all

    def scanner(self, options: ScanOptions) -> Scanner:
        return Scanner(self.store, self.staging, options, self.workers, self.engine)

    def scan_part(self, scanner: Scanner, entries: Sequence[ListEntry], part: Part) -> PrepareReport:
        """Scan a share of the tars, and keep what is found for a run without ``part``."""
        share = part.of(entries)
        counts: dict[str, int] = {}
        parts: set[str] = set()
        for record in filter(None, scanner.run(share, self.progress)):
            counts[record.scan.path] = len(record.scan.keys)
            parts.update(name for _, name, _, _ in record.scan.parts)
        if not self.skip_bad:
            scanner.raise_bad(len(share))
        return PrepareReport(counts, {}, tuple(sorted(parts)), (), skipped=scanner.bad | scanner.empty)

    def scan(self, scanner: Scanner, entries: Sequence[ListEntry], builder: IndexBuilder) -> list[ListEntry]:
        """Add the shards to the index; return the shards that can be used."""
        good = []
        for entry, record in zip(entries, scanner.run(entries, self.progress), strict=True):
            if record is not None:
                builder.add(record)
                good.append(entry)
        if not (self.skip_bad and good):
            scanner.raise_bad(len(entries), is_any_good=bool(good or not entries))
        return good

    def separate(self, scanner: Scanner, folder: str, entries: Sequence[ListEntry]) -> bool:
        """Rename the members of all tars if tars share keys; return True if tars were changed."""

        def remove_metadata() -> None:  # it does not fit the new tars; an index alone makes a plain folder
            for path in (INDEX_SQLITE, INFO_JSON, INFO_YAML, CHECKSUMS):
                self.store.delete(path)

        good = [entry for entry, found in zip(entries, scanner.run(entries), strict=True) if found]
        if not self.skip_bad:
            scanner.raise_bad(len(entries))
        return separate_tars(self.store, good, scanner.scan, self.workers, folder, remove_metadata)

    def append(
        self,
        folder: str,
        entries: Sequence[ListEntry],
        listed: Sequence[ListEntry],
        options: ScanOptions,
    ) -> PrepareReport:
        """Add the tars that the dataset does not have, and publish it."""
        store = self.store
        old = OldDataset(store, self.staging, self.dataset.split_config, listed)
        if options.checksums and old.checksums is None:
            raise ConfigError(
                "the dataset has no checksums, so they cannot be added for new tars alone",
                where=store.url,
                hint="prepare the whole dataset again with force=True",
            )
        new = [entry for entry in entries if entry.path not in old.counts]
        with ExitStack() as stack:
            database = stack.enter_context(sqlite_file(store, folder))
            media_filter = options.media_filter or old.media_filter(database)
            has_checksums = old.checksums is not None
            scanner = self.scanner(replace(options, checksums=has_checksums, media_filter=media_filter))
            if self.part is not None:
                return self.scan_part(scanner, new, self.part)
            builder = IndexBuilder(folder, media_filter=media_filter, checksums=has_checksums)
            stack.enter_context(builder)
            if media_filter is not None:
                old.copy_media(database, builder.connection)
            for record in old.records(database):
                builder.add(record)
            old.check(self.workers)
            if not new:
                return PrepareReport(
                    dict(old.present), old.joined_split({}), tuple(sorted(builder.parts)), ()
                )
            self.dataset.split(entry.path for entry in new)
            good = self.scan(scanner, new, builder)
            old.keep(self.staging)
            return self.publish(builder, scanner, good, old.present, old)

    def publish(
        self,
        builder: IndexBuilder,
        scanner: Scanner,
        good: Sequence[ListEntry],
        present: Mapping[str, int] | None,
        old: OldDataset | None = None,
    ) -> PrepareReport:
        """Check that nothing changed meanwhile, and publish the index."""
        bad, remarks = scanner.bad | scanner.empty, scanner.tell()
        built, before = builder.complete(), 0 if old is None else len(old.counts)
        listed = list(self.store.list())
        now = {entry.path: entry.meta for entry in listed}
        if changed := [entry.path for entry in good if now.get(entry.path) != entry.meta]:
            named = ", ".join(changed[:3]) + (", …" if len(changed) > 3 else "")
            raise ObjectChangedError(
                f"{len(changed)} tars changed while the dataset was prepared: {named}",
                where=self.store.url,
                hint="run this again when nobody writes to the folder; what has not changed is not read again",
            )
        split = self.dataset.split(entry.path for entry in good)
        exclude: tuple[str, ...] = ()
        if old is not None:
            split, exclude = old.joined_split(split), old.exclude
        skipped = json.dumps({"skipped": bad}, indent=2).encode() if bad else None
        new = NewFiles.of(built, self.dataset, split, exclude=exclude, others={SKIPPED: skipped})
        if old is None:
            Publishing().save(self.staging)
        sizes = {entry.path: entry.meta.size for entry in listed}
        write_offsets(self.store, islice(builder.offset_files(), before, None), sizes, self.workers)
        files = publish(self.store, present, new, sizes)
        Publishing.remove(self.staging)
        indices = tuple(index_path(entry.path) for entry in good)
        return PrepareReport(
            built.counts, split, tuple(sorted(builder.parts)), (*indices, *files), builder.media, bad, remarks
        )


def _index_tars(
    store: Store,
    entries: Sequence[ListEntry],
    listed: Sequence[ListEntry],
    workers: int,
    progress: Callable[[int, int], None] | None,
    options: ScanOptions,
) -> tuple[dict[str, int], set[str], tuple[str, ...]]:
    """Write the ``.tar.idx`` files alone; return the samples of each shard, all parts, and remarks."""
    scanner, files = Scanner(store, None, options, workers), {e.path: e.meta.size for e in listed}
    counts: dict[str, int] = {}
    parts: set[str] = set()
    sizes, marks = SampleSizes(), list[int | None]()

    def offsets() -> Iterator[tuple[str, bytes]]:
        for record in filter(None, scanner.run(entries, progress)):
            scan = record.scan
            counts[scan.path] = len(scan.keys)
            parts.update(part for _, part, _, _ in scan.parts)
            sizes.add(scan.offsets, scan.first_names())
            marks.append(shard_mark(scan))
            yield scan.path, encode_offsets(scan.offsets)

    write_offsets(store, offsets(), files, workers)
    scanner.raise_bad(len(entries), is_any_good=bool(counts))
    if {INDEX_SQLITE, INFO_JSON} <= files.keys():
        expected = encode_marks(marks, counts)
        expected = (sizes.encode(bytes(store.get(INFO_JSON).data), len(expected)) or b"") + expected
        tail = store.get_suffix(INDEX_SQLITE, MOST_BYTES).data
        length = trailer_bytes(tail)
        if length and not expected.endswith(tail[-length:]):  # marks and sizes of other tars
            store.put(INDEX_SQLITE, bytes(store.get(INDEX_SQLITE).data[:-length]))
    return counts, parts, scanner.tell()


_EXCLUSIONS = (
    (
        "tar_index_only",
        ("append", "checksums", "fix_duplicates", "skip_bad", "engine", "part", "media_filter"),
        "which belongs to the whole preparation",
    ),
    ("part", ("fix_duplicates",), "which needs the keys of all tars"),
    ("append", ("fix_duplicates",), "which changes the old tars too"),
)


_OF_TARS = ("tar_index_only", "append", "checksums", "fix_duplicates", "media_filter", "engine", "part")


def _check_exclusions(given: Mapping[str, Any]) -> None:
    for one, others, why in _EXCLUSIONS:
        for other in others:
            if given[one] and given[other]:
                raise ConfigError(f"{one} excludes {other}, {why}")
