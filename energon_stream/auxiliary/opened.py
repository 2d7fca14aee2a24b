"""A prepared dataset whose parts are read by name: its index, and the shards that the index points into."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from energon_stream.errors import NotPreparedError, ObjectNotFoundError
from energon_stream.index.database import IndexDatabase, index_database
from energon_stream.index.info_files import INFO_JSON, read_info
from energon_stream.index.objects import ShardObject, VersionGuard
from energon_stream.index.sqlite_index import INDEX_SQLITE
from energon_stream.media import open_once
from energon_stream.storage import ByteRange, Store, StoreSpec


class Place(NamedTuple):
    """Bytes of a shard."""

    shard: ShardObject
    bytes: ByteRange


class OpenedDataset:
    """A prepared dataset in one process.

    Args:
        spec: The dataset.
        purpose: What needs a prepared dataset, for messages.
        hint: More that the user may do, for messages.

    Attributes:
        database: Its ``index.sqlite``.

    Raises:
        NotPreparedError: The dataset has no index.
        StorageError: The store did not deliver.
    """

    def __init__(self, spec: StoreSpec, purpose: str, hint: str = "") -> None:
        self.store: Store = open_once(spec)
        missing = INFO_JSON
        try:
            self._shards = list(read_info(self.store))
            missing = INDEX_SQLITE
            self.database: IndexDatabase = index_database(spec)
        except ObjectNotFoundError as error:
            raise NotPreparedError(
                f"{missing} not found; {purpose}",
                where=self.store.url,
                hint=f"run `energon-stream prepare {self.store.url}`{hint}",
            ) from error
        self._versions = VersionGuard(self.store.url)

    def place(self, row: Sequence[Any]) -> Place:
        """Return the place that a row of shard number, first byte and size names.

        Raises MetadataError if the columns have a wrong type, or the shard does not exist.
        """
        if all(type(value) is int for value in row):
            shard, start, size = row
            if 0 <= shard < len(self._shards) and start >= 0 and size >= 0:
                found = ShardObject(self.store, self._shards[shard], self._versions)
                return Place(found, ByteRange(start, start + size))
        raise self.database.damaged(
            f"shard {row[0]!r:.40}, byte {row[1]!r:.40} and size {row[2]!r:.40} are no place"
        )
