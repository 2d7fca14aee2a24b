"""The steps of a preparation: scan, check, publish."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING

from energon_stream.errors import ConfigError
from energon_stream.index.checksums import CHECKSUMS
from energon_stream.index.index_files import index_path
from energon_stream.index.info_files import INFO_JSON, INFO_YAML
from energon_stream.index.sqlite_index import INDEX_SQLITE, sqlite_file
from energon_stream.prepare.append import OldDataset, OldShards, copy_media
from energon_stream.prepare.builder import IndexBuilder
from energon_stream.prepare.duplicates import separate_tars
from energon_stream.prepare.publish import SKIPPED, NewFiles, Publishing, publish, write_offsets
from energon_stream.prepare.scanning import Scanner, check_unchanged

if TYPE_CHECKING:
    from energon_stream.engine.shares import Part
    from energon_stream.engine.tasks import TaskEngine
    from energon_stream.prepare.media_tables import MediaReport
    from energon_stream.prepare.publish import MetadataOptions
    from energon_stream.prepare.scanning import ScanOptions
    from energon_stream.prepare.shard_records import ShardRecords
    from energon_stream.storage import ListEntry, Store, StoreSpec


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
    """

    shard_counts: Mapping[str, int]
    split: Mapping[str, tuple[str, ...]]
    parts: tuple[str, ...]
    files: tuple[str, ...]
    media: MediaReport | None = None
    skipped: Mapping[str, str] = field(default_factory=dict)

    @property
    def num_samples(self) -> int:
        """Number of samples in the dataset."""
        return sum(self.shard_counts.values())


@dataclass(frozen=True, slots=True)
class Preparation:
    """Steps of a preparation, and what they share."""

    store: Store  # of the dataset's root
    staging: ShardRecords  # what earlier runs have found out
    workers: int  # tars that are read at the same time
    progress: Callable[[int, int], None] | None  # called with the tars that are done, and all
    skip_bad: bool  # whether tars that cannot be used are left out
    dataset: MetadataOptions  # split parts and metadata
    # What runs the scans, and where its processes find the dataset; None for threads.
    engine: tuple[TaskEngine, StoreSpec] | None = None
    part: Part | None = None  # share of the tars that is scanned, and not published; None for all

    def scanner(self, options: ScanOptions) -> Scanner:
        """Return what scans the tars."""
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
        return PrepareReport(counts, {}, tuple(sorted(parts)), (), skipped=dict(scanner.bad))

    def scan(self, scanner: Scanner, entries: Sequence[ListEntry], builder: IndexBuilder) -> list[ListEntry]:
        """Add the shards to the index; return the shards that can be used."""
        good = []
        for entry, record in zip(entries, scanner.run(entries, self.progress), strict=True):
            if record is not None:
                builder.add(record)
                good.append(entry)
        if not (self.skip_bad and good):
            scanner.raise_bad(len(entries))
        return good

    def separate(self, scanner: Scanner, folder: str, entries: Sequence[ListEntry]) -> bool:
        """Rename the members of all tars if tars share keys; return True if tars were changed.

        The old preparation cannot describe them, so it is removed before.
        """
        good = [entry for entry, found in zip(entries, scanner.run(entries), strict=True) if found]
        if not self.skip_bad:
            scanner.raise_bad(len(entries))
        return separate_tars(self.store, good, scanner.scan, self.workers, folder, self._remove_metadata)

    def _remove_metadata(self) -> None:
        # With an index alone, the folder would be a plain one.
        for path in (INDEX_SQLITE, INFO_JSON, INFO_YAML, CHECKSUMS):
            self.store.delete(path)

    def append(
        self,
        folder: str,
        entries: Sequence[ListEntry],
        listed: Sequence[ListEntry],
        options: ScanOptions,
    ) -> PrepareReport:
        """Add the tars that the dataset does not have, and publish it."""
        store = self.store
        old = OldDataset(store, self.staging, self.dataset.split_config)
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
                copy_media(database, builder.connection)
            shards = OldShards(store, listed)
            for record in old.records(database):
                builder.add(record)
                shards.see(record)
            shards.check(self.workers)
            if not new:
                return PrepareReport(
                    dict(old.present), old.joined_split({}), tuple(sorted(builder.parts)), ()
                )
            self.dataset.split(entry.path for entry in new)
            good = self.scan(scanner, new, builder)
            old.keep(self.staging)
            return self.publish(builder, scanner.bad, good, old.present, old)

    def publish(
        self,
        builder: IndexBuilder,
        bad: Mapping[str, str],
        good: Sequence[ListEntry],
        present: Mapping[str, int] | None,
        old: OldDataset | None = None,
    ) -> PrepareReport:
        """Check that nothing changed meanwhile, and publish the index."""
        built, before = builder.complete(), 0 if old is None else len(old.counts)
        listed = list(self.store.list())
        check_unchanged(self.store, good, listed)
        split = self.dataset.split(entry.path for entry in good)
        exclude: tuple[str, ...] = ()
        if old is not None:
            split, exclude = old.joined_split(split), old.exclude
        skipped = json.dumps({"skipped": dict(bad)}, indent=2).encode() if bad else None
        new = NewFiles.of(built, self.dataset, split, exclude=exclude, others={SKIPPED: skipped})
        if old is None:
            Publishing().save(self.staging)
        sizes = {entry.path: entry.meta.size for entry in listed}
        write_offsets(self.store, islice(builder.offset_files(), before, None), sizes, self.workers)
        files = publish(self.store, present, new, sizes)
        Publishing.remove(self.staging)
        indices = tuple(index_path(entry.path) for entry in good)
        return PrepareReport(
            built.counts, split, tuple(sorted(builder.parts)), (*indices, *files), builder.media, dict(bad)
        )
