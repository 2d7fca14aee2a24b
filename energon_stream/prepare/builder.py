"""Builds the index of a dataset in local files, from what is known of its shards, in order."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from energon_stream.errors import StorageError
from energon_stream.index.checksums import encode_checksums
from energon_stream.index.index_files import ENTRY_BYTES, encode_offsets
from energon_stream.index.info_files import encode_info
from energon_stream.index.sample_sizes import SampleSizes
from energon_stream.index.sqlite_index import SqliteWriter
from energon_stream.prepare.media_tables import MediaReport, MediaTables
from energon_stream.prepare.shard_record import ShardSummary
from energon_stream.prepare.sharded_index import ShardGroup, build_index
from energon_stream.storage.local import named_errors

if TYPE_CHECKING:
    from energon_stream.engine.tasks import TaskEngine
    from energon_stream.prepare.media_headers import MediaFilter
    from energon_stream.prepare.shard_record import ShardRecord
    from energon_stream.tar.scan import ShardScan

_PIECE = 1 << 20
_GROUP_SAMPLES = 500_000
"""Samples of a piece of the index that one process writes."""


@dataclass(frozen=True, slots=True)
class BuiltIndex:
    """The index of a dataset, complete and not yet published."""

    counts: dict[str, int]  # number of samples by shard path, in order
    info: bytes  # content of ``.info.json``
    database: str  # local path of ``index.sqlite``
    checksums: bytes | None  # content of the checksums; None if there are none
    identity: str  # content of ``index.uuid``: the same for the same index


class IndexBuilder:
    """Collects the shards of a dataset, in order, in files in a local folder.

    Use it as a context; leaving it drops what was not completed. Memory does not grow with the samples, apart
    from their checksums.

    Args:
        folder: Local folder.
        media_filter: Filter whose media the shards have; None for none.
        checksums: Whether the shards have checksums.

    Attributes:
        counts: Number of samples by shard path, so far.
        parts: Names of all parts.
    """

    def __init__(
        self, folder: str, *, media_filter: MediaFilter | None = None, checksums: bool = False
    ) -> None:
        self.counts: dict[str, int] = {}
        self.parts: set[str] = set()
        self._paths: list[str] = []
        self._database = str(Path(folder) / "index.sqlite")
        self._offsets = Path(folder) / "offsets"
        self._starts = [0]  # entry of each shard in the file of offsets
        self._sizes = SampleSizes()
        self._digests: list[Sequence[int]] | None = [] if checksums else None
        with _named_errors(self._database):
            self._file = self._offsets.open("wb", buffering=_PIECE)
            self._writer = SqliteWriter(self._database, self._paths)
            self._tables = MediaTables(self._writer.database, media_filter) if media_filter else None
        self._is_open, self._is_written = True, False

    @property
    def media(self) -> MediaReport | None:
        """Outcome of the media filter so far; None without one."""
        return None if self._tables is None else self._tables.report

    @property
    def connection(self) -> sqlite3.Connection:
        """The database that is being written."""
        return self._writer.database

    def add(self, record: ShardRecord) -> None:
        """Add the next shard.

        Raises:
            DuplicateKeyError: Two samples share a key.
            StorageError: The local disk is full, or fails.
        """
        scan = record.scan
        self._note(ShardSummary.of(record))
        with _named_errors(self._database):
            self._writer.add(len(self._paths) - 1, scan)
            if self._tables is not None and record.media is not None:
                self._tables.add(record.media)

    def add_all(
        self,
        shards: Iterable[ShardSummary],
        load: Callable[[int, int], Callable[[], Iterable[ShardScan]]],
        engine: TaskEngine,
    ) -> None:
        """Add all shards of an index at once. The processes of an engine write the rows.

        Args:
            shards: All shards, in order.
            load: Returns what loads the scans of the shards from one number up to another, in a process of
                the engine.
            engine: Its processes must see the folder of the index.

        Raises:
            DuplicateKeyError: Two samples share a key.
            StorageError: The local disk is full, or fails.
        """
        begins: list[tuple[int, int, int]] = []  # numbers of shards, samples and parts before each group
        samples = parts = 0
        for number, shard in enumerate(shards):
            if not begins or samples - begins[-1][1] >= _GROUP_SAMPLES:
                begins.append((number, samples, parts))
            self._note(shard)
            samples, parts = samples + len(shard.offsets) - 1, parts + shard.parts
        stops = [first for first, _, _ in begins[1:]] + [len(self._paths)]
        groups = [ShardGroup(load(begin[0], stop), *begin) for begin, stop in zip(begins, stops, strict=True)]
        with _named_errors(self._database):
            self._writer.__exit__(KeyboardInterrupt)  # the database is replaced
            self._is_written = True
            build_index(self._database, self._paths, groups, engine, str(Path(self._database).parent))

    def _note(self, shard: ShardSummary) -> None:
        self._paths.append(shard.path)
        with _named_errors(str(self._offsets)):
            self._file.write(encode_offsets(shard.offsets))
        self._starts.append(self._starts[-1] + len(shard.offsets))
        self._sizes.add(shard.offsets, shard.names)
        if self._digests is not None:
            self._digests.append(np.array(shard.digests, dtype="<u8"))  # type: ignore[arg-type]
        self.counts[shard.path] = len(shard.offsets) - 1
        self.parts.update(shard.part_names)

    def complete(self) -> BuiltIndex:
        """Complete the files. Raises the errors of :meth:`add`."""
        self._is_open = False
        info = encode_info(self.counts)
        with _named_errors(self._database):
            self._file.close()
            if not self._is_written:
                self._writer.__exit__(None)
            with open(self._database, "ab") as file:
                file.write(self._sizes.encode(info) or b"")
            identity = _identity(self._database)
        checksums = None if self._digests is None else encode_checksums(self._digests, info)
        return BuiltIndex(self.counts, info, self._database, checksums, identity)

    def offset_files(self) -> Iterator[tuple[str, bytes]]:
        """Yield the path of each shard, and the content of its ``.tar.idx``. Complete the files before."""
        with _named_errors(str(self._offsets)), self._offsets.open("rb") as file:
            for path, (first, stop) in zip(self._paths, pairwise(self._starts), strict=True):
                yield path, file.read((stop - first) * ENTRY_BYTES)

    def __enter__(self) -> IndexBuilder:
        return self

    def __exit__(self, *error: object) -> None:
        if self._is_open:
            self._is_open = False
            with _named_errors(self._database):
                if not self._is_written:
                    self._writer.__exit__(KeyboardInterrupt)  # any error: the database is not completed
                self._file.close()


def _identity(path: str) -> str:
    """Return a UUID that is made of a file's content."""
    hasher = xxhash.xxh3_128()
    with open(path, "rb") as file:
        while piece := file.read(_PIECE):
            hasher.update(piece)
    return str(uuid.UUID(bytes=hasher.digest(), version=4))


@contextmanager
def _named_errors(path: str) -> Iterator[None]:
    """Raise this library's errors for those of the local disk, and of SQLite on it."""
    try:
        with named_errors(path):
            yield
    except sqlite3.IntegrityError:
        raise
    except sqlite3.OperationalError as error:
        is_full = "disk is full" in str(error)
        raise StorageError(
            f"writing the index failed: {error}",
            where=path,
            hint="free some space, or name another folder with tmp_path=" if is_full else None,
        ) from error
