"""A number for each sample from the metadata of its media, as ``index.sqlite`` has it."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import fields
from typing import TYPE_CHECKING

import numpy as np

from energon_stream.errors import ConfigError, CostsError, MetadataError
from energon_stream.index.sqlite_index import INDEX_SQLITE, sqlite_file
from energon_stream.media.metadata import AVMetadata, ImageMetadata

if TYPE_CHECKING:
    from collections.abc import Mapping

    from energon_stream.arrays import Float64Array
    from energon_stream.storage import Store
    from energon_stream.tables.expressions import Expression

_FIELDS = tuple(
    field.name for kind in (ImageMetadata, AVMetadata) for field in fields(kind) if field.type != "str"
)
_MEDIA = """
SELECT tar_file_id, sample_index, metadata_json
FROM sample_parts JOIN samples USING (tar_file_id, sample_index)
JOIN media_metadata ON entry_key = sample_key || '.' || part_name
"""
_PREPARE = "run `energon-stream prepare-media` with a filter that finds the media of all samples"


def media_values(store: Store, counts: Mapping[str, int], formula: Expression) -> Float64Array:
    """Return the value of a formula for each sample, in the order of ``.info.json``.

    The values of the media files that have all its fields are rounded up, and added up for each sample.

    Args:
        store: The dataset.
        counts: Number of samples of each shard.
        formula: Names fields of :class:`ImageMetadata` and :class:`AVMetadata`.

    Raises:
        ConfigError: The formula names no such field.
        CostsError: A sample has no media with these fields.
        MetadataError: The index is damaged.
    """
    unknown = [name for name in formula.names if name not in _FIELDS]
    if unknown:
        raise ConfigError(
            f"media have no number {unknown[0]!r}", where=formula.text, hint=f"use {', '.join(_FIELDS)}"
        )
    first = np.concatenate([[0], np.cumsum(list(counts.values()), dtype=np.int64)])
    samples, rows = list[int](), list[list[float]]()
    with sqlite_file(store) as path, closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as index:
        if not index.execute("SELECT 1 FROM sqlite_master WHERE name = 'media_metadata'").fetchone():
            raise CostsError("the index has no media metadata", where=store.url, hint=_PREPARE)
        try:
            for shard, number, text in index.execute(_MEDIA):
                known = json.loads(text)
                if all(known.get(name) is not None for name in formula.names):
                    samples.append(int(first[shard]) + number)
                    rows.append([float(known[name]) for name in formula.names])
        except (sqlite3.DatabaseError, ValueError, TypeError, AttributeError, IndexError) as error:
            where = f"{store.url}/{INDEX_SQLITE}"
            raise MetadataError(f"the media metadata cannot be used: {error}", where=where) from error
    at = np.array(samples, dtype=np.int64)
    if len(at) and at.max() >= first[-1]:
        raise MetadataError(
            "index.sqlite has more samples than .info.json",
            where=store.url,
            hint="run `energon-stream prepare` again",
        )
    missing = np.flatnonzero(np.bincount(at, minlength=int(first[-1])) == 0)
    if len(missing):
        raise CostsError(
            f"{len(missing)} samples have no media with {', '.join(formula.names)}; sample {missing[0]} is the first",
            where=store.url,
            hint=_PREPARE,
        )
    values = np.array(rows, dtype=np.float64).reshape(-1, len(formula.names)).T
    each = np.ceil(formula.evaluate(dict(zip(formula.names, values, strict=True))))
    return np.bincount(at, weights=each, minlength=int(first[-1])).astype(np.float64)
