"""Leaves of a pipeline: prepared datasets, and how their samples are made."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from energon_stream.drawing import SHOWN, Drawing
from energon_stream.index.bad_samples import BadSample, dataset_name
from energon_stream.index.dataset import DatasetIndex, WebDatasetIndex
from energon_stream.index.files_index import FilesIndex
from energon_stream.index.join_index import JoinIndex
from energon_stream.logs import log_once
from energon_stream.media import AuxStores
from energon_stream.pipeline.decode_ahead import AheadParts, Decoding
from energon_stream.samples import SourceInfo
from energon_stream.schedule import BlendPlan, LeafPlan, Plan, RepeatPlan, leaves, reached_shares
from energon_stream.urls import shown_url

if TYPE_CHECKING:
    from energon_stream.decode import FileStoreDecoder
    from energon_stream.pipeline.decode_ahead import DecodeThreads
    from energon_stream.pipeline.node import RestoreKey
    from energon_stream.read.locator import RawSample
    from energon_stream.read.part_ranges import PartSelection

_log = logging.getLogger(__name__)
_NAMED = 3  # datasets in a warning


class SampleBuilder(Protocol):
    """Converts a sample's parts into an element; made from a ``dataset.yaml``."""

    @property
    def is_crude(self) -> bool:
        """True if it makes crude samples."""

    @property
    def selection(self) -> PartSelection | None:
        """Parts that it reads; None if it may read any."""

    @property
    def decoder(self) -> FileStoreDecoder | None:
        """Decodes parts; None if they stay bytes."""

    def build(
        self,
        key: str,
        parts: Mapping[str, bytes | memoryview],
        *,
        restore_key: RestoreKey,
        subflavors: dict[str, Any] | None,
        source: SourceInfo,
    ) -> Any:
        """Decode and assemble one sample. Raises SampleError if the parts cannot be made into a sample."""


class Leaf(Protocol):
    """One dataset of a plan: its index, and how its samples are made. It travels to other processes."""

    __dataclass_fields__: ClassVar[dict[str, Any]]  # it is a frozen dataclass

    @property
    def index(self) -> DatasetIndex:
        """The opened dataset."""

    @property
    def subflavors(self) -> dict[str, Any] | None:
        """Subflavors of each sample."""

    @property
    def is_crude(self) -> bool:
        """True if all samples are crude."""

    @property
    def selection(self) -> PartSelection | None:
        """Parts to read; None for all."""

    @property
    def stores(self) -> AuxStores:
        """Stores of auxiliary data, from which cookers complete crude samples."""

    @property
    def plain_keys(self) -> bool:
        """True if the keys of its samples have no shard."""

    def make(self, raw: RawSample, restore_key: RestoreKey) -> Any:
        """Convert a raw sample into an element. Raises SampleError if its parts make no sample."""

    def decode_ahead(self, raw: RawSample, threads: DecodeThreads, worth: set[str]) -> None:
        """Begin to decode those parts of a raw sample that are worth it."""


def key_of(raw: RawSample, leaf: Leaf) -> str:
    """Return the ``__key__`` of a leaf's sample."""
    return raw.key if leaf.plain_keys else raw.name


def place_of(leaf: Leaf, sample: int, known: str | None, raw: RawSample | None, member: int) -> BadSample:
    """Name a sample, given the key of an element, which users may have changed, or the sample itself."""
    index = leaf.index
    if isinstance(index, JoinIndex):
        own = None if raw is None else raw.members[member]
        place = (None, None, None) if own is None else (own.shard, None, own.key)
        return BadSample(dataset_name(index.members[member].spec.url), *place)
    if isinstance(index, FilesIndex):
        key = known if raw is None else raw.key
        return BadSample(dataset_name(index.spec.url), None, sample, key, version=index.version)
    number = int(index.shard_of(np.array([sample]))[0])
    shard = index.shard_paths[number] if isinstance(index, WebDatasetIndex) else None
    key = None if raw is None else raw.key
    if known is not None and (shard is None or leaf.plain_keys or known.startswith(f"{shard}/")):
        key = known.removeprefix(f"{shard}/")
    at = sample - int(index.shard_starts[number])
    return BadSample(dataset_name(index.spec.url), shard, at, key)


@dataclass(frozen=True, slots=True)
class DatasetLeaf:
    """One prepared dataset of a plan; a :class:`Leaf`."""

    index: DatasetIndex
    builder: SampleBuilder  # makes its samples
    subflavors: dict[str, Any] | None = None
    stores: AuxStores = field(default_factory=AuxStores)
    plain_keys: bool = False
    dataset_path: str = field(init=False)  # URL in the sources of the samples, without credentials

    def __post_init__(self) -> None:
        object.__setattr__(self, "dataset_path", shown_url(self.index.spec.url))

    @property
    def is_crude(self) -> bool:
        return self.builder.is_crude

    @property
    def selection(self) -> PartSelection | None:
        return self.builder.selection

    def decode_ahead(self, raw: RawSample, threads: DecodeThreads, worth: set[str]) -> None:
        decoder = self.builder.decoder
        if decoder is not None and decoder.thread_safe:
            raw.parts = AheadParts(raw.parts, Decoding(worth, threads, decoder.decode, raw.parts))

    def make(self, raw: RawSample, restore_key: RestoreKey) -> Any:
        """Convert a raw sample into an element, whose ``__sources__`` name the selected parts."""
        builder, parts, key, shard = self.builder, raw.parts, raw.key, raw.shard
        selection = builder.selection
        begin = key + "."
        names = []
        for part in parts:
            if selection is None or part in selection:
                names.append(begin + part)  # noqa: PERF401 # a comprehension takes half as long again
        source = SourceInfo(self.dataset_path, raw.index, shard, tuple(names))
        return builder.build(
            key if shard is None or self.plain_keys else f"{shard}/{key}",  # as ``raw.name``
            parts,
            restore_key=restore_key,
            subflavors=self.subflavors,
            source=source,
        )


def draw_plan(plan: Plan, datasets: Sequence[Leaf]) -> Drawing:
    """Return a plan as boxes."""
    if isinstance(plan, LeafPlan):
        index = datasets[plan.leaf].index
        return Drawing(f"{index.spec.url} [{index.split_part}]")
    if isinstance(plan, RepeatPlan):
        box = draw_plan(plan.child, datasets)
        if plan.repeats is None:
            return box
        return replace(box, title=f"{plan.repeats:g} x {box.title or 'mixture'}")
    inner = tuple(draw_plan(child, datasets) for child in plan.children[:SHOWN])
    if isinstance(plan, BlendPlan):
        inner = tuple(box.labelled(f"{weight:g}") for box, weight in zip(inner, plan.weights, strict=False))
    return Drawing("", inner=inner, more=max(0, len(plan.children) - SHOWN))


def tell_shares(plan: Plan, datasets: Sequence[Leaf], num_streams: int) -> None:
    """Log a warning with the shares that are reached, if some are below their weights."""
    short = []
    for blend, shares in reached_shares(plan, num_streams):
        for child, weight, share in zip(blend.children, blend.weights, shares, strict=True):
            wanted = weight / sum(blend.weights)
            if share < 0.99 * wanted:
                path = shown_url(datasets[next(leaves(child)).leaf].index.spec.url)
                short.append(f"{path} gets {share:.3g} of the draws, where its weight says {wanted:.3g}")
    if short:
        log_once(
            _log,
            "%d datasets of a blend have fewer samples than the %d streams (workers of all ranks), so that some "
            "streams cannot draw from them: %s; use fewer ranks and workers, or larger datasets",
            len(short),
            num_streams,
            ", ".join(short[:_NAMED]) + (", …" if len(short) > _NAMED else ""),
        )
