"""Makes the leaves of a mixture from opened datasets: how samples are made, and their order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from energon_stream.auxiliary.stores import SystemFileStore, WebdatasetFileStore
from energon_stream.config.dataset_yaml import DatasetYamlOptions, make_sample_factory
from energon_stream.config.joins import join_leaf
from energon_stream.config.references import AnyLeafRef, AuxRef, JoinRef, LeafRef
from energon_stream.config.sample_factory import SampleFactory
from energon_stream.decode import FileStoreDecoder, SampleDecoder
from energon_stream.index.dataset import DatasetIndex, WebDatasetIndex
from energon_stream.index.join_index import JoinIndex
from energon_stream.media import AuxStores, DecodeFileStore, FileStore
from energon_stream.pipeline.leaf import DatasetLeaf, Leaf
from energon_stream.schedule import LeafPlan, OrderSpec
from energon_stream.task.cooking import cooker_parts

if TYPE_CHECKING:
    from energon_stream.config.dataset_options import DatasetRequest


def open_leaf(
    number: int, ref: AnyLeafRef, index: DatasetIndex, order: OrderSpec | None, request: DatasetRequest
) -> tuple[Leaf, LeafPlan]:
    """Make a leaf of the mixture from an opened dataset.

    Raises ConfigError if the subset does not fit, and what :func:`make_sample_factory` raises.
    """
    if isinstance(ref, JoinRef) and isinstance(index, JoinIndex):
        uncooked = replace(request, cookers=())  # cookers get the joined samples
        members = [
            _dataset_leaf(member.leaf, own, uncooked, on_demand=bool(request.cookers))[0]
            for member, own in zip(ref.members, index.members, strict=True)
        ]
        return join_leaf(number, ref, index, members, order or OrderSpec(), request.trust_dataset_code)
    if isinstance(ref, JoinRef):
        raise TypeError(f"a join cannot be made of a {type(index).__name__}")
    leaf, options = _dataset_leaf(ref, index, request, on_demand=bool(request.cookers))
    order = OrderSpec() if order is None else replace(order, **options.order)
    where = f"{index.spec.url} [{index.split_part}]"
    selection, starts = index.selection, index.shard_starts
    starts = starts if selection is None else selection.shard_starts(starts)
    start, stop = (options.subset or ref.subset).bounds(int(starts[-1]), where)
    return leaf, LeafPlan(number, starts, order, start, stop, selection)


def _dataset_leaf(
    ref: LeafRef, index: DatasetIndex, request: DatasetRequest, on_demand: bool
) -> tuple[DatasetLeaf, DatasetYamlOptions]:
    """Make the leaf of a dataset. ``on_demand``: cookers decide which parts of crude samples are decoded."""
    plain_keys = request.config.conventions == "energon"
    if not isinstance(index, WebDatasetIndex):  # a JSONL file: its records are crude, and always parsed
        stores = _stores(ref, None, request.decoder)
        subflavors = dict(ref.subflavors)
        factory = _within(
            SampleFactory(SampleDecoder(limits=request.location.limits)), ref, request, subflavors
        )
        return DatasetLeaf(index, factory, subflavors, stores, plain_keys), DatasetYamlOptions()
    factory, options = make_sample_factory(
        index,
        decoder=request.decoder,
        trust=request.trust_dataset_code,
        dataset_config=ref.dataset_config,
        declared=ref.declared,
        limits=request.location.limits,
    )
    primary = AuxRef(ref.spec, "webdataset") if index.plain is None else None
    stores = _stores(ref, primary, request.decoder)
    subflavors = {**options.subflavors, **ref.subflavors}
    factory = replace(_within(factory, ref, request, subflavors), on_demand=on_demand)
    return DatasetLeaf(index, factory, subflavors, stores, plain_keys), options


def _within(
    factory: SampleFactory, ref: LeafRef, request: DatasetRequest, subflavors: Mapping[str, Any]
) -> SampleFactory:
    """Leave out parts that the metadataset, the caller or the cooker does not name."""
    cooked = cooker_parts(request.cookers, subflavors) if factory.is_crude else None
    for parts in (ref.parts, request.parts, cooked):
        factory = factory if parts is None else factory.within(parts, ref.spec.url)
    return factory


def _stores(ref: LeafRef, primary: AuxRef | None, decoder: FileStoreDecoder | None) -> AuxStores:
    return AuxStores(
        {name: _file_store(aux, decoder) for name, aux in ref.aux.items()},
        None if primary is None else _file_store(primary, decoder),
    )


def _file_store(ref: AuxRef, decoder: FileStoreDecoder | None) -> FileStore[Any]:
    files = ref.kind == "filesystem"
    store: FileStore[Any] = SystemFileStore(ref.spec) if files else WebdatasetFileStore(ref.spec)
    return store if decoder is None else DecodeFileStore(store, decoder=decoder)
