"""What a path or a metadataset names: a frozen tree of references. Nothing here reads anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from energon_stream.errors import MetadataError
from energon_stream.index.join_index import NonMatch
from energon_stream.index.metadata import DATASET_CONFIG, SPLIT_CONFIG
from energon_stream.recipe.sample_types import DeclaredSamples
from energon_stream.recipe.subset import Subset
from energon_stream.storage import StoreSpec

__all__ = [
    "AuxRef",
    "BlendRef",
    "JoinMember",
    "JoinRef",
    "JoinerRef",
    "LeafRef",
    "MetadatasetRef",
    "NonMatch",
    "MixtureItem",
    "Reference",
    "AnyLeafRef",
    "inherit",
    "mixture_items",
]


@dataclass(frozen=True, slots=True)
class AuxRef:
    """Data that cookers look up by key.

    Attributes:
        spec: Where it lies.
        kind: ``webdataset`` for a prepared dataset, ``filesystem`` for a folder of plain files.
    """

    spec: StoreSpec
    kind: Literal["webdataset", "filesystem"]


@dataclass(frozen=True, slots=True)
class LeafRef:
    """A reference to one dataset, not opened yet.

    Attributes:
        spec: Where it lies: a folder, a ``.jsonl`` file, a ``.tar``, or several of these by braces.
        split_part: Which part of it.
        split_config: File in ``.nv-meta`` that defines the parts.
        dataset_config: File in ``.nv-meta`` that says how samples are made.
        subflavors: Put on each sample; they override those of the dataset itself.
        subset: Which of the part's samples.
        multiplier: ``shuffle_over_epochs_multiplier``.
        aux: Data that cookers look up by key, by name.
        parts: The parts that are used; None for all.
        declared: What the samples are, where the dataset does not say so itself; None where nobody said.
    """

    spec: StoreSpec
    split_part: str
    split_config: str = SPLIT_CONFIG
    dataset_config: str = DATASET_CONFIG
    subflavors: Mapping[str, Any] = field(default_factory=dict)
    subset: Subset = field(default_factory=Subset)
    multiplier: int | None = 1
    aux: Mapping[str, AuxRef] = field(default_factory=dict)
    parts: frozenset[str] | None = None
    declared: DeclaredSamples | None = None

    @property
    def path(self) -> str:
        """Path or URL of the dataset."""
        return self.spec.url


@dataclass(frozen=True, slots=True)
class JoinMember:
    """One dataset of a join; the first one of a join is its primary.

    Attributes:
        leaf: The dataset. Subflavors, subset and multiplier are the join's, not the member's.
        nonmatch: What a row of the primary does that this dataset has no sample for: ``error``, ``skip``
            the row, or pass None.
        name: Keyword for the joiner; None where members are passed by position.
    """

    leaf: LeafRef
    nonmatch: NonMatch = "error"
    name: str | None = None


@dataclass(frozen=True, slots=True)
class JoinerRef:
    """What makes one sample of joined ones, by name; not imported yet.

    Attributes:
        module: Python module.
        name: Its class, which has ``from_joined``, or its function.
        kind: Which of the two.
        where: The place that names it, for messages.
    """

    module: str
    name: str
    kind: Literal["class", "function"]
    where: str


@dataclass(frozen=True, slots=True)
class JoinRef:
    """Samples of several datasets, joined by their keys; in a mixture it is one source.

    Attributes:
        members: The datasets; all with names, or none.
        joiner: Makes a sample of one row.
        metadataset: The file that has the join; its index lies in ``<file>.cache/``. None for a
            metadataset that was given as a dict.
        where: Place in the file, for messages.
        subflavors: Put on each joined sample.
        subset: Which of the rows.
        multiplier: ``shuffle_over_epochs_multiplier``.
    """

    members: tuple[JoinMember, ...]
    joiner: JoinerRef
    metadataset: StoreSpec | None
    where: str
    subflavors: Mapping[str, Any] = field(default_factory=dict)
    subset: Subset = field(default_factory=Subset)
    multiplier: int | None = 1


@dataclass(frozen=True, slots=True)
class MetadatasetRef:
    """A split of a metadataset file, not read yet.

    Attributes:
        spec: The file.
        split: Which of its splits.
        subflavors: Override those within.
        subset: Shares of what is within.
        multiplier: Multiplies those within.
    """

    spec: StoreSpec
    split: str
    subflavors: Mapping[str, Any] = field(default_factory=dict)
    subset: Subset = field(default_factory=Subset)
    multiplier: int | None = 1


@dataclass(frozen=True, slots=True)
class BlendRef:
    """Some references with shares of a mixture.

    Attributes:
        children: What is mixed.
        shares: Weights, or repetitions, of the children; positive.
        by: What the shares are.
        where: Place in the file, for messages.
    """

    children: tuple[Reference, ...]
    shares: tuple[float, ...]
    by: Literal["weight", "repetitions"]
    where: str


AnyLeafRef: TypeAlias = LeafRef | JoinRef
"""What can be opened and read as one sequence of samples."""

Reference: TypeAlias = LeafRef | JoinRef | MetadatasetRef | BlendRef


@dataclass(frozen=True, slots=True)
class MixtureItem:
    """One source of a mixture.

    Attributes:
        ref: The source.
        weight: Share of the draws, product of the normalised weights of all levels; None where
            repetitions decide.
        repetitions: Passes over the source in one epoch; None where weights decide.
    """

    ref: AnyLeafRef
    weight: float | None
    repetitions: float | None


def inherit(
    node: Reference, subflavors: Mapping[str, Any], subset: Subset, multiplier: int | None
) -> Reference:
    """Push what an outer reference says down to all sources within.

    Outer subflavors override inner ones. A subset takes a share of each source. Multipliers multiply;
    None (no shuffling) wins over everything, then -1 (draws with replacement).

    Raises:
        ConfigError: The subset is in numbers of samples, and the source has one already.
    """
    if isinstance(node, BlendRef):
        return replace(
            node,
            children=tuple(inherit(child, subflavors, subset, multiplier) for child in node.children),
        )
    return replace(
        node,
        subflavors={**node.subflavors, **subflavors},
        subset=subset.of(node.subset),
        multiplier=_multiply(node.multiplier, multiplier),
    )


def _multiply(inner: int | None, outer: int | None) -> int | None:
    if inner is None or outer is None:
        return None
    return -1 if -1 in (inner, outer) else inner * outer


def mixture_items(node: Reference, expand: Callable[[MetadatasetRef], Reference]) -> list[MixtureItem]:
    """Flatten a tree to its sources with their shares.

    Args:
        node: The tree.
        expand: Gives the content of a metadataset file.

    Raises:
        MetadataError: Weights and repetitions are mixed in one tree, or a file contains itself.
    """
    found: list[MixtureItem] = []
    modes: dict[str, str] = {}

    def walk(node: Reference, weight: float, repetitions: float, files: tuple[str, ...]) -> None:
        if isinstance(node, MetadatasetRef):
            name = f"{node.spec.url} [{node.split}]"
            if name in files:
                chain = " -> ".join((*files, name))
                raise MetadataError(f"the metadatasets go round in a circle: {chain}", where=node.spec.url)
            walk(expand(node), weight, repetitions, (*files, name))
        elif isinstance(node, BlendRef):
            modes.setdefault(node.by, node.where)
            total = sum(node.shares)
            for child, share in zip(node.children, node.shares, strict=True):
                if node.by == "weight":
                    walk(child, weight * share / total, repetitions, files)
                else:
                    walk(child, weight, repetitions * share, files)
        else:
            found.append(MixtureItem(node, weight, repetitions))

    walk(node, 1.0, 1.0, ())
    if len(modes) > 1:
        raise MetadataError(
            f"blend_epochized cannot be mixed with blend, which is at {modes['weight']}",
            where=modes["repetitions"],
            hint="use one of the two in the whole tree",
        )
    by_repetitions = "repetitions" in modes
    return [
        replace(item, weight=None) if by_repetitions else replace(item, repetitions=None) for item in found
    ]
