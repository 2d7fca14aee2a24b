"""From references to datasets, to opened sources and the plan that orders them."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from energon_stream.errors import UnsupportedStoreError
from energon_stream.index.dataset import WebDatasetIndex, dataset_kind, open_webdataset
from energon_stream.pipeline.source import SourceLeaf
from energon_stream.read.decode import FileStoreDecoder
from energon_stream.recipe.sample_types import make_sample_factory
from energon_stream.recipe.subset import parse_subset
from energon_stream.recipe.tree import LeafRef
from energon_stream.schedule import LeafPlan, OrderSpec
from energon_stream.storage import is_local, run_isolated
from energon_stream.worker import WorkerConfig

__all__ = ["SampleOptions", "open_leaf", "open_sources"]

_OPENERS = 16
"""Datasets whose metadata is read at the same time."""


@dataclass(frozen=True, slots=True)
class SampleOptions:
    """How samples are made of parts.

    Attributes:
        decoder: Decodes parts; None leaves bytes.
        trust_dataset_code: Whether classes and files named by a dataset may be imported and run.
    """

    decoder: FileStoreDecoder | None
    trust_dataset_code: bool | None = None


def open_sources(refs: Sequence[LeafRef], config: WorkerConfig) -> list[WebDatasetIndex]:
    """Read the metadata of some datasets, concurrently.

    A process that is going to fork workers must not start a client of its own, so it has a short-lived
    child read remote metadata.

    Raises:
        EnergonStreamError: What :func:`open_webdataset` raises.
    """
    remote = any(not is_local(ref.spec.url) for ref in refs)
    return run_isolated(_open_all, refs) if remote and config.num_workers else _open_all(refs)


def _open_all(refs: Sequence[LeafRef]) -> list[WebDatasetIndex]:
    if len(refs) == 1:
        return [_open(refs[0])]
    with ThreadPoolExecutor(_OPENERS) as pool:
        return list(pool.map(_open, refs))


def _open(ref: LeafRef) -> WebDatasetIndex:
    kind = dataset_kind(ref.spec.url)
    if kind != "webdataset":
        raise UnsupportedStoreError(f"a {kind} cannot be read yet", where=ref.spec.url)
    names = {"split_part": ref.split_part, "split_config": ref.split_config}
    index = open_webdataset(ref.spec, dataset_config=ref.dataset_config, **names)
    wanted = {name: str((index.dataset_yaml or {}).get(name, value)) for name, value in names.items()}
    # What dataset.yaml says goes before what the caller says; it is known only now.
    return (
        index if wanted == names else open_webdataset(ref.spec, dataset_config=ref.dataset_config, **wanted)
    )


def open_leaf(
    number: int, ref: LeafRef, index: WebDatasetIndex, order: OrderSpec, samples: SampleOptions
) -> tuple[SourceLeaf, LeafPlan]:
    """Make a source of an opened dataset.

    Args:
        number: Its number in the plan.
        ref: Its reference.
        index: The opened dataset.
        order: How to shuffle; what ``dataset.yaml`` says goes before.
        samples: How samples are made.

    Raises:
        ConfigError: The subset is not one, or the dataset names code that is not trusted.
        MetadataError: ``dataset.yaml`` is wrong.
    """
    factory, options = make_sample_factory(
        index, decoder=samples.decoder, trust=samples.trust_dataset_code, dataset_config=ref.dataset_config
    )
    order = replace(order, **options.order_overrides())
    where = f"{index.spec.url} [{index.split_part}]"
    subset = parse_subset(options.overrides["subset"], where) if "subset" in options.overrides else ref.subset
    start, stop = subset.bounds(index.num_samples, where)
    subflavors = {**options.subflavors, **ref.subflavors}
    return SourceLeaf(index, factory, subflavors), LeafPlan(number, index.shard_starts, order, start, stop)
