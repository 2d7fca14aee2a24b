"""Reads what a prepared dataset knows of its shards, so that others can be added without reading them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from itertools import groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from energon_stream.errors import (
    ConfigError,
    CorruptTarError,
    IndexMismatchError,
    NotPreparedError,
    ObjectNotFoundError,
)
from energon_stream.index.checksums import digest, read_checksums
from energon_stream.index.guarded_sqlite import connect_local, indexed_name
from energon_stream.index.index_files import index_path
from energon_stream.index.info_files import INFO_JSON, INFO_YAML, META_FOLDER, parse_info, parse_split
from energon_stream.index.sample_sizes import MOST_BYTES
from energon_stream.index.shard_marks import Marks, decode_marks, shard_mark
from energon_stream.index.shard_starts import PARTS, SAMPLES, indexed_scan, mark_now
from energon_stream.index.sqlite_index import INDEX_SQLITE
from energon_stream.prepare.media_headers import MediaFilter
from energon_stream.prepare.publish import Publishing
from energon_stream.prepare.shard_records import ShardRecord, ShardRecords, encode_record
from energon_stream.storage.in_order import ordered_map
from energon_stream.tar.scan import ShardScan, scan_shard

if TYPE_CHECKING:
    import sqlite3

    from energon_stream.arrays import UInt64Array
    from energon_stream.storage import ListEntry, Store

_MEDIA_COLUMNS = {
    "media_metadata": "entry_key, metadata_type, metadata_json",
    "media_filters": "filter_id, strategy, patterns, created_at_utc",
    "media_layouts": "entry_key, layout_json",
}
_CHECKSUMS, _MARKS = "checksums", "marks"
_AGAIN = "prepare the whole dataset again with force=True"


class OldDataset:
    """A prepared dataset that shards are added to.

    Raises:
        NotPreparedError: The dataset is not prepared.
        ConfigError: An earlier preparation of the whole dataset was stopped while it published.
        IndexMismatchError: The checksums are damaged, or of another preparation.
    """

    def __init__(
        self, store: Store, staging: ShardRecords, split_config: str, listed: Sequence[ListEntry]
    ) -> None:
        note, split_path = Publishing.of(staging), f"{META_FOLDER}/{split_config}"
        if note is not None and note.first is None:
            raise ConfigError(
                "a preparation of the whole dataset was stopped before its end",
                where=store.url,
                hint=f"first complete it: {_AGAIN}; what was scanned is kept",
            )
        try:
            try:
                info, data = INFO_JSON, store.get(INFO_JSON).data
            except ObjectNotFoundError:
                info, data = INFO_YAML, store.get(INFO_YAML).data
            split = store.get(split_path).data
        except ObjectNotFoundError as error:
            raise NotPreparedError(
                "there is no prepared dataset that tars could be added to",
                where=store.url,
                hint="leave out append=True",
            ) from error
        self._where = f"{store.url}/{INDEX_SQLITE}"
        self._store, self._listed = store, {entry.path: entry for entry in listed}
        self._changed: dict[str, str] = {}  # what is wrong with shards, by path
        self._doubtful: dict[str, set[int | None]] = {}  # hash of the record, and the mark, by path
        # Number of samples by path of the shards that ``.info.json`` has, in order.
        self.present: Mapping[str, int] = parse_info(data, f"{store.url}/{info}")
        first = len(self.present) if note is None or note.first is None else note.first
        # The same without the shards that an earlier run was adding when it was stopped.
        self.counts: dict[str, int] = dict(islice(self.present.items(), first))
        self._split = parse_split(split, f"{store.url}/{split_path}")
        self._note = Publishing(first)
        kept = staging.kept(_CHECKSUMS)
        self.checksums: UInt64Array | None = (  # of the samples in ``present``
            read_checksums(store, sum(self.present.values()), digest(data))
            if kept is None
            else np.frombuffer(kept, dtype="<u8")
        )
        kept = staging.kept(_MARKS)
        self._marks: Marks | None = None if kept is None else np.frombuffer(kept, dtype="<u4")

    @property
    def exclude(self) -> tuple[str, ...]:
        """Entries of the split file that are not to be used."""
        return self._split.exclude

    def keep(self, staging: ShardRecords) -> None:
        """Keep what publishing would lose if it was stopped, and note that it begins."""
        if self.checksums is not None:
            staging.keep(_CHECKSUMS, self.checksums.tobytes())
        if self._marks is not None:
            staging.keep(_MARKS, self._marks.tobytes())
        self._note.save(staging)

    def joined_split(self, new: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
        """Return the shards of each split part: the old ones, then the new ones."""
        added = {shard for shards in new.values() for shard in shards}
        parts = {
            name: tuple(shard for shard in shards if shard not in added)
            for name, shards in self._split.split_parts.items()
        }
        for name, shards in new.items():
            parts[name] = (*parts.get(name, ()), *shards)
        return parts

    def records(self, database: str) -> Iterator[ShardRecord]:
        """Yield the records of the old shards, given the local path of the index.

        Raises IndexMismatchError if the index does not fit ``.info.json``, MetadataError if it is damaged.
        """
        begin, tars = 0, len(self.counts)
        if self._marks is None:
            with open(database, "rb") as file:
                file.seek(max(0, file.seek(0, 2) - MOST_BYTES))
                self._marks = decode_marks(memoryview(file.read()), list(self.present))
        marks = self._marks
        with closing(connect_local(database, self._where)) as index:
            rows = _of_each(index.select(SAMPLES, 0, tars), tars)
            parts = _of_each(index.select(PARTS, 0, tars), tars)
            shards = zip(self.counts.items(), rows, parts, strict=True)
            for number, ((path, count), of_tar, of_parts) in enumerate(shards):
                if len(of_tar) != count:
                    raise self._mismatch(f"it has {len(of_tar)} samples of {path}, not {count}")
                scan = indexed_scan(path, of_tar, of_parts)
                if scan.offsets != sorted(scan.offsets) or scan.offsets[-1] >= 1 << 63:
                    raise self._mismatch(f"the samples of {path} are not one behind the other")
                if {sample for _, sample, *_ in of_parts} != {*range(count)}:
                    raise self._mismatch(f"some sample of {path} has no parts, or some parts have no sample")
                digests = [] if self.checksums is None else self.checksums[begin : begin + count].tolist()
                mark = None if marks is None else int(marks[number])
                self._look_at(scan, mark)
                yield ShardRecord(scan, digests, mark=mark)
                begin += count

    def _look_at(self, scan: ShardScan, mark: int | None) -> None:
        tar, index = self._listed.get(scan.path), self._listed.get(index_path(scan.path))
        if tar is None:
            self._changed[scan.path] = "is gone"
        elif tar.meta.size < scan.offsets[-1]:
            self._changed[scan.path] = "is shorter"
        elif self._store.is_local and mark not in (None, mark_now(scan, self._store)):
            self._changed[scan.path] = "has other content"  # its time may have been set back
        else:
            written, indexed = tar.meta.last_modified, None if index is None else index.meta.last_modified
            if written is not None and indexed is not None and written < indexed:
                return
            self._doubtful[scan.path] = {_hash(scan), mark} - {None}

    def check(self, workers: int) -> None:
        """Raise IndexMismatchError if a shard of :meth:`records` is not as it was when it was indexed.

        A tar must be listed, be as long as the index says, and be older than its ``.tar.idx``. Headers and
        first bytes of one that may be newer, such as after copying, are compared with the index.
        """

        def compare(path: str) -> tuple[str, bool]:
            with suppress(CorruptTarError):
                scan = scan_shard(self._store, self._listed[path])
                return path, self._doubtful[path] <= {_hash(scan), shard_mark(scan)}
            return path, False

        for path, is_same in ordered_map(compare, self._doubtful, workers):
            if not is_same:
                self._changed[path] = "has other content"
        if self._changed:
            named = [f"{path} {problem}" for path, problem in self._changed.items()]
            raise IndexMismatchError(
                f"{len(named)} old shards changed: {', '.join(named[:3])}{', …' * (len(named) > 3)}",
                where=self._store.url,
                hint=f"tars can be added while the old ones stay as they are: restore them, or {_AGAIN}",
            )

    def copy_media(self, database: str, new: sqlite3.Connection) -> None:
        """Copy the media metadata of the index at a local path into an open one that has the tables."""
        with closing(connect_local(database, self._where)) as index:
            for table, columns in _MEDIA_COLUMNS.items():
                if index.has_table(table):  # other programs write no layouts
                    found = index.select(f"SELECT {columns} FROM {table}")
                    rows = ([indexed_name(v) if isinstance(v, str) else v for v in row] for row in found)
                    marks = ", ".join("?" * len(columns.split(",")))
                    new.executemany(f"INSERT OR REPLACE INTO {table} ({columns}) VALUES ({marks})", rows)

    def media_filter(self, database: str) -> MediaFilter | None:
        """Return the media filter of the index at a local path; None if it has no media."""
        with closing(connect_local(database, self._where)) as index:
            has_media = index.has_table("media_filters")
            found = [*index.select("SELECT strategy, patterns FROM media_filters")] if has_media else []
        if len(found) > 1:
            raise ConfigError(
                f"the index has the media of {len(found)} filters, so it is not clear which is for new tars",
                where=self._store.url,
                hint=_AGAIN,
            )
        for strategy, patterns in found:
            return MediaFilter(strategy, tuple(filter(None, (patterns or "").split(","))))
        return None

    def _mismatch(self, problem: str) -> IndexMismatchError:
        return IndexMismatchError(
            f"the index does not fit .info.json: {problem}", where=self._store.url, hint=_AGAIN
        )


def _hash(scan: ShardScan) -> int:
    return xxhash.xxh3_64_intdigest(encode_record(ShardRecord(replace(scan, remarks={}, head=None))))


def _of_each(rows: Iterable[tuple[Any, ...]], tars: int) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the rows of each tar; a row begins with the number of its tar, and rows are in its order."""
    groups = groupby(rows, itemgetter(0))
    number, group = next(groups, (tars, iter(())))
    for tar in range(tars):
        if tar == number:
            yield list(group)
            number, group = next(groups, (tars, iter(())))
        else:
            yield []
