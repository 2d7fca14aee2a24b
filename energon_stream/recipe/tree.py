"""Trees of references: the datasets that a path or a metadataset names, before anything of them is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from energon_stream.errors import MetadataError
from energon_stream.index.join_index import NonMatch
from energon_stream.index.metadata import DATASET_CONFIG, SPLIT_CONFIG
from energon_stream.recipe.subset import Subset

if TYPE_CHECKING:
    from energon_stream.recipe.sample_types import DeclaredSamples
    from energon_stream.storage import StoreSpec

__all__ = [
    "AuxRef",
    "BlendRef",
    "JoinMemberRef",
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
    """A reference to auxiliary data, which cookers look up by key."""

    spec: StoreSpec  # location
    # ``webdataset`` for a prepared dataset, ``filesystem`` for a folder of plain files.
    kind: Literal["webdataset", "filesystem"]


@dataclass(frozen=True, slots=True)
class LeafRef:
    """A reference to one dataset."""

    spec: StoreSpec  # location: a folder, a ``.jsonl`` file, a ``.tar``, or several of these by braces
    split_part: str  # part of the dataset's split
    split_config: str = SPLIT_CONFIG  # file in ``.nv-meta`` that defines the split parts
    dataset_config: str = DATASET_CONFIG  # file in ``.nv-meta`` that describes the samples
    # Put on each sample; they override those of ``dataset.yaml``.
    subflavors: Mapping[str, Any] = field(default_factory=dict)
    subset: Subset = field(default_factory=Subset)  # range of the samples
    multiplier: int | None = 1  # ``shuffle_over_epochs_multiplier``
    aux: Mapping[str, AuxRef] = field(default_factory=dict)  # auxiliary data by name
    parts: frozenset[str] | None = None  # parts that are used; None for all
    # The user's declaration of the samples, for datasets without ``dataset.yaml``.
    declared: DeclaredSamples | None = None

    @property
    def path(self) -> str:
        """Path or URL of the dataset."""
        return self.spec.url


@dataclass(frozen=True, slots=True)
class JoinMemberRef:
    """A reference to one dataset of a join. The first member of a join is its primary dataset."""

    leaf: LeafRef  # the dataset. Subflavors, subset and multiplier are those of the join.
    # Reaction to a sample of the primary without a partner here: ``error``, ``skip`` the row, or ``none`` to
    # pass None.
    nonmatch: NonMatch = "error"
    name: str | None = None  # keyword for the joiner; None to pass by position


@dataclass(frozen=True, slots=True)
class JoinerRef:
    """The name of a joiner, which makes one sample of the samples in a row."""

    module: str  # Python module
    name: str  # a class with ``from_joined``, or a function
    kind: Literal["class", "function"]  # whether ``name`` is a class or a function
    where: str  # place in the metadataset, for messages


@dataclass(frozen=True, slots=True)
class JoinRef:
    """A reference to a join of datasets by sample keys. A join is one leaf of a mixture."""

    members: tuple[JoinMemberRef, ...]  # the datasets; either all or none of them have names
    joiner: JoinerRef  # makes a sample of each row
    # The file with the join, whose index lies in ``<file>.cache/``. None for a metadataset that was given as
    # a dict.
    metadataset: StoreSpec | None
    where: str  # place in the file, for messages
    subflavors: Mapping[str, Any] = field(default_factory=dict)  # put on each joined sample
    subset: Subset = field(default_factory=Subset)  # range of the rows
    multiplier: int | None = 1  # ``shuffle_over_epochs_multiplier``


@dataclass(frozen=True, slots=True)
class MetadatasetRef:
    """A reference to a split of a metadataset file."""

    spec: StoreSpec  # location of the file
    split: str  # name of the split
    subflavors: Mapping[str, Any] = field(default_factory=dict)  # they override those in the file
    subset: Subset = field(default_factory=Subset)  # share of each dataset in the file
    multiplier: int | None = 1  # multiplies those in the file


@dataclass(frozen=True, slots=True)
class BlendRef:
    """References with their shares of a mixture."""

    children: tuple[Reference, ...]  # the references
    shares: tuple[float, ...]  # weights or repetitions of the children, all positive
    by: Literal["weight", "repetitions"]  # meaning of the shares
    where: str  # place in the file, for messages


AnyLeafRef: TypeAlias = LeafRef | JoinRef
"""A reference to a leaf of a mixture: a dataset or a join."""

Reference: TypeAlias = LeafRef | JoinRef | MetadatasetRef | BlendRef


@dataclass(frozen=True, slots=True)
class MixtureItem:
    """A leaf of a mixture, and its share."""

    ref: AnyLeafRef  # reference to the dataset or join
    # Share of the draws: the product of the normalised weights of all levels. None in mixtures by
    # repetitions.
    weight: float | None
    repetitions: float | None  # passes over the dataset in one epoch. None in mixtures by weights.


def inherit(
    node: Reference, subflavors: Mapping[str, Any], subset: Subset, multiplier: int | None
) -> Reference:
    """Apply the settings of an outer reference to all leaves of a tree.

    Outer subflavors override inner ones. A subset takes a share of each leaf. Multipliers multiply; None (no
    shuffling) overrides every other value, and then -1 (draws with replacement).

    Raises:
        ConfigError: The subset has sample numbers, and applies to another subset.
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
    """Flatten a tree to its leaves with their shares. Raises MetadataError if a tree has both weights and
    repetitions, or a file contains itself.
    """
    found: list[MixtureItem] = []
    modes: dict[str, str] = {}

    def walk(node: Reference, weight: float, repetitions: float, files: tuple[str, ...]) -> None:
        if isinstance(node, MetadatasetRef):
            name = f"{node.spec.url} [{node.split}]"
            if name in files:
                chain = " -> ".join((*files, name))
                raise MetadataError(f"the metadataset contains itself: {chain}", where=node.spec.url)
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
