"""What a user names, to opened sources. All that is read before the samples is read here, at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

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
from energon_stream.recipe.metadataset_files import MetadatasetFiles
from energon_stream.recipe.sample_factory import SampleFactory
from energon_stream.recipe.sample_types import DeclaredSamples
from energon_stream.recipe.subset import Subset, parse_subset
from energon_stream.recipe.tree import (
    AnyLeafRef,
    AuxRef,
    JoinRef,
    LeafRef,
    MetadatasetRef,
    MixtureItem,
    Reference,
    inherit,
)
from energon_stream.schedule import LeafPlan, OrderSpec
from energon_stream.storage import (
    StoreLayer,
    StoreSpec,
    Transport,
    is_local,
    run_isolated,
    strip_credentials,
)
from energon_stream.task.cooking import Cooker, cooker_parts

__all__ = [
    "SampleOptions",
    "DatasetLocation",
    "isolated",
    "open_all",
    "open_leaf",
    "read_items",
    "read_leaves",
]

_OPENERS = 32
"""Sources that are opened at the same time; the fetcher bounds the requests."""

T = TypeVar("T")
_MetadataKey = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class DatasetLocation:
    """What a user names, and how to reach it.

    Attributes:
        root: Path or URL of a dataset or metadataset, or a metadataset's parsed document.
        split_part: Split of the metadataset, or part of the dataset.
        storage_options: Credentials and the like.
        transport: How to read what is not local.
        split_config: File in ``.nv-meta`` that defines the parts; datasets only.
        dataset_config: File in ``.nv-meta`` that says how samples are made; datasets only.
        subset: Which share of everything.
        multiplier: ``shuffle_over_epochs_multiplier`` of everything.
        through: What is between the readers and stores that are not local.
        declared: What the samples are; single datasets only.
    """

    root: str | Mapping[str, Any]
    split_part: str
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    transport: Transport = "auto"
    split_config: str = SPLIT_CONFIG
    dataset_config: str = DATASET_CONFIG
    subset: Subset = field(default_factory=Subset)
    multiplier: int | None = 1
    through: StoreLayer | None = None
    declared: DeclaredSamples | None = None

    @property
    def is_metadataset(self) -> bool:
        """Whether it names others."""
        return not isinstance(self.root, str) or dataset_kind(self.root) == "metadataset"

    def items(self) -> list[MixtureItem]:
        """Its sources; reads metadataset files and nothing else.

        Raises:
            ConfigError: An option that only single datasets have.
            EnergonStreamError: What :meth:`MetadatasetFiles.items` raises.
        """
        files = MetadatasetFiles(self.storage_options, self.transport, self.through)
        return files.items(self._reference(files))

    def _reference(self, files: MetadatasetFiles) -> Reference:
        names = self.split_config, self.dataset_config
        if self.is_metadataset and (
            names != (SPLIT_CONFIG, DATASET_CONFIG) or self.subset.in_samples or self.declared is not None
        ):
            raise ConfigError(
                "split_config, dataset_config, sample_type and sample numbers are for single datasets",
                hint="set them in the metadataset, where the dataset is named",
            )
        if not isinstance(self.root, str):
            return inherit(files.document(self.root).split(self.split_part), {}, self.subset, self.multiplier)
        if self.is_metadataset:
            spec = files.spec(self.root)
            return MetadatasetRef(spec, self.split_part, subset=self.subset, multiplier=self.multiplier)
        spec = StoreSpec(self.root, self.storage_options, self.transport, self.through)
        return LeafRef(
            spec,
            self.split_part,
            *names,
            subset=self.subset,
            multiplier=self.multiplier,
            declared=self.declared,
        )


@dataclass(frozen=True, slots=True)
class SampleOptions:
    """How samples are made of parts.

    Attributes:
        decoder: Decodes parts; None leaves bytes.
        trust_dataset_code: Whether classes and files named by a dataset may be imported and run.
        parts: The parts that are used; None for all.
        cookers: What crude samples are for.
    """

    decoder: FileStoreDecoder | None
    trust_dataset_code: bool | None = None
    parts: frozenset[str] | None = None
    cookers: Sequence[Cooker[Any]] = ()


def isolated(location: DatasetLocation, num_workers: int, read: Callable[[], T]) -> T:
    """Read for a location, in a short-lived child where this process is going to fork workers.

    It must not start a client of its own. What a metadataset names is not known yet, and may be remote.
    """
    local = not location.is_metadataset and is_local(str(location.root))
    return read() if local or not num_workers else run_isolated(read)


def read_items(location: DatasetLocation) -> list[MixtureItem]:
    """The sources that a location names, without touching them."""
    return isolated(location, 1, location.items)


def read_leaves(location: DatasetLocation, num_workers: int) -> list[tuple[MixtureItem, DatasetIndex]]:
    """Open all sources of a location, concurrently and in one child.

    Raises:
        EnergonStreamError: What :meth:`DatasetLocation.items` and :func:`open_webdataset` raise.
    """

    def read() -> list[tuple[MixtureItem, DatasetIndex]]:
        items = location.items()
        return list(zip(items, open_all([item.ref for item in items]), strict=True))

    return isolated(location, num_workers, read)


def open_all(refs: Sequence[AnyLeafRef]) -> list[DatasetIndex]:
    """Open sources, all at the same time; raises what :func:`read_leaves` does."""
    metadata: dict[_MetadataKey, Future[DatasetMetadata]] = {}
    pool = ThreadPoolExecutor(min(_OPENERS, len(refs)))
    try:
        return [finish() for finish in [_begin(ref, pool, metadata) for ref in refs]]
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(
    ref: AnyLeafRef, pool: ThreadPoolExecutor, metadata: dict[_MetadataKey, Future[DatasetMetadata]]
) -> Callable[[], DatasetIndex]:
    """Begin to open a source, by its kind; what it returns waits for the result."""
    if isinstance(ref, JoinRef):
        members = [_begin(member.leaf, pool, metadata) for member in ref.members]
        # Waits in the pool for what was given to the pool before it, so there is always a thread that works.
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
    if key not in metadata:  # several parts of one dataset are common
        metadata[key] = pool.submit(
            read_metadata, ref.spec, split_config=ref.split_config, dataset_config=ref.dataset_config
        )
    return partial(_select, ref, metadata[key].result)


def _open_tars(ref: LeafRef) -> WebDatasetIndex:
    _refuse_files(ref)
    return open_plain(*find_tars(ref.spec), split_part=ref.split_part)


def _open_declared(ref: LeafRef) -> WebDatasetIndex:
    """A folder of which the user says what the samples are: it may be one of tars, and no more."""
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
    # What dataset.yaml says goes before what the caller says; it is known only now.
    if wanted["split_config"] != ref.split_config:
        return open_webdataset(ref.spec, dataset_config=ref.dataset_config, **wanted)
    return select_part(ref.spec, wanted["split_part"], found)


def open_leaf(
    number: int, ref: AnyLeafRef, index: DatasetIndex, order: OrderSpec | None, samples: SampleOptions
) -> tuple[Leaf, LeafPlan]:
    """Make a source of an opened dataset.

    Args:
        number: Its number in the plan.
        ref: Its reference.
        index: The opened dataset.
        order: How to shuffle; what ``dataset.yaml`` says goes before. None not to shuffle at all.
        samples: How samples are made.

    Raises:
        ConfigError: The subset is not one, or the dataset names code that is not trusted.
        MetadataError: ``dataset.yaml`` is wrong.
    """
    if isinstance(ref, JoinRef) and isinstance(index, JoinIndex):
        uncooked = replace(samples, cookers=())  # cookers get what the joiner makes
        members = [
            _source_leaf(member.leaf, own, uncooked)[0]
            for member, own in zip(ref.members, index.members, strict=True)
        ]
        return join_leaf(number, ref, index, members, order or OrderSpec(), samples.trust_dataset_code)
    if isinstance(ref, JoinRef):
        raise TypeError(f"a join cannot be made of a {type(index).__name__}")
    leaf, options = _source_leaf(ref, index, samples)
    order = OrderSpec() if order is None else replace(order, **options.order_overrides())
    where = f"{index.spec.url} [{index.split_part}]"
    subset = parse_subset(options.overrides["subset"], where) if "subset" in options.overrides else ref.subset
    start, stop = subset.bounds(index.num_samples, where)
    return leaf, LeafPlan(number, index.shard_starts, order, start, stop)


def _source_leaf(
    ref: LeafRef, index: DatasetIndex, samples: SampleOptions
) -> tuple[DatasetLeaf, DatasetYamlOptions]:
    if not isinstance(index, WebDatasetIndex):  # a JSONL file: crude, and always parsed
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
    """Leave out the parts that the metadataset, the caller or the cooker does not name."""
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
