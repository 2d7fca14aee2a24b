"""Encodes what an index must know of one shard: the bytes are kept until the dataset is published."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import astuple
from typing import Any, NamedTuple

import msgpack
import numpy as np

from energon_stream.errors import MetadataError
from energon_stream.media.file_layout import FileLayout
from energon_stream.media.metadata import AVMetadata, ImageMetadata, MediaMetadataBase
from energon_stream.prepare.media_tables import FoundMedia, MediaReport
from energon_stream.tar.scan import ShardScan

_KINDS: dict[str, type[MediaMetadataBase]] = {
    kind.metadata_type.value: kind for kind in (AVMetadata, ImageMetadata)
}


class ShardRecord(NamedTuple):
    """A shard as an index sees it."""

    scan: ShardScan  # its samples
    digests: list[int] = []  # checksum of each sample; empty if there are none
    media: FoundMedia | None = None  # its media files; None without a media filter


class ShardSummary(NamedTuple):
    """Content of an index for one shard, without the rows of its samples and parts."""

    path: str
    offsets: list[int]  # content of ``.tar.idx``
    digests: list[int]  # checksum of each sample; empty if there are none
    names: list[str]  # name of each sample's first part
    parts: int  # number of parts of all samples
    part_names: frozenset[str]

    @classmethod
    def of(cls, record: ShardRecord) -> ShardSummary:
        """Return the summary of a record."""
        scan = record.scan
        names = frozenset(part for _, part, _, _ in scan.parts)
        return cls(scan.path, scan.offsets, record.digests, scan.first_names(), len(scan.parts), names)


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
    }
    if record.media is not None:
        found = record.media
        content["media"] = {
            name: (one.metadata_type.value, one.to_json()) for name, one in found.metadata.items()
        }
        content["layouts"] = {name: one.to_json() for name, one in found.layouts.items()}
        content["report"] = astuple(found.report)
    encoded: bytes = msgpack.packb(content)
    return encoded


def decode_record(data: bytes) -> ShardRecord:
    """Return the record of some bytes.

    Raises:
        ValueError: They are not those of a record.
    """
    try:
        found = msgpack.unpackb(data)
        names = found["names"]
        rows = np.frombuffer(found["parts"], dtype="<i8").reshape(-1, 4).tolist()
        scan = ShardScan(
            found["path"],
            found["keys"],
            np.frombuffer(found["offsets"], dtype="<i8").tolist(),
            [(sample, names[name], start, size) for sample, name, start, size in rows],
        )
        digests = np.frombuffer(found["digests"], dtype="<u8").tolist()
        media = _media(found) if "media" in found else None
        if len(digests) not in (0, len(scan.keys)) or len(scan.keys) != len(scan.offsets) - 1:
            raise ValueError("its numbers do not agree")
    except (ValueError, KeyError, TypeError, IndexError, MetadataError, msgpack.UnpackException) as error:
        raise ValueError(f"not a shard's record: {error}") from error
    return ShardRecord(scan, digests, media)


def _media(content: Mapping[str, Any]) -> FoundMedia:
    known = {
        name: _KINDS[kind].from_dict(json.loads(text)) for name, (kind, text) in content["media"].items()
    }
    layouts = {name: FileLayout.from_json(text) for name, text in content["layouts"].items()}
    stored, skipped, unreadable = content["report"]
    report = MediaReport(stored, skipped, tuple(unreadable))
    return FoundMedia(known, {name: layout for name, layout in layouts.items() if layout is not None}, report)
