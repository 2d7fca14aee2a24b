"""Records of shards: all that an index needs. They are kept in files until the dataset is published."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import astuple
from typing import Any, NamedTuple

import msgpack
import numpy as np

from energon_stream.errors import MetadataError, ObjectNotFoundError
from energon_stream.media.file_layout import FileLayout
from energon_stream.media.metadata import AVMetadata, ImageMetadata, MediaMetadataBase
from energon_stream.prepare.media_tables import FoundMedia, MediaReport
from energon_stream.storage import Store
from energon_stream.storage.in_order import ordered_map
from energon_stream.tar.scan import ShardScan
from energon_stream.urls import local_path

_RECORD = ".scan"
_DELETES = 16  # at a time
_KINDS: dict[str, type[MediaMetadataBase]] = {
    kind.metadata_type.value: kind for kind in (AVMetadata, ImageMetadata)
}


class ShardRecord(NamedTuple):
    """A shard as an index sees it."""

    scan: ShardScan  # its samples
    digests: list[int] = []  # checksum of each sample; empty if there are none
    media: FoundMedia | None = None  # its media files; None without a media filter
    mark: int | None = None  # as of ``shard_mark``, if an earlier preparation knew it


def encode_record(record: ShardRecord) -> bytes:
    """Return the bytes of a record."""
    scan = record.scan
    names = sorted({name for _, name, _, _ in scan.parts})
    number = {name: place for place, name in enumerate(names)}
    rows = np.array(
        [(sample, number[name], start, size) for sample, name, start, size in scan.parts], dtype="<i8"
    )
    content: dict[str, Any] = {
        "path": scan.path,
        "keys": scan.keys,
        "names": names,
        "offsets": np.array(scan.offsets, dtype="<i8").tobytes(),
        "parts": rows.tobytes(),
        "digests": np.array(record.digests, dtype="<u8").tobytes(),
        "remarks": scan.remarks,
        "head": scan.head,
    }
    if record.media is not None:
        found = record.media
        content["media"] = {
            name: (one.metadata_type.value, one.to_json()) for name, one in found.metadata.items()
        }
        content["layouts"] = {name: one.to_json() for name, one in found.layouts.items()}
        content["report"] = astuple(found.report)
    encoded: bytes = msgpack.packb(content, unicode_errors="surrogateescape")
    return encoded


def decode_record(data: bytes) -> ShardRecord:
    """Return the record of some bytes. Raises ValueError if they are not those of a record."""
    try:
        found = msgpack.unpackb(data, unicode_errors="surrogateescape")
        names = found["names"]
        rows = np.frombuffer(found["parts"], dtype="<i8").reshape(-1, 4).tolist()
        scan = ShardScan(
            found["path"],
            found["keys"],
            np.frombuffer(found["offsets"], dtype="<i8").tolist(),
            [(sample, names[name], start, size) for sample, name, start, size in rows],
            {oddity: (count, example) for oddity, (count, example) in found["remarks"].items()},
            head=found["head"],
        )
        digests = np.frombuffer(found["digests"], dtype="<u8").tolist()
        media: FoundMedia | None = None
        if "media" in found:
            known = {
                name: _KINDS[kind].from_dict(json.loads(text))
                for name, (kind, text) in found["media"].items()
            }
            layouts = {name: FileLayout.from_json(text) for name, text in found["layouts"].items()}
            stored, skipped, unreadable = found["report"]
            media = FoundMedia(
                known,
                {name: layout for name, layout in layouts.items() if layout is not None},
                MediaReport(stored, skipped, tuple(unreadable)),
            )
        if len(digests) not in (0, len(scan.keys)) or len(scan.keys) != len(scan.offsets) - 1:
            raise ValueError("its numbers do not agree")
    except (ValueError, KeyError, TypeError, IndexError, MetadataError, msgpack.UnpackException) as error:
        raise ValueError(f"not a shard's record: {error}") from error
    return ShardRecord(scan, digests, media)


class ShardRecords:
    """Records of shards, and notes beside them, in a folder of the dataset.

    After an interruption, the next run finds there what the last one did. ``has``, ``kept`` and ``shards``
    look among the paths of ``existing`` files.
    """

    def __init__(self, store: Store, folder: str, existing: Iterable[str] = ()) -> None:
        self._store, self._folder = store, folder
        self._existing = {path for path in existing if path.startswith(f"{folder}/")}

    def path(self, shard: str) -> str:
        """Return the path of a shard's record."""
        return f"{self._folder}/{shard}{_RECORD}"

    def shards(self) -> list[str]:
        """Return the paths of the shards that have records, sorted."""
        records = (path for path in self._existing if path.endswith(_RECORD))
        return sorted(path[len(self._folder) + 1 : -len(_RECORD)] for path in records)

    def has(self, shard: str) -> bool:
        """Return True if a shard has a record, whatever its version."""
        return self.path(shard) in self._existing

    def load(self, shard: str, version: str = "") -> ShardRecord | None:
        """Return the record of a version of a shard; None if it is damaged, of another version, or absent."""
        try:
            found = msgpack.unpackb(bytes(self._store.get(self.path(shard)).data))
            record = decode_record(found["record"]) if found["version"] == version else None
        except (ObjectNotFoundError, ValueError, KeyError, TypeError, msgpack.UnpackException):
            return None
        return record if record is not None and record.scan.path == shard else None

    def save(self, record: ShardRecord, version: str = "") -> None:
        """Write the record of a version of a shard. Raises StorageError if the store refuses it."""
        content = {"version": version, "record": encode_record(record)}
        self._store.put(self.path(record.scan.path), msgpack.packb(content))

    def keep(self, name: str, data: bytes) -> None:
        """Write a note. Raises StorageError if the store refuses it."""
        self._store.put(f"{self._folder}/{name}", data)

    def kept(self, name: str) -> bytes | None:
        """Return an earlier run's note of a name; None if there is none."""
        path = f"{self._folder}/{name}"
        return bytes(self._store.get(path).data) if path in self._existing else None

    def drop(self, name: str) -> None:
        """Remove a note."""
        self._store.delete(f"{self._folder}/{name}")

    def remove(self) -> None:
        """Remove all records and notes."""
        paths = [entry.path for entry in self._store.list(self._folder)]
        for _ in ordered_map(self._store.delete, paths, _DELETES):
            pass
        if self._store.is_local:
            shutil.rmtree(os.path.join(local_path(self._store.url), self._folder), ignore_errors=True)
