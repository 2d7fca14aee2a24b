"""Computes the costs of samples, shard by shard, and writes them beside the index."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib import metadata
from typing import TYPE_CHECKING, Any

import numpy as np

from energon_stream.engine.local import LocalEngine
from energon_stream.errors import ConfigError, CostsError, MissingPackageError
from energon_stream.index.costs import check_values, load_costs, mark_shards, paths_of, write_costs
from energon_stream.index.metadata import read_info
from energon_stream.shaping.map_shards import Shard
from energon_stream.storage import ListEntry, StoreSpec

if TYPE_CHECKING:
    from energon_stream.engine.base import TaskEngine

CostFunction = Callable[[dict[str, Any]], float]


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


@dataclass(frozen=True, slots=True)
class NamedFunction:
    """A function by its name, ``package.module:function``; imported where it is called."""

    name: str

    def __call__(self, sample: dict[str, Any]) -> float:
        """Call it."""
        return float(_imported(self.name)(sample))


@lru_cache(maxsize=8)
def _imported(name: str) -> CostFunction:
    module, colon, function = name.partition(":")
    if not colon:
        raise ConfigError(f"{name!r} is no function", hint="give package.module:function")
    if os.getcwd() not in sys.path:  # as `python -m` does, for modules of the current folder
        sys.path.insert(0, os.getcwd())
    try:
        found: CostFunction = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{name} cannot be imported: {error}", hint="check its name") from error
    return found


def compute_costs(
    url_or_path: str,
    name: str,
    function: CostFunction | str | None = None,
    *,
    values: Sequence[float] | None = None,
    table: str | None = None,
    column: str | None = None,
    engine: TaskEngine | None = None,
    force: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    on_done: Callable[[int, int], None] | None = None,
) -> CostReport:
    """Write one number a sample, such as its tokens, beside a dataset's index, for planned packing.

    Shards that have costs of the same function already, and have not changed, are not read again. Give one of
    ``function``, ``values`` and ``table``.

    Args:
        url_or_path: The prepared dataset, local or any fsspec URL.
        name: Name of the costs: letters, digits, _ and -.
        function: Gets each sample: its key as ``__key__``, and the bytes of each part by name. Or its name,
            ``package.module:function``. A cost of 0 leaves the sample out of packs.
        values: The numbers themselves, in the order of ``.info.json``.
        table: A Parquet file with a row a sample, in that order.
        column: The column of the table; None for ``name``.
        engine: Where shards are read; None for this process.
        force: Whether all shards are read again, whatever made the costs that there are.
        storage_options: Credentials and the like for the URL's file system.
        on_done: Called with the number of shards that are done, and of all that are read.

    Raises:
        ConfigError: The arguments exclude each other, or the function cannot be imported.
        CostsError: A number is negative or not finite, or there are more or fewer than samples.
        StorageError: The dataset cannot be reached.

    Example:
        >>> from energon_stream import compute_costs
        >>> compute_costs("captions", "bytes", lambda sample: len(sample["txt"])).computed
        8
        >>> compute_costs("captions", "bytes", values=range(64)).total
        2016.0
    """
    if sum(given is not None for given in (function, values, table)) != 1:
        raise ConfigError("costs need one source", hint="give one of function, values and table")
    spec = StoreSpec(url_or_path, storage_options)
    store = spec.open()
    marked = mark_shards(store, read_info(store))
    samples = sum(mark.count for mark, _ in marked)
    where = f"{store.url}/{paths_of(name)[0]}"
    if function is None:
        made_by = "values" if table is None else f"table:{column or name}"
        given = values if table is None else _column(table, column or name)
        found = check_values(np.asarray(given), where)
        if len(found) != samples:
            raise CostsError(
                f"{len(found)} costs for {samples} samples",
                where=where,
                hint="give one number for each sample",
            )
        computed = 0
    else:
        call = NamedFunction(function) if isinstance(function, str) else function
        if isinstance(function, str):
            _imported(function)
        made_by = function if isinstance(function, str) else _name_of(function)
        kept: dict[str, Any] = {}
        try:
            saved = None if force else load_costs(store, name)
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
        made = dict(zip([entry.path for entry in tasks], results, strict=True))
        kept.update(made)
        for mark, _ in marked:
            own = kept[mark.path]
            if len(own) != mark.count:
                raise CostsError(
                    f"{mark.path} has {len(own)} samples, and its index {mark.count}",
                    where=store.url,
                    hint="run `energon-stream prepare` again",
                )
        found = np.concatenate([kept[mark.path] for mark, _ in marked])
        found, computed = check_values(found.astype(np.float64), where), len(tasks)
    if not (found % 1).any():
        found = found.astype(np.int64)
    write_costs(store, name, found, [mark for mark, _ in marked], made_by, _library())
    return CostReport(samples, len(marked), computed, float(found.sum()), float(found.max(initial=0)))


def _library() -> str:
    try:
        return metadata.version("energon-stream")
    except metadata.PackageNotFoundError:
        return "unknown"


def _name_of(function: Any) -> str:
    return f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', type(function).__qualname__)}"


def _of_shard(spec: StoreSpec, function: CostFunction, entry: ListEntry) -> Any:
    """Return the costs of the samples of a shard."""
    shard = Shard(spec.open(), entry)
    return np.array([float(function(sample)) for sample in shard.samples()], dtype=np.float64)


def _column(table: str, column: str) -> Any:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise MissingPackageError(
            "reading a table needs pyarrow", hint="pip install energon-stream[parquet]"
        ) from error
    read = parquet.read_table(table)
    if column not in read.column_names:
        raise CostsError(
            f"the table has no column {column!r}", where=table, hint=f"it has {read.column_names}"
        )
    return read.column(column).to_numpy()
