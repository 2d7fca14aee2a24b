"""Keeps what a preparation has found out, in ``.nv-staging`` beside ``.nv-meta``, until it is published.

There is a record for each shard that was scanned. It holds as long as the shard has the same size and version
and is scanned for the same things. A note says that publishing has begun.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import msgpack

from energon_stream.errors import ObjectNotFoundError
from energon_stream.index.info_files import STAGING
from energon_stream.prepare.shard_record import ShardRecord, decode_record, encode_record
from energon_stream.storage.in_order import ordered_map
from energon_stream.urls import local_path

if TYPE_CHECKING:
    from energon_stream.storage import ListEntry, Store

_RECORD = ".scan"
_NOTE = f"{STAGING}/publishing.json"
_DELETES = 16  # at a time


@dataclass(frozen=True, slots=True)
class Publishing:
    """Says that a preparation had begun to publish.

    Attributes:
        first: Number of shards that the dataset had before, if new ones were appended; None if the whole
            dataset was prepared.
    """

    first: int | None = None


class Staging:
    """The records of a dataset's shards.

    Args:
        store: Store of the dataset's root.
        existing: Paths of the files in the dataset.

    Attributes:
        publishing: The note of an earlier run that was stopped while it published; None if there is none.

    Raises:
        StorageError: The store refuses to read.
    """

    def __init__(self, store: Store, existing: Iterable[str]) -> None:
        self._store = store
        self._paths = {path for path in existing if path.startswith(f"{STAGING}/")}
        self.publishing: Publishing | None = self._note() if _NOTE in self._paths else None

    def has(self, entry: ListEntry) -> bool:
        """Return True if there may be a record of a shard."""
        return record_path(entry) in self._paths

    def load(self, entry: ListEntry, purpose: str) -> ShardRecord | None:
        """Return the record of a shard as it is listed, and scanned for a purpose; None if there is none."""
        if not self.has(entry):
            return None
        try:
            found = msgpack.unpackb(bytes(self._store.get(record_path(entry)).data))
            return decode_record(found["record"]) if found["key"] == _key(entry, purpose) else None
        except (ObjectNotFoundError, ValueError, KeyError, TypeError, msgpack.UnpackException):
            return None

    def save(self, entry: ListEntry, purpose: str, record: ShardRecord) -> None:
        """Keep a shard's record. Raises StorageError if the store refuses it."""
        content = {"key": _key(entry, purpose), "record": encode_record(record)}
        self._store.put(record_path(entry), msgpack.packb(content))

    def keep(self, name: str, data: bytes) -> None:
        """Keep some bytes under a name. Raises StorageError if the store refuses them."""
        self._store.put(f"{STAGING}/{name}", data)

    def kept(self, name: str) -> bytes | None:
        """Return the bytes that an earlier run has kept under a name; None if there are none."""
        path = f"{STAGING}/{name}"
        return bytes(self._store.get(path).data) if path in self._paths else None

    def begin_publishing(self, note: Publishing) -> None:
        """Note that publishing begins."""
        if note != self.publishing:
            self._store.put(_NOTE, json.dumps(asdict(note)).encode())

    def remove(self) -> None:
        """Remove everything, the note first: without it, what is left is not needed."""
        self._store.delete(_NOTE)
        paths = [entry.path for entry in self._store.list(STAGING)]
        for _ in ordered_map(self._store.delete, paths, _DELETES):
            pass
        if self._store.is_local:
            shutil.rmtree(os.path.join(local_path(self._store.url), STAGING), ignore_errors=True)

    def _note(self) -> Publishing | None:
        try:
            found: Mapping[str, int | None] = json.loads(bytes(self._store.get(_NOTE).data))
            return Publishing(found["first"])
        except (ObjectNotFoundError, ValueError, KeyError, TypeError):
            return None


def _key(entry: ListEntry, purpose: str) -> list[str | int]:
    meta = entry.meta
    return [purpose, meta.size, meta.etag or str(meta.last_modified)]


def record_path(entry: ListEntry) -> str:
    """Return the path of a shard's record."""
    return f"{STAGING}/{entry.path}{_RECORD}"
