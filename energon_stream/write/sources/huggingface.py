"""Datasets of Hugging Face, saved to a folder or from the hub, through ``datasets``."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import xxhash

from energon_stream.errors import ConfigError
from energon_stream.imports import of_extra
from energon_stream.urls import is_local, local_path
from energon_stream.write.sources.parquet import BATCH_ROWS, table_rows
from energon_stream.write.sources.source import (
    OF_SOME,
    Row,
    Section,
    Source,
    changed,
    named_source_errors,
)

_ROWS = 2000
_BYTES = 64 << 20
SAVED = ("dataset_dict.json", "state.json")
SCHEME = "hf://datasets/"


@dataclass(frozen=True)
class HuggingFaceSource(Source):
    """A folder of ``save_to_disk``, or the name of a dataset, with ``hf://datasets/`` in front or not.

    A named one is streamed: its rows are not counted before they are read.
    """

    kind: ClassVar[str] = "huggingface"
    takes: ClassVar[tuple[str, ...]] = OF_SOME

    def sections(self) -> list[Section]:
        dataset = _open(self)
        if not hasattr(dataset, "data"):  # it streams
            info, count = dataset.info, dataset.num_shards
            version = f"{getattr(info, 'version', None)}-{info.dataset_size}-{count}"
            names = [f"{self.spec.url}, shard {number}" for number in range(count)]
            return [Section(name, None, 0, version, 0, number) for number, name in enumerate(names)]
        rows, version = len(dataset), _version(dataset)
        size = dataset.data.nbytes / max(rows, 1)
        step = max(1, min(_ROWS, int(_BYTES / max(size, 1))))
        name = os.path.basename(self.spec.url.rstrip("/"))
        return [
            Section(name, min(step, rows - begin), int(size * min(step, rows - begin)), version, begin)
            for begin in range(0, rows, step)
        ]

    def rows(self, section: Section, first: int, columns: Collection[str] | None) -> Iterator[Row]:
        with named_source_errors(f"{self.spec.url}, {section.name}"):
            dataset = _open(self)
            if section.place is None:
                begin, end = section.first_row + first, section.first_row + (section.rows or 0)
                part = dataset.select(range(begin, end))
            else:
                part = dataset.shard(num_shards=dataset.num_shards, index=section.place).skip(first)
            if columns is not None and part.column_names is not None:
                part = part.select_columns([name for name in part.column_names if name in columns])
            for batch in part.with_format("arrow").iter(BATCH_ROWS):
                yield from table_rows(batch)
            if section.place is None and _version(dataset) != section.version:
                raise changed(self.spec.url)

    def hints(self) -> Mapping[str, str]:
        features = _open(self).features or {}
        return {name: "cls" for name, kind in features.items() if type(kind).__name__ == "ClassLabel"}


@lru_cache(maxsize=2)
def _open(source: HuggingFaceSource) -> Any:
    with of_extra("huggingface"):
        import datasets
    url, split = source.spec.url, source.split
    options = dict(source.spec.storage_options or {})
    with named_source_errors(url):
        if not url.startswith(SCHEME) and any(entry.path in SAVED for entry in source.spec.open().list()):
            found = datasets.load_from_disk(
                local_path(url) if is_local(url) else url, storage_options=options or None
            )
        else:
            name = url.removeprefix(SCHEME)
            found = datasets.load_dataset(
                name, source.config, split=split, streaming=True, trust_remote_code=None
            )
        if not isinstance(found, dict):
            return found
        if split is None and len(found) == 1:
            return next(iter(found.values()))
        if split not in found:
            raise ConfigError(
                f"the dataset has the splits {', '.join(found)}" if split is None else f"no split {split!r}",
                where=url,
                hint=f"name one of {', '.join(found)} by split=",
            )
        return found[split]


def _version(dataset: Any) -> str:
    """Return the version of a saved dataset: its fingerprint, and what the system knows of its files."""
    files = [os.stat(file["filename"]) for file in dataset.cache_files]
    known = [(status.st_ino, status.st_size, status.st_mtime_ns) for status in files]
    return xxhash.xxh3_64_hexdigest(repr((dataset._fingerprint, known)).encode())
