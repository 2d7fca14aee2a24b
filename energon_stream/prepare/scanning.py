"""Scans the tars of a dataset, keeps what was found, and collects the tars that cannot be used."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from energon_stream.errors import BadShardsError, CorruptTarError
from energon_stream.index.checksums import digest_samples
from energon_stream.index.info_files import STAGING
from energon_stream.prepare.media_tables import find_media, media_files
from energon_stream.prepare.shard_records import ShardRecord, ShardRecords, decode_record, encode_record
from energon_stream.storage.in_order import ordered_map
from energon_stream.tar.remarks import Remarks, merge_remarks
from energon_stream.tar.scan import scan_shard

if TYPE_CHECKING:
    from energon_stream.engine.tasks import TaskEngine
    from energon_stream.prepare.media_headers import MediaFilter
    from energon_stream.storage import ListEntry, Store, StoreSpec

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ScanOptions:
    """Says what the tars are scanned for, besides their samples."""

    checksums: bool = False  # checksums of the samples, which reads all bytes
    media_filter: MediaFilter | None = None  # media files whose metadata is read
    # Bytes between two headers that are read rather than jumped over; None for the usual number. What is
    # found does not depend on it.
    max_gap: int | None = field(default=None, repr=False)

    def version(self, entry: ListEntry) -> str:
        """Return a text that differs if a shard, or what it is scanned for, differs."""
        meta = entry.meta
        return repr((self, meta.size, meta.etag or str(meta.last_modified)))


class Scanner:
    """Scans tars, ``workers`` at a time: in processes of ``engine``, or in threads of this process.

    The result for each tar is kept in ``staging``, and taken from there; None keeps nothing.
    """

    def __init__(
        self,
        store: Store,
        staging: ShardRecords | None,
        options: ScanOptions,
        workers: int,
        engine: tuple[TaskEngine, StoreSpec] | None = None,
    ) -> None:
        self.bad: dict[str, str] = {}  # what is wrong with tars that cannot be used, by path, so far
        self.empty: dict[str, str] = {}  # the same of tars without samples, which are left out
        self.remarks: list[tuple[str, Remarks]] = []  # what is odd about tars, with their paths
        self._store, self._staging, self._options, self._workers = store, staging, options, workers
        self._engine = engine

    def run(
        self, entries: Sequence[ListEntry], progress: Callable[[int, int], None] | None = None
    ) -> Iterator[ShardRecord | None]:
        """Yield the record of each tar, in order; None for one in ``bad`` or ``empty``.

        ``progress`` is called with the number of tars that the caller is done with, and of all.

        Raises:
            ObjectChangedError: A tar was replaced after it was listed.
            StorageError: The store does not deliver, or refuses a record.
        """
        pairs = zip(entries, self._results(entries), strict=True)
        for done, (entry, found) in enumerate(pairs, 1):
            record = None if isinstance(found, str) else found
            if isinstance(found, str):
                self.bad[entry.path] = found
            elif found.scan.remarks:
                self.remarks.append((entry.path, found.scan.remarks))
            if record is not None and not record.scan.keys:
                self.empty[entry.path], record = "the tar has no samples", None
            yield record
            if progress is not None:
                progress(done, len(entries))

    def _results(self, entries: Sequence[ListEntry]) -> Iterator[ShardRecord | str]:
        if self._engine is None:
            return ordered_map(self.attempt, entries, self._workers)
        staging, (engine, spec) = self._staging, self._engine
        tasks = [
            (entry, staging and [staging.path(entry.path)] * staging.has(entry.path)) for entry in entries
        ]
        found = engine.map(partial(_scan_task, spec, self._options), tasks, in_order=True)
        return (one if isinstance(one, str) else decode_record(one) for one in found)

    def raise_bad(self, total: int, *, is_any_good: bool = True) -> None:
        """Raise BadShardsError if some of ``total`` tars cannot be used, or none is good."""
        if self.bad or not is_any_good:
            raise BadShardsError.of(
                self.bad if is_any_good else self.bad | self.empty, total, self._store.url
            )

    def tell(self) -> tuple[str, ...]:
        """Log what is odd about the tars, once for each kind; return the texts."""
        texts = tuple(merge_remarks(self.remarks))
        for text in texts:
            _log.warning("%s: %s", self._store.url, text)
        return texts

    def scan(self, entry: ListEntry) -> ShardRecord:
        """Return the record of a tar.

        Raises:
            CorruptTarError: The tar is damaged or cut off.
            StorageError: As :meth:`run`.
        """
        staging, version = self._staging, self._options.version(entry)
        if staging is not None and staging.has(entry.path):
            known = staging.load(entry.path, version)
            if known is not None:
                return known
        scan = scan_shard(self._store, entry, max_gap=self._options.max_gap)
        digests = digest_samples(self._store, entry, scan.offsets) if self._options.checksums else []
        media = None
        if self._options.media_filter is not None:
            media = find_media(self._store, self._options.media_filter, media_files(scan, entry.meta.etag))
        record = ShardRecord(scan, digests, media)
        if staging is not None:
            staging.save(record, version)
        return record

    def attempt(self, entry: ListEntry) -> ShardRecord | str:
        """Return the record of a tar, or what is wrong with it."""
        try:
            return self.scan(entry)
        except CorruptTarError as error:
            return error.what


def _scan_task(
    spec: StoreSpec, options: ScanOptions, task: tuple[ListEntry, list[str] | None]
) -> bytes | str:
    """Scan a tar in another process; return the bytes of its record, or what is wrong with it.

    The task has the path of the record that there is already, if any; None to keep none.
    """
    entry, known = task
    store = spec.open()
    staging = None if known is None else ShardRecords(store, STAGING, known)
    found = Scanner(store, staging, options, 1).attempt(entry)
    return found if isinstance(found, str) else encode_record(found)
