"""Makes datasets of dataset classes: ``StandardWebdatasetFactory(path, …).build()``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

from energon_stream.config.dataset_options import DatasetOptions, DatasetRequest, Shuffling
from energon_stream.config.leaves import JoinLeaf, open_leaf
from energon_stream.config.mixture import LeafDataset
from energon_stream.config.opening import open_location
from energon_stream.config.sample_factory import SampleFactory
from energon_stream.decode import FileStoreDecoder
from energon_stream.errors import ConfigError, MetadataError, SkipSample
from energon_stream.index.dataset import WebDatasetIndex
from energon_stream.index.join_index import read_join_index
from energon_stream.pipeline.leaf import DatasetLeaf, Leaf
from energon_stream.samples import CrudeSample, Sample, SourceInfo
from energon_stream.schedule import LeafPlan
from energon_stream.storage import StoreSpec


@dataclass(frozen=True, slots=True)
class _CalledDecoder(FileStoreDecoder):
    """Wraps a decoder that takes a dict of encoded parts, such as ``webdataset.autodecode.Decoder``."""

    function: Callable[[dict[str, Any]], Mapping[str, Any]]

    def decode(self, fname: str, raw: bytes | memoryview) -> Any:
        """Decode one part; see ``FileStoreDecoder``."""
        return self.function({"__key__": "", fname: bytes(raw)})[fname]


@dataclass(frozen=True, slots=True)
class CalledMethods:
    """Calls ``sample_filter`` and ``load_sample`` of a dataset class for each sample."""

    made: Any

    def __call__(
        self,
        build: Callable[..., Any],
        key: str,
        parts: Mapping[str, bytes | memoryview],
        *,
        restore_key: tuple[Any, ...],
        subflavors: dict[str, Any] | None,
        source: SourceInfo,
    ) -> Any:
        """Make one sample; raise SkipSample if the filter rejects it."""
        shard = f"{source.shard_name}/"
        if not self.made.sample_filter(key if key.startswith(shard) else shard + key):
            raise SkipSample
        raw = {
            "__key__": key,
            "__shard__": source.shard_name,
            "__restore_key__": restore_key,
            "__sources__": (source,),
            **{name: bytes(data) for name, data in parts.items()},
        }
        self.made.build_sample = build
        sample = self.made.load_sample(raw)
        if subflavors is not None and isinstance(sample, dict):
            sample["__subflavors__"] = dict(subflavors)
        elif subflavors is not None and hasattr(sample, "__subflavors__"):
            sample.__subflavors__ = dict(subflavors)
        return sample


def foreign_bases(found: type[Any]) -> list[type[Any]]:
    """Return a class and its bases, without those of this library."""
    return [cls for cls in found.__mro__ if not cls.__module__.startswith("energon_stream.")]


def describe_object(
    made: Any, where: str
) -> tuple[dict[str, Any], FileStoreDecoder | None, type[Sample] | None, CalledMethods | None]:
    """Read the attributes of an object of a dataset class; see :func:`~compat.foreign.describe_foreign`."""
    keys = ("field_map", "sample_loader", "part_filter", "subflavors")
    described = {key: value for key in keys if (value := getattr(made, key, None)) is not None}
    bases = foreign_bases(type(made))
    overridden = any(hook in vars(cls) for cls in bases for hook in ("load_sample", "sample_filter"))
    custom = CalledMethods(made) if overridden else None
    return described, _decoder(made), _sample_type(made, where), custom


def _sample_type(made: Any, where: str) -> type[Sample] | None:
    found = made.__sample_type__
    if isinstance(found, type) and issubclass(found, CrudeSample):
        return None
    if not (isinstance(found, type) and issubclass(found, Sample)):
        raise MetadataError(
            f"{type(made).__qualname__}.__sample_type__ is {found!r}",
            where=where,
            hint="set it to a sample type",
        )
    return found


def _decoder(made: Any) -> FileStoreDecoder | None:
    found = getattr(made, "_decoder", None)
    return found if found is None or isinstance(found, FileStoreDecoder) else _CalledDecoder(found)


class OpenedObject(NamedTuple):
    """The dataset that an object of a dataset class describes."""

    leaf: Leaf
    plan: LeafPlan
    request: DatasetRequest

    @property
    def dataset(self) -> LeafDataset:
        """One pass over the samples."""
        request = self.request
        return LeafDataset((self.leaf,), self.plan, worker_config=request.config, options=request.limits)


def open_object(made: Any) -> OpenedObject:
    """Open the dataset that an object of a dataset class describes.

    Raises what :func:`get_train_dataset` raises.
    """
    options = dict(made.options)
    shuffling = Shuffling(
        None, options.pop("max_samples_per_sequence", None), options.pop("parallel_shard_iters", None)
    )
    multiplier = options.pop("shuffle_over_epochs", 1)
    split_part = options.pop("split_part", None) or ("train" if made.training else "val")
    opening = {
        name: options.pop(name)
        for name in ("split_config", "subset", "filter_name")
        if options.get(name) is not None
    }
    shared = cast("DatasetOptions", {"worker_config": made.worker_config, **opening})
    request = DatasetRequest.of(str(made.path), split_part, shared, multiplier=multiplier)
    ((item, index),) = open_location(request.location, request.config.num_workers)
    custom = None
    if isinstance(index, WebDatasetIndex):
        described, decoder, sample_type, custom = describe_object(made, str(made.path))
        index = replace(index, dataset_yaml={"sample_type": sample_type or CrudeSample, **described})
        request = replace(request, decoder=decoder)
    order = shuffling.order(multiplier) if made.training else None
    leaf, plan = open_leaf(0, item.ref, index, order, request)
    if isinstance(leaf, DatasetLeaf) and isinstance(leaf.builder, SampleFactory):
        leaf = replace(leaf, builder=replace(leaf.builder, custom=custom))
    return OpenedObject(leaf, plan, request)


def open_joined(made: Any) -> OpenedObject:
    """Open the join that a ``JoinedWebdatasetFactory`` describes.

    Raises ConfigError if a joined dataset is no prepared folder of tars.
    """
    opened = [open_object(inner) for inner in made.inner_datasets]
    members = [each.leaf for each in opened if isinstance(each.leaf, DatasetLeaf)]
    indices = [leaf.index for leaf in members if isinstance(leaf.index, WebDatasetIndex)]
    if len(indices) < len(opened):
        raise ConfigError(
            "only folders of tars can be joined", where=str(made.path), hint="prepare the datasets"
        )
    request = opened[0].request
    spec = StoreSpec(str(made.join_index))
    index = request.location.read(
        lambda: read_join_index(spec, indices), forks=request.config.num_workers > 0
    )
    joiner = getattr(made.joiner, "from_joined", made.joiner)
    leaf = JoinLeaf(index, tuple(members), joiner, made.names, members[0].subflavors)
    plan = LeafPlan(0, index.shard_starts, opened[0].plan.order, 0, index.num_samples)
    return OpenedObject(leaf, plan, request)
