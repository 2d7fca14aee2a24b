"""LitData's chunks, through ``litdata``."""

from __future__ import annotations

import itertools
import json
import os
import pickle
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from energon_stream.errors import SourceError
from energon_stream.imports import of_extra
from energon_stream.storage.in_order import stream_object
from energon_stream.temporary_folders import temporary_folder
from energon_stream.urls import local_path
from energon_stream.write.sources.mds import INDEX, untrusted
from energon_stream.write.sources.source import (
    Row,
    Section,
    Source,
    named_source_errors,
    unchanged,
)

_KEPT = ("jpeg", "image", "video", "audio", "tifffile", "file", "bytes", "pdf", "nifti", "mesh")
"""Formats whose bytes are taken as they are."""

_NONE = {pickle.dumps(None, protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)}


@dataclass(frozen=True)
class LitDataSource(Source):
    """A folder with ``index.json`` and the chunks that it names. Remote ones are read through a local file
    each.
    """

    kind: ClassVar[str] = "litdata"

    def sections(self) -> list[Section]:
        store = self.spec.open()
        found = []
        with named_source_errors(f"{store.url}/{INDEX}"):
            index = json.loads(bytes(store.get(INDEX).data))
            config = index["config"]
            if config.get("encryption"):
                raise SourceError("its chunks are encrypted", where=store.url, hint="decrypt them first")
            if config.get("item_loader") not in (None, "PyTreeLoader"):
                raise SourceError(
                    f"its chunks are for {config['item_loader']}, and have no samples",
                    where=store.url,
                    hint="write samples from the data that the chunks were made of",
                )
            for chunk in index["chunks"]:
                name = chunk["filename"]
                version = store.head(name).etag or ""
                place = {"chunks": [chunk], "config": config, "updated_at": index.get("updated_at", "")}
                found.append(Section(name, chunk["chunk_size"], chunk["chunk_bytes"], version, 0, place))
        return found

    def rows(self, section: Section, first: int, columns: Collection[str] | None) -> Iterator[Row]:
        os.environ.setdefault("LITDATA_DISABLE_VERSION_CHECK", "1")  # it would ask the network for each chunk
        with of_extra("litdata"):
            from litdata import StreamingDataset
        with unchanged(self.spec, section) as store, temporary_folder(self.tmp_path) as temporary:
            # A folder of one chunk, so that litdata never removes what it takes for its cache.
            folder = Path(temporary, "chunks")
            (folder / section.name).parent.mkdir(parents=True)
            (folder / INDEX).write_text(json.dumps(section.place))
            if store.is_local:
                (folder / section.name).symlink_to(os.path.join(local_path(store.url), section.name))
            else:
                with open(folder / section.name, "wb") as file:
                    file.writelines(stream_object(store, section.name, etag=section.version or None))
            dataset = StreamingDataset(
                str(folder),
                cache_dir=str(folder.parent / "cache"),
                serializers=_serializers(self.trust, store.url),
            )
            for number in range(first, len(dataset)):
                yield _row(dataset[number])


def _row(item: Any) -> Row:
    if isinstance(item, Mapping):
        return {str(name): value for name, value in item.items()}
    values = item if isinstance(item, (list, tuple)) else [item]
    return {str(place): value for place, value in enumerate(values)}


def _serializers(trust: bool, where: str) -> dict[str, Any]:
    """Return readers by format: some keep the bytes as they are, and without ``trust`` some refuse."""
    from litdata.streaming.serializers import Serializer

    class Kept(Serializer):  # type: ignore[misc] # it has no types
        def serialize(self, data: Any) -> Any:
            raise NotImplementedError

        def can_serialize(self, data: Any) -> bool:
            return False

        def deserialize(self, data: Any) -> Any:
            return bytes(data)

    class KeptList(Kept):
        def deserialize(self, data: Any) -> Any:
            count = int(np.frombuffer(data, "<u4", 1)[0])
            ends = np.cumsum([4 + 4 * count, *np.frombuffer(data, "<u4", count, 4).tolist()]).tolist()
            return [bytes(data[start:stop]) for start, stop in itertools.pairwise(ends)]

    class Refused(Kept):
        def deserialize(self, data: Any) -> Any:
            if bytes(data) in _NONE:
                return None
            raise untrusted("of litdata's format 'pickle'", where)

    found: dict[str, Any] = {name: Kept() for name in _KEPT}
    found["jpeg_array"] = KeptList()
    return found if trust else {**found, "pickle": Refused(), "graph": Refused()}
