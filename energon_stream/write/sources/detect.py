"""Finds out what a source is, and opens it."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from energon_stream.errors import ConfigError, ObjectNotFoundError, SourceError

if TYPE_CHECKING:
    from energon_stream.storage import Store, StoreSpec
    from energon_stream.write.sources.source import Source

KINDS: Mapping[str, str] = {
    "mds": "mds.MdsSource",
    "litdata": "litdata.LitDataSource",
    "parquet": "parquet.ParquetSource",
    "huggingface": "huggingface.HuggingFaceSource",
    "folder": "folder.FolderSource",
    "csv": "text.TextSource",
    "jsonl": "text.TextSource",
    "json": "text.JsonSource",
}
"""Classes of sources by the name of their format; a class is imported when it is used."""


def open_source(spec: StoreSpec, kind: str | None = None, **options: Any) -> Source:
    """Return the source that a folder or file is, or a name on Hugging Face's hub.

    The kind is one of :data:`KINDS`; None to find out by the suffix, or by the files in the folder. The
    options are fields of :class:`Source`. Raises ConfigError if there is no such format.
    """
    kind = kind or find_kind(spec)
    if kind not in KINDS:
        raise ConfigError(f"there is no format {kind!r:.40}", hint=f"use one of {', '.join(KINDS)}")
    module, _, name = KINDS[kind].partition(".")
    source: type[Source] = getattr(importlib.import_module(f"{__package__}.{module}"), name)
    return source(spec, **options)


def find_kind(spec: StoreSpec) -> str:
    """Return the format of a source. A folder is listed. Raises SourceError if it is empty."""
    from energon_stream.write.sources import huggingface, mds, parquet, text

    url = spec.url
    if url.startswith(huggingface.SCHEME):
        return "huggingface"
    for suffixes, kind in (
        (parquet.SUFFIXES, "parquet"),
        (text.SUFFIXES, "csv"),
        (text.JSON_SUFFIXES, "json"),
    ):
        if url.lower().endswith(suffixes):
            return kind
    store = spec.open()
    paths = [entry.path for entry in store.list()]
    if not paths:
        with suppress(ObjectNotFoundError):
            store.head("")
            raise SourceError(
                "it is a file of a format that is not read",
                where=store.url,
                hint="read are .parquet, .csv, .tsv, .json, .jsonl and .ndjson: unpack an archive, and name the "
                "folder of a picture or recording",
            )
        raise SourceError(
            "there is no such folder, or it is empty",
            where=store.url,
            hint="check the path; for a dataset on Hugging Face's hub write hf://datasets/OWNER/NAME",
        )
    if mds.INDEX in paths and (found := _by_index(store)):
        return found
    if any(path in huggingface.SAVED for path in paths):
        return "huggingface"
    if any(path.endswith(".tar") for path in paths):
        raise SourceError(
            "the folder has tars, which need no conversion",
            where=store.url,
            hint="index them with `energon-stream prepare`",
        )
    tops = [path for path in paths if "/" not in path]
    if any(path.lower().endswith(parquet.SUFFIXES) for path in paths):
        return "parquet"
    return "csv" if any(path.lower().endswith(text.SUFFIXES) for path in tops) else "folder"


def _by_index(store: Store) -> str | None:
    from energon_stream.write.sources import mds

    try:
        index = json.loads(bytes(store.get(mds.INDEX).data))
    except ValueError:
        return None
    if not isinstance(index, dict):
        return None
    return "mds" if "shards" in index else "litdata" if "chunks" in index else None
