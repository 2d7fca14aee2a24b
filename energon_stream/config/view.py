"""Views: which samples of a dataset ``filter``, ``where``, ``exclude``, ``share``, ``weight_by`` select."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xxhash

from energon_stream.arrays import Float64Array, Int64Array
from energon_stream.cache.kept_files import KeptFiles, kept_name
from energon_stream.config.document_keys import ANY, Key, is_number, read_keys
from energon_stream.config.listed_samples import BadFile, Wanted, bad_numbers, is_seen, look_up, want
from energon_stream.errors import ConfigError, EmptyDatasetError
from energon_stream.index.bad_samples import is_list
from energon_stream.index.dataset import DatasetIndex, WebDatasetIndex
from energon_stream.index.files_index import FilesIndex
from energon_stream.index.kept_index import index_directory
from energon_stream.index.yaml_io import read_text
from energon_stream.limits import Limits
from energon_stream.rng import derive_key, uniform
from energon_stream.selection import Bits, Mask, Selection
from energon_stream.storage import StoreSpec
from energon_stream.tables.expressions import Expression, parse_filter
from energon_stream.tables.filter_index import FilterIndex, is_filter_name
from energon_stream.tables.reading import Tables, open_tables

_log = logging.getLogger(__name__)

_COLUMN = Key(lambda value: isinstance(value, str) and value, "name a column")
_EXCLUDE = Key(
    lambda value: value and all(isinstance(each, (str, os.PathLike)) and each for each in _names(value)),
    "name a column, a file of keys, a list of bad samples, or the folder of a run",
)
VIEW_KEYS = {
    "filter": Key(is_filter_name, "name a filter that build_filter_index wrote"),
    "where": ANY,
    "exclude": _EXCLUDE,
    "share": Key(lambda value: is_number(value) and 0 < value <= 1, "use a number above 0, up to 1"),
    "weight_by": _COLUMN,
}
LEAST_KEPT = 1 << 20
"""Samples from which a selection is kept on the node. Fewer are selected in milliseconds."""
_ROWS = 1 << 18
_RULES = "2"  # changes with what a view selects, so that no node keeps an older selection
_SHARE_KEY = derive_key("share of a view")


@dataclass(frozen=True, slots=True)
class View:
    """Choice of samples of a dataset. Each part narrows the others."""

    where: Expression | None = None  # condition on columns of the dataset's tables
    exclude: str | StoreSpec | None = None  # column of truth values, or file of keys, one a line
    share: float | None = None  # share of the samples, by a hash of the sample's shard and number in it
    weight_by: str | None = None  # column of weights
    bad: tuple[BadFile, ...] = ()  # lists of bad samples
    filter: str | None = None  # name of a filter index

    @property
    def needs_tables(self) -> bool:
        return bool(self.where or self.weight_by or isinstance(self.exclude, str))

    def plain(self) -> dict[str, Any]:
        """Return the keys and values of which :func:`parse_view` makes the view."""
        exclude = self.exclude.url if isinstance(self.exclude, StoreSpec) else self.exclude
        lists = [] if exclude is None else [exclude]
        lists += [each.spec.url for each in self.bad]
        parts = {
            "filter": self.filter,
            "where": self.where and self.where.text,
            "exclude": (lists if len(lists) > 1 else lists[0]) if lists else None,
            "share": self.share,
            "weight_by": self.weight_by,
        }
        return {name: value for name, value in parts.items() if value is not None}

    def __str__(self) -> str:
        return ", ".join(f"{name}: {value}" for name, value in self.plain().items())


def parse_view(value: Mapping[str, Any], where: str, spec_of: Callable[[str], StoreSpec]) -> View | None:
    """Parse the keys ``VIEW_KEYS`` of a mapping; None without any. Raises ConfigError if a value is wrong."""
    given = read_keys({key: value.get(key) for key in VIEW_KEYS}, VIEW_KEYS, where, error=ConfigError)
    if all(part is None for part in given.values()):
        return None
    try:
        condition = None if given["where"] is None else parse_filter(given["where"])
    except ConfigError as error:
        raise ConfigError(error.what, where=where, hint=error.hint) from None
    share, exclude, bad = given["share"], list[str | StoreSpec](), list[BadFile]()
    for each in [] if given["exclude"] is None else _names(given["exclude"]):
        name = os.fspath(each)
        if name.endswith(".txt"):
            exclude.append(spec_of(name))
        elif is_list(name) or not isinstance(each, str):
            bad.append(BadFile(spec_of(name)))
        else:
            exclude.append(name)
    if len(exclude) > 1:
        raise ConfigError(
            "exclude names several columns or files of keys",
            where=where,
            hint="name one, and any number of lists of bad samples",
        )
    share = None if share is None else float(share)
    without = exclude[0] if exclude else None
    return View(condition, without, share, given["weight_by"], tuple(bad), given["filter"])


def _names(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else [value]


def without_bad(view: View | None, bad: tuple[BadFile, ...]) -> View:
    """Return a view that leaves out the samples of lists as well."""
    view = view or View()
    return replace(view, bad=(*view.bad, *bad))


def with_view(index: DatasetIndex, view: View, limits: Limits) -> DatasetIndex:
    """Return an opened dataset with the samples that a view selects.

    Raises ConfigError if the view cannot be applied to such a dataset, or a column or weight is wrong,
    EmptyDatasetError if it selects nothing, and IndexMismatchError if a table does not fit the index.
    """
    is_only_bad = view == View(bad=view.bad)
    is_folder = isinstance(index, WebDatasetIndex) and index.every is not None and index.shard_ids is not None
    is_filter = view == View(bad=view.bad, filter=view.filter)
    is_file = is_filter and isinstance(index, FilesIndex)
    if not (is_folder or is_file or is_only_bad):
        is_other = isinstance(index, FilesIndex)
        hint = "of other files, only a filter index selects samples" if is_other else "prepare the dataset"
        raise ConfigError(f"the view ({view}) needs a prepared folder of tars", where=index.name, hint=hint)
    selecting = _Selecting(index, view, limits)
    if is_only_bad and not len(selecting.bad):
        return index
    selection = selecting.selection()
    if not selection.num_samples or (selection.weights is not None and not selection.weights[-1] > 0):
        raise EmptyDatasetError(
            f"the view ({view}) selects none of {index.num_samples:,} samples"
            + (", or all weights are 0" if view.weight_by else ""),
            where=index.name,
            hint="widen the view, or leave the dataset out",
        )
    return replace(index, selection=selection, view=view.plain())


class _Selecting:
    """Evaluates a view on one split part."""

    def __init__(self, index: DatasetIndex, view: View, limits: Limits) -> None:
        self._index, self._view = index, view
        self._every = index.every if isinstance(index, (WebDatasetIndex, FilesIndex)) else None
        self.bad: Int64Array = bad_numbers(index, view.bad)
        self._keys, self._limits = "", limits
        self._filter = None if view.filter is None else FilterIndex(index.spec, view.filter)
        if isinstance(view.exclude, StoreSpec):
            self._keys = read_text("", view.exclude.open(), limits)

    def selection(self) -> Selection:
        tables = None
        if self._view.needs_tables and self._every is not None:
            every = self._every
            tables = open_tables(self._index.spec, every.samples, every.info_digest, self._limits)
        name, rows = self._kept_name(tables), self._index.num_samples
        kept = KeptFiles(index_directory(self._index.spec), "views")
        if name is not None and (data := kept.read(name)) is not None:
            size = -(-rows // 512) * 64
            weights = np.frombuffer(data, "<f8", offset=size) if len(data) > size else None
            return Selection(np.frombuffer(data, np.uint8, size), rows, weights)
        found = self._select(tables)
        if name is not None:
            sums = b"" if found.weights is None else found.weights.astype("<f8").tobytes()
            with suppress(OSError):  # the next process selects again
                kept.write(name, found.bits.tobytes() + sums)
        return found

    def _kept_name(self, tables: Tables | None) -> str | None:
        """Return the name of the selection among the kept files; None if it is not kept."""
        index, versions = self._index, () if tables is None else tables.versions
        if index.num_samples < LEAST_KEPT or self._every is None:
            return None
        kept = () if self._filter is None else self._filter.versions(self._limits)
        if versions is None or kept is None:
            return None
        versions = (*versions, *kept)
        parts = index.spec.url, _RULES, str(self._view), str(self._every.info_digest), *versions
        excluded = self._keys, self.bad.tobytes().decode("latin-1")
        return f"{kept_name(*parts, *excluded, *index.shard_paths)}.bits"

    def _select(self, tables: Tables | None) -> Selection:
        view = self._view
        every = None if tables is None else self._of_tables(tables)
        weights = list[Any]()
        excluded = self._excluded()
        kept = None if self._filter is None else self._filter.selection(self._index, self._limits)
        if (
            every is not None
            and kept is None
            and view.share is None
            and not len(excluded)
            and self._is_whole()
        ):
            return every if view.weight_by is None else replace(every, weights=_sums(self._all_weights))

        def masks() -> Iterator[Mask]:
            for first, last, number in self._runs():
                chosen = (
                    np.ones(last - first, np.bool_)
                    if every is None
                    else every.mask(number, number + last - first)
                )
                if view.share is not None:
                    chosen = chosen & (self._draws(first, last) < view.share)
                if kept is not None:
                    chosen = chosen & kept.mask(number, number + last - first)
                begin, end = np.searchsorted(excluded, [first, last])
                chosen[excluded[begin:end] - first] = False
                if every is not None and self._all_weights is not None:
                    ranks = every.rank(number + np.flatnonzero(chosen))
                    weights.append(self._all_weights[ranks])
                yield chosen

        found = Selection.of(masks())
        return found if view.weight_by is None else replace(found, weights=_sums(np.concatenate(weights)))

    def _of_tables(self, tables: Tables) -> Selection:
        """Return the samples of the whole dataset that the tables select; keep their weights."""
        view, weights = self._view, list[Any]()
        without = view.exclude if isinstance(view.exclude, str) else None
        parts: list[Bits] = []
        for bits, found in tables.groups(view.where, without, view.weight_by):
            parts.append(bits)
            weights.append(found)
        size = sum(map(len, parts))
        self._all_weights = np.concatenate(weights) if view.weight_by else None
        return Selection(np.concatenate([*parts, np.zeros(-size % 64, dtype=np.uint8)]), tables.samples)

    _all_weights: Any = None

    def _is_whole(self) -> bool:
        """Return whether the split part has the samples of the whole dataset, in the same order."""
        index, every = self._index, self._every
        return (
            every is not None
            and index.num_samples == every.samples
            and np.array_equal(index.shard_starts[:-1], every.first)
        )

    def _runs(self) -> Iterator[tuple[int, int, int]]:
        """Yield runs of the split part's samples that follow each other in the whole dataset.

        Each is the first sample, one past the last, and the first one's number in the whole dataset.
        """
        starts = self._index.shard_starts
        first = starts[:-1] if self._every is None else self._every.first
        breaks = np.flatnonzero(first[1:] != first[:-1] + self._index.shard_counts[:-1]) + 1
        for begin, end in zip([0, *breaks.tolist()], [*breaks.tolist(), len(first)], strict=True):
            for at in range(int(starts[begin]), int(starts[end]), _ROWS):
                yield at, min(at + _ROWS, int(starts[end])), int(first[begin]) + at - int(starts[begin])

    def _draws(self, first: int, last: int) -> Any:
        """Draw a number for each sample, by the name of its shard and its number in it."""
        starts = self._index.shard_starts
        shards = range(
            int(np.searchsorted(starts, first, side="right")) - 1, int(np.searchsorted(starts, last))
        )
        names = np.array(
            [xxhash.xxh3_64_intdigest(self._index.shard_paths[shard].encode()) for shard in shards],
            dtype=np.uint64,
        )
        bounds = np.clip(starts[shards.start : shards.stop + 1], first, last)
        counts = np.diff(bounds)
        numbers = np.arange(first, last, dtype=np.int64) - np.repeat(
            starts[shards.start : shards.stop], counts
        )
        return uniform(_SHARE_KEY, np.repeat(names, counts) + numbers.astype(np.uint64))

    def _excluded(self) -> Int64Array:
        """Return the numbers of the samples that the files name, ascending."""
        keys, index = [key for key in self._keys.splitlines() if key], self._index
        if not keys or not isinstance(index, WebDatasetIndex):
            return self.bad
        wanted, seen = Wanted(set), Wanted(set)
        for key in keys:
            want(wanted, key, None)
        found = {int(index.shard_starts[place]) + number for place, number, _ in look_up(index, wanted, seen)}
        missing = [key for key in keys if not is_seen(key, None, seen)]
        if missing:
            of = f"{len(missing):,} of the {len(keys):,}", self._view, ", ".join(map(repr, missing[:3]))
            _log.warning("%s: %s keys of %s are not in it: %.300s", index.name, *of)
        return np.union1d(self.bad, np.array(sorted(found), dtype=np.int64))


def _sums(weights: Float64Array) -> Float64Array:
    return np.cumsum(weights, out=weights)  # in their memory, which may be large
