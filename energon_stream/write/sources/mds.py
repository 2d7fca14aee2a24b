"""MosaicML's MDS shards, through ``mosaicml-streaming``."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from energon_stream.errors import SourceError, UntrustedPickleError
from energon_stream.imports import of_extra
from energon_stream.storage import Store
from energon_stream.storage.in_order import stream_object
from energon_stream.temporary_folders import temporary_folder
from energon_stream.urls import local_path
from energon_stream.write.sources.source import (
    Row,
    Section,
    Source,
    named_source_errors,
    unchanged,
)

INDEX = "index.json"
_KEPT = ("jpeg", "png", "bytes")  # encodings whose bytes are taken as they are
_PICKLE = "pkl"


@dataclass(frozen=True)
class MdsSource(Source):
    """A folder with ``index.json`` and the shards that it names. Remote and compressed ones are read through
    a local file each.
    """

    kind: ClassVar[str] = "mds"

    def sections(self) -> list[Section]:
        store = self.spec.open()
        found = []
        with named_source_errors(f"{store.url}/{INDEX}"):
            for shard in json.loads(bytes(store.get(INDEX).data))["shards"]:
                self._check(shard, store.url)
                file = shard["zip_data"] or shard["raw_data"]
                version = store.head(file["basename"]).etag or ""
                size = shard["raw_data"]["bytes"]
                found.append(Section(file["basename"], shard["samples"], size, version, 0, shard))
        return found

    def rows(self, section: Section, first: int, columns: Collection[str] | None) -> Iterator[Row]:
        with of_extra("mds"):
            from streaming.base.compression import decompress
            from streaming.base.format import reader_from_json
            from streaming.base.format.mds.encodings import mds_decode
        shard = section.place
        with unchanged(self.spec, section) as store, ExitStack() as stack:
            folder = local_path(store.url) if store.is_local else ""
            if not folder or shard["zip_data"]:
                folder = stack.enter_context(temporary_folder(self.tmp_path))
                _fetch(store, section, Path(folder), decompress)
            reader = reader_from_json(folder, "", shard)
            about = (shard[f"column_{what}"] for what in ("names", "encodings", "sizes"))
            kinds = list(zip(*about, strict=True))
            for number in range(first, shard["samples"]):
                yield _decode(reader.get_sample_data(number), kinds, columns, mds_decode)

    def _check(self, shard: Mapping[str, Any], where: str) -> None:
        if shard["format"] != "mds":
            raise SourceError(
                f"its shards have the format {shard['format']!r}, not mds",
                where=where,
                hint="convert the folder of CSV or JSONL files itself, with kind='csv' or 'jsonl'",
            )
        for name, kind in zip(shard["column_names"], shard["column_encodings"], strict=True):
            if kind == _PICKLE and not self.trust:
                raise untrusted(name, where)


def untrusted(column: str, where: str) -> UntrustedPickleError:
    """Return the error for a column of pickles."""
    return UntrustedPickleError(
        f"the column {column!r} has pickles, which can run any code",
        where=where,
        hint="if you trust who wrote them, give trust=True",
    )


def _fetch(store: Store, section: Section, folder: Path, decompress: Any) -> None:
    """Write a shard to a local folder, decompressed."""
    shard = section.place
    target = folder / shard["raw_data"]["basename"]
    target.parent.mkdir(parents=True, exist_ok=True)
    pieces = stream_object(store, section.name, etag=section.version or None)
    if shard["zip_data"]:
        target.write_bytes(decompress(shard["compression"], b"".join(pieces)))
        return
    with open(target, "wb") as file:
        file.writelines(pieces)


def _decode(
    data: bytes, kinds: list[tuple[str, str, int | None]], columns: Collection[str] | None, decode: Any
) -> Row:
    """Return a sample, but the bytes of images as they are: the sizes of columns, then their bytes."""
    lengths = sum(not size for _, _, size in kinds)
    found = iter(np.frombuffer(data, "<u4", lengths).tolist())
    position, row = 4 * lengths, {}
    for name, kind, fixed in kinds:
        size = fixed or next(found)
        content = data[position : position + size]
        if len(content) != size:
            raise SourceError("a sample is cut off", hint="compare the shard with its original")
        position += size
        if columns is None or name in columns:
            row[name] = content if kind in _KEPT else decode(kind, content)
    return row
