"""Opens the datasets of a mixture: their indices, and how their samples are made and ordered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from energon_stream.errors import ConfigError
from energon_stream.index.dataset import (
    DatasetMetadata,
    WebDatasetIndex,
    dataset_kind,
    open_webdataset,
    read_metadata,
    select_part,
)
from energon_stream.index.dataset_index import DatasetIndex
from energon_stream.index.join_index import JoinIndex
from energon_stream.index.jsonl import open_jsonl
from energon_stream.index.metadata import DATASET_CONFIG, SPLIT_CONFIG
from energon_stream.index.plain import find_tars, list_tars, open_plain
from energon_stream.media import AuxStores, DecodeFileStore, FileStore
from energon_stream.pipeline.leaf import DatasetLeaf, Leaf
from energon_stream.read.decode import FileStoreDecoder, SampleDecoder
from energon_stream.read.file_stores import FolderFileStore, WebdatasetFileStore
from energon_stream.recipe.dataset_yaml import DatasetYamlOptions, make_sample_factory
from energon_stream.recipe.join import join_leaf, open_join
from energon_stream.recipe.location import DatasetLocation
from energon_stream.recipe.sample_factory import SampleFactory
from energon_stream.recipe.subset import parse_subset
from energon_stream.recipe.tree import (
    AnyLeafRef,
    AuxRef,
    JoinRef,
    LeafRef,
    MixtureItem,
)
from energon_stream.schedule import LeafPlan, OrderSpec
from energon_stream.storage import (
    strip_credentials,
)
from energon_stream.task.cooking import Cooker, cooker_parts

__all__ = ["SampleOptions", "open_all", "open_leaf", "open_location"]

_OPENERS = 32
"""Datasets that are opened at the same time; the fetcher bounds the requests."""

_MetadataKey = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class SampleOptions:
    """How samples are made of parts.

    Attributes:
        decoder: Decodes parts; None leaves bytes.
        trust_dataset_code: Whether classes and files that a dataset names may be imported and run; None asks the
            environment.
        parts: Parts that are used; None for all.
        cookers: Cookers that get the crude samples; they limit which parts are read.
    """

    decoder: FileStoreDecoder | None
    trust_dataset_code: bool | None = None
    parts: frozenset[str] | None = None
    cookers: Sequence[Cooker[Any]] = ()


def open_location(location: DatasetLocation, num_workers: int) -> list[tuple[MixtureItem, DatasetIndex]]:
    """Open all datasets of a location, concurrently.

    Raises:
        EnergonStreamError: What :meth:`DatasetLocation.items` and :func:`open_webdataset` raise.
    """

    def read() -> list[tuple[MixtureItem, DatasetIndex]]:
        items = location.items()
        return list(zip(items, open_all([item.ref for item in items]), strict=True))

    return location.read(read, forks=num_workers > 0)


def open_all(refs: Sequence[AnyLeafRef]) -> list[DatasetIndex]:
    """Open datasets and joins, all at the same time; raises what :func:`open_location` does."""
    metadata: dict[_MetadataKey, Future[DatasetMetadata]] = {}
    pool = ThreadPoolExecutor(min(_OPENERS, len(refs)))
    try:
        return [finish() for finish in [_begin(ref, pool, metadata) for ref in refs]]
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(
    ref: AnyLeafRef, pool: ThreadPoolExecutor, metadata: dict[_MetadataKey, Future[DatasetMetadata]]
) -> Callable[[], DatasetIndex]:
    """Begin to open a dataset; return a function that waits for the result."""
    if isinstance(ref, JoinRef):
        members = [_begin(member.leaf, pool, metadata) for member in ref.members]
        # The join waits in the pool for its members. They were submitted first, so a thread is always at work on them.
        return pool.submit(lambda: open_join(ref, [finish() for finish in members])).result
    kind = dataset_kind(ref.spec.url)
    if kind == "jsonl":
        _refuse(ref, ref.declared is not None, "sample_type", "the records of a JSONL file are crude")
        return pool.submit(open_jsonl, ref.spec).result
    if kind == "tars":
        return pool.submit(_open_tars, ref).result
    if ref.declared is not None:
        return pool.submit(_open_declared, ref).result
    key = ref.spec.url, ref.split_config, ref.dataset_config
    if key not in metadata:  # mixtures often name several split parts of one dataset
        metadata[key] = pool.submit(
            read_metadata, ref.spec, split_config=ref.split_config, dataset_config=ref.dataset_config
        )
    return partial(_select, ref, metadata[key].result)


def _open_tars(ref: LeafRef) -> WebDatasetIndex:
    _refuse_files(ref)
    return open_plain(*find_tars(ref.spec), split_part=ref.split_part)


def _open_declared(ref: LeafRef) -> WebDatasetIndex:
    """Open a folder with declared samples: one of plain tars, or a prepared one without ``dataset.yaml``."""
    tars = list_tars(ref.spec)
    if tars is None:
        files = {"split_config": ref.split_config, "dataset_config": ref.dataset_config}
        return _select(ref, partial(read_metadata, ref.spec, **files))
    _refuse_files(ref)
    return open_plain(ref.spec, tars, split_part=ref.split_part)


def _refuse_files(ref: LeafRef) -> None:
    given = (ref.split_config, ref.dataset_config) != (SPLIT_CONFIG, DATASET_CONFIG)
    _refuse(ref, given, "split_config or dataset_config", "the dataset is not prepared")


def _refuse(ref: LeafRef, is_given: bool, what: str, reason: str) -> None:
    if is_given:
        where = strip_credentials(ref.spec.url)
        raise ConfigError(f"{what} is not allowed here: {reason}", where=where, hint="leave it out")


def _select(ref: LeafRef, metadata: Callable[[], DatasetMetadata]) -> WebDatasetIndex:
    found = metadata()
    names = {"split_part": ref.split_part, "split_config": ref.split_config}
    wanted = {name: str((found.dataset_yaml or {}).get(name, value)) for name, value in names.items()}
    # dataset.yaml overrides the caller, and is known only now.
    if wanted["split_config"] != ref.split_config:
        return open_webdataset(ref.spec, dataset_config=ref.dataset_config, **wanted)
    return select_part(ref.spec, wanted["split_part"], found)


def open_leaf(
    number: int, ref: AnyLeafRef, index: DatasetIndex, order: OrderSpec | None, samples: SampleOptions
) -> tuple[Leaf, LeafPlan]:
    """Make a leaf of the mixture from an opened dataset.

    Args:
        number: Number of the leaf in the plan.
        ref: Reference to the dataset or join.
        index: The opened dataset or join.
        order: How to shuffle, unless ``dataset.yaml`` overrides it; None keeps the order of the samples.
        samples: How samples are made.

    Raises:
        ConfigError: The subset does not fit the dataset.
        MetadataError: ``dataset.yaml`` is wrong.
        UntrustedCodeError: The dataset names code, and is not trusted.
    """
    if isinstance(ref, JoinRef) and isinstance(index, JoinIndex):
        uncooked = replace(samples, cookers=())  # cookers get the joined samples
        members = [
            _dataset_leaf(member.leaf, own, uncooked)[0]
            for member, own in zip(ref.members, index.members, strict=True)
        ]
        return join_leaf(number, ref, index, members, order or OrderSpec(), samples.trust_dataset_code)
    if isinstance(ref, JoinRef):
        raise TypeError(f"a join cannot be made of a {type(index).__name__}")
    leaf, options = _dataset_leaf(ref, index, samples)
    order = OrderSpec() if order is None else replace(order, **options.order_overrides())
    where = f"{index.spec.url} [{index.split_part}]"
    subset = parse_subset(options.overrides["subset"], where) if "subset" in options.overrides else ref.subset
    start, stop = subset.bounds(index.num_samples, where)
    return leaf, LeafPlan(number, index.shard_starts, order, start, stop)


def _dataset_leaf(
    ref: LeafRef, index: DatasetIndex, samples: SampleOptions
) -> tuple[DatasetLeaf, DatasetYamlOptions]:
    if not isinstance(index, WebDatasetIndex):  # a JSONL file: its records are crude, and always parsed
        stores = _stores(ref, None, samples.decoder)
        subflavors = dict(ref.subflavors)
        factory = _within(SampleFactory(SampleDecoder()), ref, samples, subflavors)
        return DatasetLeaf(index, factory, subflavors, stores), DatasetYamlOptions()
    factory, options = make_sample_factory(
        index,
        decoder=samples.decoder,
        trust=samples.trust_dataset_code,
        dataset_config=ref.dataset_config,
        declared=ref.declared,
    )
    primary = AuxRef(ref.spec, "webdataset") if index.plain is None else None
    stores = _stores(ref, primary, samples.decoder)
    subflavors = {**options.subflavors, **ref.subflavors}
    return DatasetLeaf(index, _within(factory, ref, samples, subflavors), subflavors, stores), options


def _within(
    factory: SampleFactory, ref: LeafRef, samples: SampleOptions, subflavors: Mapping[str, Any]
) -> SampleFactory:
    """Leave out parts that the metadataset, the caller or the cooker does not name."""
    cooked = cooker_parts(samples.cookers, subflavors) if factory.is_crude else None
    for parts in (ref.parts, samples.parts, cooked):
        factory = factory if parts is None else factory.within(parts, ref.spec.url)
    return factory


def _stores(ref: LeafRef, primary: AuxRef | None, decoder: FileStoreDecoder | None) -> AuxStores:
    return AuxStores(
        {name: _file_store(aux, decoder) for name, aux in ref.aux.items()},
        None if primary is None else _file_store(primary, decoder),
    )


def _file_store(ref: AuxRef, decoder: FileStoreDecoder | None) -> FileStore[Any]:
    files = ref.kind == "filesystem"
    store: FileStore[Any] = FolderFileStore(ref.spec) if files else WebdatasetFileStore(ref.spec)
    return store if decoder is None else DecodeFileStore(store, decoder=decoder)
