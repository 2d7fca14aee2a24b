"""Map-style access: ``open_dataset(path)[i]``, for evaluation, notebooks, and samplers of other trainers."""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import index as whole
from types import GeneratorType
from typing import Any, Generic, TypeVar, Unpack, overload

import numpy as np

from energon_stream.arguments import names_checked
from energon_stream.config.dataset_options import DatasetOptions, DatasetRequest, SharedOptions
from energon_stream.config.get_datasets import open_processed
from energon_stream.config.listed_samples import Wanted, join_row, look_up, want
from energon_stream.config.opening import DatasetLocation, PathOption
from energon_stream.errors import (
    ConfigError,
    DuplicateKeyError,
    EnergonStreamError,
    NotPreparedError,
    ObjectNotFoundError,
    SampleError,
    SampleIndexError,
    SampleKeyError,
    SkipSample,
)
from energon_stream.fork import PerProcess
from energon_stream.index.database import IndexDatabase, index_database
from energon_stream.index.dataset import DatasetIndex, WebDatasetIndex
from energon_stream.index.files_index import FilesIndex
from energon_stream.index.join_index import JoinIndex
from energon_stream.pipeline import SavableDataset
from energon_stream.pipeline.dataset import function_name
from energon_stream.pipeline.map import MapDataset
from energon_stream.pipeline.node import Context
from energon_stream.pipeline.reader_dataset import ReaderDataset
from energon_stream.printable import printable
from energon_stream.schedule import LeafPlan
from energon_stream.selection import Selection
from energon_stream.worker import WorkerConfig

T = TypeVar("T")

_AT_A_TIME = 16
"""Samples that iteration reads together."""
_DIGITS = 19  # more than the number of any record has


@dataclass(frozen=True, slots=True)
class _Leaf:
    """One of the datasets: which of its samples have an index, and how they are found by key."""

    index: DatasetIndex
    selection: Selection | None  # None for all from ``start`` on
    start: int
    samples: int
    keys: PerProcess[IndexDatabase] = field(default_factory=PerProcess)  # the index of keys, kept open

    @classmethod
    def of(cls, index: DatasetIndex, plan: LeafPlan, location: DatasetLocation) -> _Leaf:
        """Leave out what ``split.yaml`` excludes, found by ``index.sqlite``."""
        if plan.selection is not None and plan.selection.weights is not None:
            hint = "leave it out, and give the weights to a WeightedRandomSampler"
            what = "weight_by repeats samples, so that they have no index"
            raise ConfigError(what, where=index.name, hint=hint)
        leaf, wanted = cls(index, plan.selection, plan.start, plan.num_samples), Wanted(set)
        if isinstance(index, WebDatasetIndex):
            for shard in index.excluded.keys() & set(index.shard_paths):
                for key in index.excluded[shard]:
                    wanted[key].add(shard)
        if not wanted:
            return leaf
        mask, places = np.zeros(index.num_samples, np.bool_), np.arange(leaf.samples) + leaf.start
        mask[places if leaf.selection is None else leaf.selection.samples(places)] = True
        instead = "take the keys of samples out of `exclude` in split.yaml"
        mask[[*location.read(lambda: leaf.numbers(wanted, instead), forks=True)]] = False
        return cls(index, Selection.of([mask]), 0, int(mask.sum()))

    def number(self, at: int) -> int:
        """Return the number, in the split part, of the sample at a place."""
        at += self.start
        return at if self.selection is None else int(self.selection.samples(np.array([at]))[0])

    def places(self, wanted: Wanted) -> Iterator[tuple[int, Hashable]]:
        """Yield the places of the samples with some keys, and which sample each is."""
        for number, which in self.numbers(wanted).items():
            places = range(number, number + 1) if self.selection is None else self.selection.places(number)
            yield from ((at - self.start, which) for at in places if 0 <= at - self.start < self.samples)

    def numbers(self, wanted: Wanted, instead: str = "use indices") -> Mapping[int, Hashable]:
        """Return the numbers of the samples with some keys, in the split part, and which sample each is.

        A sample has several numbers where the split part names its shard more than once.
        """
        index = self.index
        if isinstance(index, FilesIndex):  # their keys are numbers
            plain = (int(key) for key in wanted if key.isdecimal() and len(key) < _DIGITS)
            return {each: each for each in plain if each < index.num_samples and str(each) in wanted}
        member = index.members[0] if isinstance(index, JoinIndex) else index
        hint = f"run `energon-stream prepare`, or {instead}"
        if not isinstance(member, WebDatasetIndex) or member.plain is not None:
            raise NotPreparedError("the keys have no index", where=index.name, hint=hint)
        try:
            self.keys.map(None, lambda: index_database(member.spec))
            rows = list(look_up(member, wanted))
        except ObjectNotFoundError as error:
            raise NotPreparedError("the keys have no index", where=index.name, hint=hint) from error
        if isinstance(index, JoinIndex):
            found = (join_row(index, place, at) for place, _, at in rows)
            return {row: row for row in found if row is not None}
        starts, paths = member.shard_starts, member.shard_paths
        return {int(starts[place]) + number: (paths[place], number) for place, number, _ in rows}


class MapStyleDataset(Generic[T]):
    """The samples of a dataset by index; made by :func:`open_dataset`. Picklable, and safe across forks.

    An index counts the samples of a pass in order: of the split part, its view and subset, without excluded
    ones. The datasets of a metadataset follow each other, whatever their weights and repetitions.

    A sample is one request to the store, after the index. Random draws of ``@stateless(restore_seeds=True)``
    hooks follow from the index; other hooks draw from the generators of the process.

    Example:
        >>> from torch.utils.data import DataLoader
        >>> from energon_stream import open_dataset
        >>> dataset = open_dataset("captions")
        >>> [len(batch.caption) for batch in DataLoader(dataset[:10], 4, collate_fn=dataset.collate)]
        [4, 4, 2]
    """

    def __init__(
        self, dataset: SavableDataset[T], plans: Sequence[LeafPlan], request: DatasetRequest
    ) -> None:
        functions, encoder = [], request.encoder
        inner: SavableDataset[Any] = dataset
        while isinstance(inner, MapDataset):
            functions.append(inner.fn)
            inner = inner.dataset
        if not isinstance(inner, ReaderDataset):
            raise ConfigError(
                f"{type(encoder).__qualname__} builds a pipeline with a {type(inner).__name__}, which makes no "
                "sample of one index",
                hint="override cookers, encode_sample and postencode_sample alone, or use get_val_dataset",
            )
        self._reader, self._functions, self._encoder = inner, functions[::-1], encoder
        pairs = zip(inner.leaves, plans, strict=True)
        self._leaves = [_Leaf.of(leaf.index, plan, request.location) for leaf, plan in pairs]
        self._stops: list[int] = np.cumsum([leaf.samples for leaf in self._leaves]).tolist()
        self._indices = range(self._stops[-1])
        self._context = Context(inner.worker_config, 0)

    def __len__(self) -> int:
        return len(self._indices)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name()}, {len(self):,} samples)"

    @overload
    def __getitem__(self, index: slice) -> MapStyleDataset[T]: ...
    @overload
    def __getitem__(self, index: int) -> T: ...
    def __getitem__(self, index: int | slice) -> T | MapStyleDataset[T]:
        """Read a sample by its index, or return a part of the dataset, of which nothing is read.

        Raises:
            SampleIndexError: There is no such index; an IndexError.
            SampleError: The sample cannot be decoded, a hook skips it, or raises a StopIteration, IndexError
                or KeyError, which would tell a caller that there is no such sample. Other errors of hooks
                are raised as they are.
            StorageError: The store does not deliver.
        """
        if not isinstance(index, slice):
            return self.__getitems__((index,))[0]
        part = copy.copy(self)
        try:
            part._indices = self._indices[index]
        except (TypeError, ValueError) as error:
            hint = "use whole numbers, and a step other than 0"
            raise ConfigError(f"{index!r:.60} is no slice", where=self._name(), hint=hint) from error
        return part

    def __getitems__(self, indices: Sequence[int]) -> list[T]:
        """Read samples together, with few requests; PyTorch's ``DataLoader`` calls it for each batch."""
        reader, config, single = self._reader, self._reader.worker_config, len(self._leaves) == 1
        found, keys = [self._index(each) for each in indices], []
        for index in found:
            leaf = 0 if single else bisect_right(self._stops, index)
            first = self._stops[leaf - 1] if leaf else 0
            keys.append(("Source", leaf, self._leaves[leaf].number(index - first)))
        try:
            with config.activate(0):
                items = reader.restore_many(keys, self._context)
        except SkipSample as error:
            raise self._skipped(", ".join(map(str, found[:4]))) from error
        return [self._encoded(item.value, index) for item, index in zip(items, found, strict=True)]

    def __iter__(self) -> Iterator[T]:
        for first in range(0, len(self), _AT_A_TIME):
            yield from self.__getitems__(range(first, min(first + _AT_A_TIME, len(self))))

    def by_key(self, key: str) -> T:
        """Read a sample by its key: ``__key__``, with or without its shard.

        The first call reads pages of ``index.sqlite``; each call for a join reads some rows. The key of a
        record of a file, as of Parquet, is its number.

        Raises:
            SampleKeyError: No sample has the key; a KeyError.
            DuplicateKeyError: Several have it.
            NotPreparedError: The keys have no index, such as tars that were not prepared.
        """
        wanted, each = Wanted(set), dict[Hashable, int]()
        want(wanted, str(key), None)
        for leaf, stop in zip(self._leaves, self._stops, strict=True):
            for place, which in leaf.places(wanted):
                index = stop - leaf.samples + place
                if index in self._indices:
                    each.setdefault((stop, which), self._indices.index(index))
        found = [*each.values()]
        shown = printable(repr(key))
        if not found:
            hint = "check the key, the split part and the view; list(dataset) has all samples"
            raise SampleKeyError(f"no sample has the key {shown}", where=self._name(), hint=hint)
        if len(found) > 1:
            what = f"the samples {', '.join(map(str, sorted(found)[:4]))} have the key {shown}"
            hint = (
                "write the shard before it, as shard.tar/key; of a mixture, open one dataset; or use indices"
            )
            raise DuplicateKeyError(what, where=self._name(), hint=hint)
        return self[found[0]]

    def collate(self, samples: list[T]) -> Any:
        """Make a batch as the task encoder does, for ``DataLoader(dataset, collate_fn=dataset.collate)``."""
        return self._encoder.encode_batch(self._encoder.batch(samples))

    def _index(self, given: Any) -> int:
        try:
            return self._indices[whole(given)]
        except IndexError:
            hint = f"use {-len(self)} to {len(self) - 1}" if len(self) else "widen the slice"
            what = f"there is no sample {given} among {len(self):,}"
            raise SampleIndexError(what, where=self._name(), hint=hint) from None
        except TypeError:
            hint = "pass a number or a slice; by_key takes keys, and __getitems__ lists of numbers"
            raise ConfigError(f"{given!r:.40} is no index", where=self._name(), hint=hint) from None

    def _encoded(self, value: Any, index: int) -> T:
        config = self._reader.worker_config
        for function in self._functions:
            try:
                with config.activate(0, index):
                    value = function(value)
            except SkipSample as error:
                raise self._skipped(str(index)) from error
            except (StopIteration, LookupError) as error:  # to a caller: the end, or no such sample
                if isinstance(error, EnergonStreamError):
                    raise
                what = f"{function_name(function)} raised {type(error).__name__}: {error}"
                raise SampleError.from_sample(value, what) from error
            if isinstance(value, GeneratorType):
                what = f"{function_name(function)} makes several samples of sample {index}"
                raise ConfigError(what, where=self._name(), hint="return one, or use get_val_dataset")
        made: T = value
        return made

    def _skipped(self, which: str) -> SampleError:
        hint = "leave it out by a view (where=, exclude=), or return a mark that collate_fn drops"
        return SampleError(f"a hook skips sample {which}", where=self._name(), hint=hint)

    def _name(self) -> str:
        return ", ".join(leaf.index.name for leaf in self._leaves)


@names_checked("task_encoder", *SharedOptions.__optional_keys__ - {"handler"})
def open_dataset(
    path: PathOption, *, split_part: str = "train", **options: Unpack[DatasetOptions]
) -> MapStyleDataset[Any]:
    """Open a dataset for access by index and key: ``open_dataset(path)[17]``.

    Samples are decoded, cooked and encoded (``encode_sample``), neither packed nor batched. Use it with
    PyTorch's ``DataLoader``, samplers and workers. :func:`get_train_dataset` describes the arguments and
    errors; there is no ``worker_config``, because nothing is dealt.

    Example:
        >>> from energon_stream import open_dataset
        >>> dataset = open_dataset("captions")
        >>> len(dataset), dataset[0].__key__, dataset.by_key("00000003").image.shape
        (48, 'data-000000.tar/00000000', torch.Size([3, 48, 64]))
    """
    config = WorkerConfig(rank=0, world_size=1, num_workers=1)  # with workers, a fork stays possible
    request = DatasetRequest.of(path, split_part, {**options, "worker_config": config})
    mixture, datasets = open_processed(request)
    if len(datasets) > 1:
        raise ConfigError(
            f"{type(request.encoder).__qualname__} takes each dataset of the mixture on its own",
            hint="open the datasets one by one, or do not override build_cook_crude_sample",
        )
    return MapStyleDataset(datasets[0], mixture.plans, request)
