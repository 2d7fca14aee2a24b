"""Makes the leaves of a mixture from opened datasets and joins: how samples are made, and their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from energon_stream.auxiliary import (
    ByteRangeStore,
    SystemFileStore,
    WebdatasetFileStore,
    registered_store,
)
from energon_stream.config.dataset_yaml import DatasetYamlOptions, make_file_samples, make_sample_factory
from energon_stream.config.named_code import import_class, imported_joiner, is_own_module
from energon_stream.config.references import AnyLeafRef, AuxRef, JoinerRef, JoinRef, LeafRef
from energon_stream.config.sample_factory import SampleFactory
from energon_stream.config.sample_types import resolve_sample_type
from energon_stream.errors import ConfigError, MetadataError
from energon_stream.index.dataset import DatasetIndex, WebDatasetIndex
from energon_stream.index.files_index import FilesIndex
from energon_stream.index.join_index import JoinIndex
from energon_stream.media import AuxStores, DecodeFileStore, FileStore
from energon_stream.media.file_store import FileDecoder
from energon_stream.pipeline.failure_notes import JOIN_MEMBER
from energon_stream.pipeline.leaf import DatasetLeaf, Leaf
from energon_stream.plugins import load_plugin
from energon_stream.samples import Sample, SourceInfo
from energon_stream.schedule import LeafPlan, OrderSpec
from energon_stream.task.cooking import cooker_parts

if TYPE_CHECKING:
    from energon_stream.config.dataset_options import DatasetRequest
    from energon_stream.decode import FileStoreDecoder
    from energon_stream.pipeline.decode_ahead import DecodeThreads
    from energon_stream.read.locator import RawSample
    from energon_stream.read.part_ranges import PartSelection


def open_leaf(
    number: int, ref: AnyLeafRef, index: DatasetIndex, order: OrderSpec | None, request: DatasetRequest
) -> tuple[Leaf, LeafPlan]:
    """Make a leaf of the mixture from an opened dataset or join.

    Raises ConfigError if the subset does not fit, or a joiner cannot join such samples.
    """
    selection, starts = index.selection, index.shard_starts
    starts = starts if selection is None else selection.shard_starts(starts)
    if isinstance(ref, JoinRef):
        if not isinstance(index, JoinIndex):
            raise TypeError(f"a join cannot be made of a {type(index).__name__}")
        start, stop = ref.subset.bounds(int(starts[-1]), ref.where)
        # One virtual shard of rows, in the order of the primary dataset.
        plan = LeafPlan(number, starts, order or OrderSpec(), start, stop, selection)
        return _join_leaf(ref, index, request), plan
    leaf, options = _dataset_leaf(ref, index, request)
    order = OrderSpec() if order is None else replace(order, **options.order)
    if isinstance(index, FilesIndex) and index.format.whole_shards:
        order = replace(order, max_samples_per_sequence=None)
    start, stop = (options.subset or ref.subset).bounds(int(starts[-1]), index.name)
    return leaf, LeafPlan(number, starts, order, start, stop, selection)


def _dataset_leaf(
    ref: LeafRef, index: DatasetIndex, request: DatasetRequest, *, joined: bool = False
) -> tuple[DatasetLeaf, DatasetYamlOptions]:
    """Make the leaf of a dataset. If it is ``joined``, cookers get the joined samples, and not its own."""
    limits = request.location.files.limits
    if isinstance(index, WebDatasetIndex):
        factory, options = make_sample_factory(
            index,
            decoder=request.decoder,
            trust=request.trust_dataset_code,
            dataset_config=ref.dataset_config,
            declared=ref.declared,
            limits=limits,
        )
        # Cookers decide which parts of crude samples are decoded.
        factory = replace(factory, on_demand=bool(request.cookers), memoryviews=request.memoryviews)
    elif isinstance(index, FilesIndex):
        factory, options = make_file_samples(index, ref.declared, trust=request.trust_dataset_code)
    else:
        raise TypeError(f"no samples can be made of a {type(index).__name__}")
    subflavors = {**options.subflavors, **ref.subflavors}
    cookers = () if joined or not factory.is_crude else request.cookers
    # Parts are left out that the metadataset, the caller or the cooker does not name.
    for parts in (ref.parts, request.parts, cooker_parts(cookers, subflavors)):
        factory = factory if parts is None else factory.within(parts, ref.spec.url)
    is_folder = isinstance(index, WebDatasetIndex) and index.plain is None
    decoder: Any = request.decoder  # of the user perhaps
    stores = AuxStores(
        {name: _file_store(aux, request.decoder) for name, aux in ref.aux.items()},
        _file_store(AuxRef(ref.spec, "webdataset"), request.decoder) if is_folder else None,
        by_range=decoder.takes_file if isinstance(decoder, FileDecoder) and factory.selection else None,
    )
    return DatasetLeaf(
        index,
        factory,
        subflavors,
        stores,
        plain_keys=isinstance(index, FilesIndex) or request.config.conventions == "energon",
    ), options


def _file_store(ref: AuxRef, decoder: FileStoreDecoder | None) -> FileStore[Any]:
    if ref.kind == "byterange":  # parts of files are no files to decode
        return ByteRangeStore(ref.spec)
    store: FileStore[Any]
    if ref.kind == "registered":
        beside = ref.beside and load_plugin("path_class")(ref.beside)
        store = registered_store(ref.spec.url, beside)
    else:
        store = SystemFileStore(ref.spec) if ref.kind == "filesystem" else WebdatasetFileStore(ref.spec)
    return store if decoder is None else DecodeFileStore(store, decoder=decoder)


@dataclass(frozen=True, slots=True)
class JoinLeaf:
    """A join as one leaf of a mixture; see :class:`energon_stream.pipeline.leaf.Leaf`."""

    index: JoinIndex
    members: tuple[DatasetLeaf, ...]  # the joined datasets. Each makes a sample for the joiner.
    joiner: Callable[..., Any]  # makes one sample of the samples in a row; a missing sample is None
    names: tuple[str, ...] | None = None  # keywords for the joiner; None passes the samples by position
    subflavors: dict[str, Any] | None = None  # put on each sample
    stores: AuxStores = field(default_factory=AuxStores)  # for cookers, if the joiner makes crude samples

    is_crude: ClassVar[bool] = False  # the type of the joiner's samples is not known before it runs
    selection: ClassVar[PartSelection | None] = None  # all parts of joined samples are read

    @property
    def plain_keys(self) -> bool:
        return self.members[0].plain_keys

    def decode_ahead(self, raw: RawSample, threads: DecodeThreads, worth: set[str]) -> None:
        for leaf, found in zip(self.members, raw.members, strict=True):
            if found is not None:
                leaf.decode_ahead(found, threads, worth)

    def make(self, raw: RawSample, restore_key: tuple[Any, ...]) -> Any:
        """Join the samples of a row, and set restore key and sources of the result."""
        samples = []
        for number, (leaf, found) in enumerate(zip(self.members, raw.members, strict=True)):
            try:
                samples.append(None if found is None else leaf.make(found, restore_key))
            except Exception as error:
                error.__dict__[JOIN_MEMBER] = number
                raise
        if self.names is None:
            joined = self.joiner(*samples)
        else:
            joined = self.joiner(**dict(zip(self.names, samples, strict=True)))
        sources = tuple(source for sample in samples for source in _sources(sample))
        if isinstance(joined, dict):
            joined.update(__restore_key__=restore_key, __sources__=sources)
        elif isinstance(joined, Sample):
            joined.__restore_key__, joined.__sources__ = restore_key, sources
        return joined


def _sources(sample: Any) -> tuple[SourceInfo, ...]:
    if sample is None:
        return ()
    found = sample.get("__sources__") if isinstance(sample, dict) else sample.__sources__
    return found or ()


def _join_leaf(ref: JoinRef, index: JoinIndex, request: DatasetRequest) -> JoinLeaf:
    members = [
        _dataset_leaf(leaf, own, request, joined=True)[0]
        for leaf, own in zip(ref.leaves, index.members, strict=True)
    ]
    joiner = _resolve_joiner(ref.joiner, request.trust_dataset_code)
    if getattr(joiner, "__func__", None) is _FROM_JOINED:
        for member in members:
            if isinstance(member.builder, SampleFactory) and member.builder.sample_type is None:
                raise ConfigError(
                    f"{ref.joiner.name}.from_joined cannot join the crude samples of {member.index.spec.url}",
                    where=ref.joiner.where,
                    hint="name a function as the joiner, or give the dataset a sample type",
                )
    names = tuple(str(member.name) for member in ref.members) if ref.members[0].name is not None else None
    leaves = tuple(
        replace(leaf, subflavors={**(leaf.subflavors or {}), **ref.subflavors}) for leaf in members
    )
    return JoinLeaf(index, leaves, joiner, names, leaves[0].subflavors, AuxStores(_all_aux(ref, members)))


def _all_aux(ref: JoinRef, members: Sequence[DatasetLeaf]) -> dict[str, FileStore[Any]]:
    found: dict[str, FileStore[Any]] = {}
    for name, store in (pair for member in members for pair in member.stores.aux.items()):
        if found.setdefault(name, store) != store:
            raise ConfigError(
                f"two datasets of the join have different auxiliary data of the name {name!r}",
                where=ref.where,
                hint="give one of them another name",
            )
    return found


_FROM_JOINED = Sample.from_joined.__func__  # type: ignore[attr-defined] # a classmethod has one


def _resolve_joiner(ref: JoinerRef, trust: bool | None) -> Callable[..., Any]:
    """Find the joiner: the ``from_joined`` of a class, or a function."""
    found: Any
    if ref.kind == "class" and is_own_module(ref.module):
        document = {"__module__": ref.module, "__class__": ref.name}
        found = resolve_sample_type(document, trust=trust, where=ref.where)
    else:
        of_program = imported_joiner(ref.module, ref.name) if trust is None else None
        found = of_program or import_class(ref.module, ref.name, trust=trust, where=ref.where)
    joiner = getattr(found, "from_joined", None) if ref.kind == "class" else found
    if not callable(joiner) or (ref.kind == "function" and isinstance(found, type)):
        wanted = "a class with from_joined" if ref.kind == "class" else "a function"
        raise MetadataError(f"{ref.module}.{ref.name} is not {wanted}", where=ref.where)
    return joiner  # type: ignore[no-any-return] # just seen to be callable
