"""Filter indexes: files of the numbers of the samples that are kept, which any tool can write.

Beside the index of a dataset, ``filter_NAME.json`` says how many samples of each shard are kept, and
``filter_NAME.idx`` has their numbers in the whole dataset, ascending, as 64-bit integers. Those of a single
file ``x.jsonl`` are ``x.jsonl.NAME.json`` and ``x.jsonl.NAME.idx``.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple, Self, TypeAlias, overload

import numpy as np

from energon_stream.arrays import Int64Array
from energon_stream.cache.cached_store import read_again
from energon_stream.errors import (
    ConfigError,
    FilterExistsError,
    IndexMismatchError,
    MetadataError,
    ObjectNotFoundError,
)
from energon_stream.index.dataset import DatasetIndex
from energon_stream.index.file_format import find_format
from energon_stream.index.files_index import open_file
from energon_stream.index.index_files import ENTRY_BYTES
from energon_stream.index.info_files import META_FOLDER, load_document, read_info
from energon_stream.index.yaml_io import check_keys, read_document
from energon_stream.limits import Limits
from energon_stream.selection import Mask, Selection
from energon_stream.storage import ObjectMeta, Store, StoreSpec
from energon_stream.storage.in_order import stream_object
from energon_stream.urls import split_query

_NAME = re.compile(r"[\w.+=@-]+")
_VERSION = 1
_ROWS = 1 << 20
_AGAIN = "build the filter again with build_filter_index(…, overwrite=True)"

Shards: TypeAlias = Mapping[str, int] | Sequence[Any] | None
"""Samples of each shard of a dataset by path, or objects with ``name`` and ``count``; None to read them."""


def is_filter_name(name: Any) -> bool:
    """Return whether a value can name a filter: it becomes a part of names of files."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


class _Place(NamedTuple):
    store: Store
    path: str

    @property
    def where(self) -> str:
        return f"{self.store.url}/{self.path}".rstrip("/")

    @property
    def meta(self) -> ObjectMeta | None:
        with suppress(ObjectNotFoundError):
            return self.store.head(self.path)
        return None


def _places(spec: StoreSpec, name: str) -> tuple[_Place, _Place]:
    """Return the places of the record and of the numbers. Raises ConfigError if the name is none."""
    if not is_filter_name(name):
        raise ConfigError(f"{name!r:.80} is no name of a filter", hint="use letters, digits, and . _ - + = @")
    if find_format(spec.url) is not None:
        url, query = split_query(spec.url)
        specs = (replace(spec, url=f"{url}.{name}.{end}{query}") for end in ("json", "idx"))
        record, numbers = (_Place(each.open(), "") for each in specs)
        return record, numbers
    store, path = spec.open(), f"{META_FOLDER}/filter_{name}"
    return _Place(store, f"{path}.json"), _Place(store, f"{path}.idx")


def _whole(spec: StoreSpec, shards: Shards = None, limits: Limits | None = None) -> dict[str, int]:
    """Return the samples of all shards of a dataset, in order."""
    if shards is not None:
        return dict(shards) if isinstance(shards, Mapping) else {each.name: each.count for each in shards}
    format = find_format(spec.url)
    return read_info(spec.open(), limits) if format is None else _counts_of(open_file(spec, format))


def _counts_of(index: DatasetIndex) -> dict[str, int]:
    """Return the samples of each file; some formats have several shards in one."""
    found = dict.fromkeys(index.shard_paths, 0)
    for path, count in zip(index.shard_paths, index.shard_counts.tolist(), strict=True):
        found[path] += count
    return found


class FilterIndex:
    """A filter of a dataset: a sequence of the numbers of the samples that it keeps. It is read when asked.

    Args:
        path: Folder or URL of the dataset, or a single file such as ``x.jsonl``.
        name: Name of the filter.
        shards: Samples of each shard by path, in order; None to read them from the dataset.
        storage_options: Options of the URL's file system, such as credentials.

    Example:
        >>> from energon_stream import build_filter_index
        >>> kept = build_filter_index("texts", "even", range(0, 64, 2))
        >>> len(kept), kept[1]
        (32, 2)
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | StoreSpec,
        name: str,
        *,
        shards: Shards = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._spec = path if isinstance(path, StoreSpec) else StoreSpec(os.fspath(path), storage_options)
        self.name = name
        self._record, self._places = _places(self._spec, name)
        self._shards = shards

    @cached_property
    def filtered_shard_counts(self) -> dict[str, int]:
        """Number of kept samples of each shard."""
        return self._counts(_whole(self._spec, self._shards), None)

    @cached_property
    def _numbers(self) -> Int64Array:
        return np.concatenate([np.zeros(0, np.int64), *self._read(_whole(self._spec, self._shards), None)])

    def __len__(self) -> int:
        return sum(self.filtered_shard_counts.values())

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> list[int]: ...

    def __getitem__(self, index: int | slice) -> int | list[int]:
        found: int | list[int] = self._numbers[index].tolist()
        return found

    def versions(self, limits: Limits) -> tuple[str, ...] | None:
        """Return what changes with the content of the files; None if the store reports no versions."""
        etag = self._numbers_meta.etag
        return None if etag is None else (self._document(limits).decode("latin-1"), self.name, etag)

    def selection(self, index: DatasetIndex, limits: Limits) -> Selection:
        """Return the kept samples of the whole dataset of which an index has a split part."""
        own = _counts_of(index)
        whole = _whole(self._spec, limits=limits) if find_format(self._spec.url) is None else own
        if own.items() - whole.items():
            raise IndexMismatchError("the dataset was prepared just now", where=index.name, hint="try again")
        return read_again(
            self._record.store,
            [self._record.path, self._places.path],
            lambda: Selection.of(_masks(self._read(whole, limits), sum(whole.values()))),
        )

    def _document(self, limits: Limits | None) -> bytes:
        record = self._record
        try:
            return bytes(read_document(record.path, record.store, limits).data)
        except ObjectNotFoundError as error:
            hint = "build it with build_filter_index, or correct the name"
            what = f"the dataset has no filter {self.name!r}"
            raise ConfigError(what, where=record.where, hint=hint) from error

    def _counts(self, whole: Mapping[str, int], limits: Limits | None) -> dict[str, int]:
        where = self._record.where
        document = load_document(self._document(limits), where, limits)
        version, counts = document.get("version"), document.get("filtered_shard_counts")
        if version != _VERSION or type(version) is not int:
            hint = f"this release reads version {_VERSION}; {_AGAIN}"
            raise MetadataError(f"the filter has version {version!r:.40}", where=where, hint=hint)
        check_keys(document, ("version", "filtered_shard_counts"), where)
        if not isinstance(counts, dict) or not all(type(n) is int and n >= 0 for n in counts.values()):
            raise MetadataError("'filtered_shard_counts' must map shard paths to numbers ≥ 0", where=where)
        other = min(counts.keys() ^ whole.keys(), default=None)
        fuller = next((path for path in whole if other is None and counts[path] > whole[path]), None)
        if other is not None or fuller is not None:
            why = f"only one has {other!r:.80}" if other else f"it keeps more of {fuller!r:.80} than there is"
            raise IndexMismatchError(
                f"the filter is of {len(counts):,} shards, and the dataset has {len(whole):,}: {why}",
                where=where,
                hint=f"the dataset was prepared again, or grew; {_AGAIN}",
            )
        return {path: counts[path] for path in whole}

    @property
    def _numbers_meta(self) -> ObjectMeta:
        if (meta := self._places.meta) is None:
            raise self._wrong("it is missing")
        return meta

    def _read(self, whole: Mapping[str, int], limits: Limits | None) -> Iterator[Int64Array]:
        """Yield the numbers of the kept samples in pieces, or raise IndexMismatchError if they are wrong."""
        kept, ends = self._counts(whole, limits), np.cumsum([0, *whole.values()])
        size, wanted = self._numbers_meta.size, ENTRY_BYTES * sum(kept.values())
        if size != wanted:
            raise self._wrong(f"it has {size:,} bytes, and its shard counts sum to {wanted:,}")
        found, last = np.zeros(len(whole), dtype=np.int64), -1
        for piece in stream_object(self._places.store, self._places.path) if size else ():
            values = np.frombuffer(piece, dtype="<u8").astype(np.int64)
            steps = np.flatnonzero(np.diff(values, prepend=last) <= 0)
            if len(steps) or values[-1] >= ends[-1]:
                at = values[steps[0]] if len(steps) else values[-1]
                raise self._wrong(
                    f"{at} does not follow a smaller number, or is none of {ends[-1]:,} samples"
                )
            found += np.diff(np.searchsorted(values, ends))
            last = int(values[-1])
            yield values
        wrong = [path for path, n in zip(whole, found.tolist(), strict=True) if kept[path] != n]
        if wrong:
            raise self._wrong(f"it keeps other samples of {wrong[0]!r:.80} than its record says")

    def _wrong(self, what: str) -> IndexMismatchError:
        hint = f"it was cut off, or the dataset was prepared again; {_AGAIN}"
        return IndexMismatchError(f"the filter is damaged: {what}", where=self._places.where, hint=hint)


def _masks(numbers: Iterable[Int64Array], samples: int) -> Iterator[Mask]:
    """Yield truth values of all samples, of which those with these numbers are true."""
    done = 0
    for values in numbers:
        while len(values):
            chosen = np.zeros(min(_ROWS, int(values[-1]) + 1 - done), dtype=np.bool_)
            count = int(np.searchsorted(values, done + len(chosen)))
            chosen[values[:count] - done] = True
            done, values = done + len(chosen), values[count:]
            yield chosen
    for first in range(done, samples, _ROWS):
        yield np.zeros(min(_ROWS, samples - first), dtype=np.bool_)


class FilterIndexWriter:
    """Writes a filter of a dataset, in ascending order; a ``with`` block that fails writes nothing.

    Args:
        path: Folder or URL of the dataset, or a single file such as ``x.jsonl``.
        name: Name of the filter.
        shards: Samples of each shard by path, in order; None to read them from the dataset.
        overwrite: Whether a filter of that name is replaced.
        storage_options: Options of the URL's file system, such as credentials.

    Raises:
        FilterExistsError: There is one of that name.
        ConfigError: A number is not above the one before, or is no sample; or the name is none.

    Example:
        >>> from energon_stream import FilterIndexWriter
        >>> with FilterIndexWriter("texts", "some", overwrite=True) as writer:
        ...     writer.append_shard("data-000000.tar", [1, 4])
        ...     writer.append(40)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        name: str,
        *,
        shards: Shards = None,
        overwrite: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        spec = StoreSpec(os.fspath(path), storage_options)
        self._record, self._numbers = _places(spec, name)
        if not overwrite and (self._record.meta or self._numbers.meta):
            what = f"there is a filter {name!r}"
            raise FilterExistsError(what, where=self._record.where, hint="pass overwrite=True")
        self._whole = _whole(spec, shards)
        self._ends = np.cumsum([0, *self._whole.values()])
        self._starts = dict(zip(self._whole, self._ends.tolist(), strict=False))
        self._parts = [np.zeros(0, dtype=np.int64)]

    def append_globals(self, indexes: Iterable[int]) -> None:
        """Append numbers of samples in the whole dataset, in the order of ``.info.json``."""
        self._append(indexes, 0, int(self._ends[-1]), "the dataset")

    def append_global(self, index: int) -> None:
        """Append the number of a sample in the whole dataset; also as ``append``."""
        self.append_globals([index])

    append = append_global

    def append_shard(self, shard: str, indexes: Iterable[int]) -> None:
        """Append numbers of samples in a shard; shards come in the order of ``.info.json``."""
        if shard not in self._starts:
            what, hint = f"the dataset has no shard {shard!r:.80}", "name shards as .info.json does"
            raise ConfigError(what, where=self._record.where, hint=hint)
        self._append(indexes, self._starts[shard], self._whole[shard], f"shard {shard}")

    def append_shard_index(self, shard: str, index: int) -> None:
        """Append the number of a sample in a shard."""
        self.append_shard(shard, [index])

    def _append(self, indexes: Iterable[int], first: int, samples: int, of: str) -> None:
        given: Any = indexes
        if not isinstance(given, Iterable):
            what, hint = f"{given!r:.80} is no sequence of numbers", "pass a list or an array of them"
            raise ConfigError(what, where=self._record.where, hint=hint)
        values = np.asarray(given if isinstance(given, np.ndarray) else list(given))
        if not values.size:
            return
        what, hint = "", "numbers begin with 0"
        last = self._parts[-1][-1] if len(self._parts[-1]) else -1
        if values.ndim != 1 or values.dtype.kind not in "iu":
            what, hint = (
                f"{values.dtype} are no numbers of samples",
                "pass whole ones: numpy.flatnonzero(mask)",
            )
        elif values.min() < 0 or values.max() >= samples:
            what = f"{values.min() if values.min() < 0 else values.max()} is none of {samples:,} of {of}"
        elif (np.diff(values.astype(np.int64) + first, prepend=last) <= 0).any():
            what, hint = "the numbers do not ascend", "sort them, without repeats, and append shards in order"
        if what:
            raise ConfigError(what, where=self._record.where, hint=hint)
        self._parts.append(values.astype(np.int64) + first)

    def close(self) -> None:
        """Write the files, the numbers first."""
        numbers = np.concatenate(self._parts)
        kept = np.diff(np.searchsorted(numbers, self._ends)).tolist()
        counts = dict(zip(self._whole, kept, strict=True))
        self._numbers.store.put(self._numbers.path, numbers.astype("<u8").tobytes())
        record = {"version": _VERSION, "filtered_shard_counts": counts}
        self._record.store.put(self._record.path, json.dumps(record, indent=2).encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()


def build_filter_index(
    path: str | os.PathLike[str],
    name: str,
    indexes: Iterable[int],
    *,
    shards: Shards = None,
    overwrite: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> FilterIndex:
    """Write a filter: the numbers of the samples of a dataset that it keeps.

    ``filter: NAME`` of a metadataset, and ``filter_name=`` of the functions that open datasets, then select
    these samples. Numbers count all samples of all split parts, in the order of ``.info.json``, and ascend.
    It has the arguments and errors of :class:`FilterIndexWriter`.

    Example:
        >>> from energon_stream import build_filter_index, get_val_dataset
        >>> _ = build_filter_index("captions", "first", range(3), overwrite=True)
        >>> dataset = get_val_dataset("captions", split_part="train", batch_size=1, filter_name="first")
        >>> len(dataset)
        3
    """
    options: Any = {"shards": shards, "storage_options": storage_options}
    with FilterIndexWriter(path, name, overwrite=overwrite, **options) as writer:
        writer.append_globals(indexes)
    return FilterIndex(path, name, **options)


build_filter_index_from_global_indexes = build_filter_index


def build_filter_index_from_shard_indexes(
    path: str | os.PathLike[str], name: str, indexes: Mapping[str, Iterable[int]], **options: Any
) -> FilterIndex:
    """Write a filter of numbers in each shard; shards may be in any order. See :func:`build_filter_index`.

    Example:
        >>> from energon_stream import build_filter_index_from_shard_indexes
        >>> found = build_filter_index_from_shard_indexes("texts", "by_shard", {"data-000001.tar": [0, 2]})
        >>> list(found)
        [8, 10]
    """
    with FilterIndexWriter(path, name, **options) as writer:
        known = [shard for shard in writer._whole if shard in indexes]
        for shard in dict.fromkeys([*known, *indexes]):
            writer.append_shard(shard, indexes[shard])
    options.pop("overwrite", None)
    return FilterIndex(path, name, **options)
