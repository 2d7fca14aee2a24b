"""Builds the index of a dataset in local files, from what is known of its shards, in order."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Iterator, Sequence
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
from energon_stream.index.shard_marks import encode_marks, shard_mark
from energon_stream.index.sqlite_index import SqliteWriter
from energon_stream.prepare.media_tables import MediaReport, MediaTables
from energon_stream.storage.local import named_errors

if TYPE_CHECKING:
    from energon_stream.prepare.media_headers import MediaFilter
    from energon_stream.prepare.shard_records import ShardRecord

_PIECE = 1 << 20


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
    from their checksums. Each shard has checksums if ``checksums`` is set, and the media of the filter.
    """

    def __init__(
        self, folder: str, *, media_filter: MediaFilter | None = None, checksums: bool = False
    ) -> None:
        self.counts: dict[str, int] = {}  # number of samples by shard path, so far
        self.parts: set[str] = set()  # names of all parts
        self._paths: list[str] = []
        self._database = str(Path(folder) / "index.sqlite")
        self._offsets = Path(folder) / "offsets"
        self._starts = [0]  # entry of each shard in the file of offsets
        self._sizes = SampleSizes()
        self._marks: list[int | None] = []  # of the shards
        self._digests: list[Sequence[int]] | None = [] if checksums else None
        with _named_errors(self._database):
            self._file = self._offsets.open("wb", buffering=_PIECE)
            self._writer = SqliteWriter(self._database, self._paths)
            self._tables = MediaTables(self._writer.database, media_filter) if media_filter else None
        self._is_open = True

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

        Raises DuplicateKeyError if two samples share a key, StorageError if the local disk is full or fails.
        """
        scan = record.scan
        self._paths.append(scan.path)
        with _named_errors(str(self._offsets)):
            self._file.write(encode_offsets(scan.offsets))
        self._starts.append(self._starts[-1] + len(scan.offsets))
        self._sizes.add(scan.offsets, scan.first_names())
        self._marks.append(shard_mark(scan) if record.mark is None else record.mark)
        if self._digests is not None:
            self._digests.append(np.array(record.digests, dtype="<u8"))  # type: ignore[arg-type]
        self.counts[scan.path] = len(scan.keys)
        self.parts.update(name for _, name, _, _ in scan.parts)
        with _named_errors(self._database):
            self._writer.add(len(self._paths) - 1, scan)
            if self._tables is not None and record.media is not None:
                self._tables.add(record.media)

    def complete(self) -> BuiltIndex:
        """Complete the files. Raises the errors of :meth:`add`."""
        self._is_open = False
        info = encode_info(self.counts)
        with _named_errors(self._database):
            self._file.close()
            self._writer.__exit__(None)
            with open(self._database, "ab") as file:
                marks = encode_marks(self._marks, self._paths)
                file.write((self._sizes.encode(info, len(marks)) or b"") + marks)
            hasher = xxhash.xxh3_128()
            with open(self._database, "rb") as file:
                while piece := file.read(_PIECE):
                    hasher.update(piece)
        identity = str(uuid.UUID(bytes=hasher.digest(), version=4))
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
                self._writer.__exit__(KeyboardInterrupt)  # any error: the database is not completed
                self._file.close()


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
