"""Computes the costs of samples, shard by shard, and writes them beside the index."""

from __future__ import annotations

import json
import os
import pkgutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, fields
from functools import lru_cache, partial
from importlib import metadata
from typing import Any

import numpy as np

from energon_stream.arrays import Float64Array
from energon_stream.engine.processes import LocalEngine
from energon_stream.engine.tasks import TaskEngine
from energon_stream.errors import ConfigError, CostsError, MetadataError
from energon_stream.index.guarded_sqlite import connect_local, damaged_index
from energon_stream.index.info_files import read_info
from energon_stream.index.shard_names import check_tars
from energon_stream.index.sqlite_index import INDEX_SQLITE, sqlite_file
from energon_stream.media.metadata import AVMetadata, ImageMetadata
from energon_stream.storage import ListEntry, Store, StoreSpec
from energon_stream.tables.costs import (
    MOST,
    Costs,
    ShardMark,
    check_values,
    load_costs,
    mark_shards,
    paths_of,
    write_costs,
)
from energon_stream.tables.expressions import Expression, parse_formula
from energon_stream.tables.reading import read_column, read_file_column
from energon_stream.tools.curation.function_identity import function_identity
from energon_stream.tools.curation.map_shards import Shard
from energon_stream.urls import absolute_path, shown_url

CostFunction = Callable[[dict[str, Any]], float]
_FIELDS = tuple(
    field.name for kind in (ImageMetadata, AVMetadata) for field in fields(kind) if field.type != "str"
)
_MEDIA = """
SELECT tar_file_id, sample_index, metadata_json
FROM sample_parts JOIN samples USING (tar_file_id, sample_index)
JOIN media_metadata ON entry_key = sample_key || '.' || part_name
"""
_PREPARE = "run `energon-stream prepare-media` with a filter that finds the media of all samples"


@dataclass(frozen=True, slots=True)
class CostReport:
    """Result of :func:`compute_costs`.

    Attributes:
        samples: Samples of the dataset.
        shards: Shards of the dataset.
        computed: Shards that were read; the others had costs already.
        total: Sum of all costs.
        largest: Largest cost.

    Example:
        >>> from energon_stream import compute_costs
        >>> compute_costs("texts", "ones", values=[1] * 64).largest
        1.0
    """

    samples: int
    shards: int
    computed: int
    total: float
    largest: float


def _call_named(name: str, sample: dict[str, Any]) -> float:
    """Call a function by its name, ``package.module:function``, which each process imports for itself."""
    return float(_imported(name)(sample))


@lru_cache(maxsize=8)
def _imported(name: str) -> CostFunction:
    if ":" not in name:
        raise ConfigError(f"{name!r} is no function", hint="give package.module:function")
    if absolute_path("") not in sys.path:  # as `python -m` does, for modules of the current folder
        sys.path.insert(0, absolute_path(""))
    try:
        found: CostFunction = pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{name} cannot be imported: {error}", hint="check its name") from error
    return found


def compute_costs(
    url_or_path: str | os.PathLike[str],
    name: str,
    function: CostFunction | str | None = None,
    *,
    values: Sequence[float] | None = None,
    media: str | None = None,
    table: str | None = None,
    column: str | None = None,
    engine: TaskEngine | None = None,
    force: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    on_done: Callable[[int, int], None] | None = None,
) -> CostReport:
    """Write one number a sample, such as its tokens, beside a dataset's index, for planned packing.

    Shards that have costs of the same function already, and have not changed, are not read again. A function
    is the same if its code, defaults, closure, globals and state are. Give one of ``function``, ``values``,
    ``media``, ``table`` and ``column``; no shard is read for the last four.

    Args:
        url_or_path: The prepared dataset, local or any fsspec URL.
        name: Name of the costs: letters, digits, _ and -.
        function: Gets each sample: its key as ``__key__``, and the bytes of each part by name. Or its name,
            ``package.module:function``. A cost of 0 leaves the sample out of packs.
        values: The numbers themselves, in the order of ``.info.json``.
        media: Arithmetic over fields of :class:`ImageMetadata` or :class:`AVMetadata` in the index, such as
            ``"width * height / 196"``, with ``+ - * / //`` and parentheses. It is rounded up, and added up
            over the media files of a sample that have these fields.
        table: A Parquet file with a row a sample, in that order, local or any fsspec URL.
        column: A column of the tables that :func:`add_table` put beside the index; with ``table``, of that
            file, where None is ``name``.
        engine: Where shards are read; None for this process.
        force: Whether all shards are read again, whatever made the costs that there are.
        storage_options: Options of the file system of dataset and table, such as credentials.
        on_done: Called with the number of shards that are done, and of all that are read.

    Raises:
        ConfigError: The arguments exclude each other, the function cannot be imported, or there is no such
            field or column.
        CostsError: A number is negative or not finite, there are more or fewer than samples, or a sample has
            no media with the fields.
        IndexMismatchError: The table beside the index is older than the index.
        StorageError: The dataset cannot be reached.

    Example:
        >>> from energon_stream import compute_costs
        >>> compute_costs("captions", "bytes", lambda sample: len(sample["txt"])).computed
        8
        >>> compute_costs("captions", "bytes", values=range(64)).total
        2016.0
    """
    sources = (function, values, media, table, column if table is None else None)
    if sum(source is not None for source in sources) != 1:
        raise ConfigError(
            "costs need one source",
            hint="give one of function, values, media, table (and its column), column",
        )
    spec = StoreSpec(os.fspath(url_or_path), storage_options)
    check_tars(spec.url)
    store = spec.open()
    counts = read_info(store)
    check_tars(spec.url, counts)
    marked = mark_shards(store, counts)
    where = f"{store.url}/{paths_of(name)[0]}"
    computed = 0
    if function is not None:
        found, computed, made_by = _compute(spec, name, function, marked, force, engine, on_done)
    elif values is not None:
        found, made_by = np.asarray(values), "values"
    elif media is not None:
        found, made_by = _media_values(store, counts, parse_formula(media)), f"media:{media}"
    elif table is not None:
        found = read_file_column(StoreSpec(table, storage_options), column or name)
        made_by = f"table:{column or name}"
    else:
        assert column is not None
        found, made_by = read_column(spec, column), f"column:{column}"
    found = check_values(found, where)
    if len(found) != sum(counts.values()):
        raise CostsError(
            f"{len(found)} costs for {sum(counts.values())} samples",
            where=where,
            hint="give one number for each sample",
        )
    if not (found % 1).any():
        found = found.astype(np.int64)
    write_costs(store, name, found, [mark for mark, _ in marked], made_by, _library())
    return CostReport(len(found), len(marked), computed, float(found.sum()), float(found.max(initial=0)))


def _compute(
    spec: StoreSpec,
    name: str,
    function: CostFunction | str,
    marked: Sequence[tuple[ShardMark, ListEntry]],
    force: bool,
    engine: TaskEngine | None,
    on_done: Callable[[int, int], None] | None,
) -> tuple[Costs, int, str]:
    """Return the costs that a function gives, the number of shards that were read, and the function's name.

    Shards that have costs of that function are not read.
    """
    if isinstance(function, str):
        made_by = function_identity(_imported(function))  # fails before processes begin
        call: CostFunction = partial(_call_named, function)
    else:
        call, made_by = function, function_identity(function)
    kept: dict[str, Any] = {}
    try:
        saved = None if force else load_costs(spec.open(), name)
    except CostsError:
        saved = None
    if saved is not None and saved.made_by == made_by:
        ends = np.cumsum([mark.count for mark in saved.marks])
        now = {mark.path: mark for mark, _ in marked}
        for old, part in zip(saved.marks, np.split(saved.values, ends[:-1]), strict=True):
            if old.path in now and saved.fits(old, now[old.path]):
                kept[old.path] = part
    tasks = [entry for mark, entry in marked if mark.path not in kept]
    run = partial(_of_shard, spec, call)
    results = (engine or LocalEngine(0)).map(run, tasks, in_order=True, on_done=on_done)
    kept.update(zip([entry.path for entry in tasks], results, strict=True))
    for mark, _ in marked:
        if len(kept[mark.path]) != mark.count:
            raise CostsError(
                f"{mark.path} has {len(kept[mark.path])} samples, and its index {mark.count}",
                where=spec.url,
                hint="run `energon-stream prepare` again",
            )
    found = np.concatenate([kept[mark.path] for mark, _ in marked])
    return found.astype(np.float64), len(tasks), made_by


def _library() -> str:
    try:
        return metadata.version("energon-stream")
    except metadata.PackageNotFoundError:
        return "unknown"


def _of_shard(spec: StoreSpec, function: CostFunction, entry: ListEntry) -> Any:
    """Return the costs of the samples of a shard."""
    shard = Shard(spec.open(), entry)
    return np.array(
        [_of_sample(spec, shard, function, sample) for sample in shard.samples()], dtype=np.float64
    )


def _of_sample(spec: StoreSpec, shard: Shard, function: CostFunction, sample: dict[str, Any]) -> float:
    cause: Exception | None = None
    try:
        if 0 <= (cost := float(function(sample))) < MOST:
            return cost
        what = f"the cost of a sample is {cost}"
    except Exception as error:
        what, cause = f"the cost of a sample cannot be computed: {error!r:.200}", error
    raise CostsError(
        what,
        where=f"{shown_url(spec.url)}, {shard.path}, {sample['__key__']}",
        hint="let the function return a number from 0 on below 2**53, for this sample, too",
    ) from cause


def _media_values(store: Store, counts: Mapping[str, int], formula: Expression) -> Float64Array:
    """Return the value of a formula over fields of media for each sample, in the order of ``.info.json``.

    The values of the media files that have all its fields are rounded up, and added up for each sample.
    """
    unknown = [name for name in formula.names if name not in _FIELDS]
    if unknown:
        raise ConfigError(
            f"media have no number {unknown[0]!r}", where=formula.text, hint=f"use {', '.join(_FIELDS)}"
        )
    first = np.concatenate([[0], np.cumsum(list(counts.values()), dtype=np.int64)])
    samples, rows = list[int](), list[list[float]]()
    shards, where = list(counts.values()), f"{store.url}/{INDEX_SQLITE}"
    with sqlite_file(store) as path, closing(connect_local(path, where)) as index:
        if not index.has_table("media_metadata"):
            raise CostsError("the index has no media metadata", where=store.url, hint=_PREPARE)
        try:
            for shard, number, text in index.select(_MEDIA):
                if shard >= len(shards) or number >= shards[shard]:
                    raise damaged_index(where, f"it has sample {number} of tar {shard}")
                known = json.loads(text)
                if all(known.get(name) is not None for name in formula.names):
                    samples.append(int(first[shard]) + number)
                    rows.append([float(known[name]) for name in formula.names])
        except MetadataError:
            raise
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise MetadataError(f"the media metadata cannot be used: {error}", where=where) from error
    at = np.array(samples, dtype=np.int64)
    missing = np.flatnonzero(np.bincount(at, minlength=int(first[-1])) == 0)
    if len(missing):
        names = ", ".join(formula.names)
        problem = f"{len(missing)} samples have no media with {names}; sample {missing[0]} is the first"
        raise CostsError(problem, where=store.url, hint=_PREPARE)
    values = np.array(rows, dtype=np.float64).reshape(-1, len(formula.names)).T
    each = np.ceil(formula.evaluate(dict(zip(formula.names, values, strict=True))))
    return np.bincount(at, weights=each, minlength=int(first[-1])).astype(np.float64)
