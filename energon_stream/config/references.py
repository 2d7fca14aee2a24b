"""Trees of references: the datasets that a path or a metadataset names, before anything of them is read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from energon_stream.arguments import DATASET_CONFIG, SPLIT_CONFIG
from energon_stream.config.subset import Subset
from energon_stream.config.weight_schedule import Schedule, stairs, weight_at
from energon_stream.errors import LimitError, MetadataError
from energon_stream.schedule import Course, Lines

if TYPE_CHECKING:
    from energon_stream.config.fields import Parts
    from energon_stream.config.sample_types import DeclaredSamples
    from energon_stream.config.view import View
    from energon_stream.index.join_index import NonMatch
    from energon_stream.limits import Limits
    from energon_stream.storage import StoreSpec


Draws: TypeAlias = Literal["random", "even"]
"""How a blend by weights chooses the dataset of a sample."""


@dataclass(frozen=True, slots=True)
class AuxRef:
    """A reference to auxiliary data, which cookers look up by key."""

    spec: StoreSpec
    # A prepared dataset, a folder of plain files, ranges of them, or a store by a protocol of the program.
    kind: Literal["webdataset", "filesystem", "byterange", "registered"]
    beside: str | None = None  # URL of the metadataset file, to which the program's store may be relative


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inheriting:
    """Settings that a reference takes over from those around it; see :func:`inherit`."""

    subflavors: Mapping[str, Any] = field(default_factory=dict)  # they override those of ``dataset.yaml``
    subset: Subset = field(default_factory=Subset)  # range of the samples, or share of each dataset in a file
    multiplier: int | None = 1  # ``shuffle_over_epochs_multiplier``


@dataclass(frozen=True, slots=True)
class LeafRef(_Inheriting):
    """A reference to one dataset."""

    spec: StoreSpec  # location: a folder, a ``.jsonl`` file, a ``.tar``, or several of these by braces
    split_part: str
    split_config: str = SPLIT_CONFIG
    dataset_config: str = DATASET_CONFIG
    aux: Mapping[str, AuxRef] = field(default_factory=dict)
    parts: Parts | None = None  # parts that are used; None for all
    declared: DeclaredSamples | None = None  # for datasets without ``dataset.yaml``
    view: View | None = None  # the subset is one of its samples

    @property
    def path(self) -> str:
        return self.spec.url

    @property
    def leaves(self) -> list[LeafRef]:
        return [self]


@dataclass(frozen=True, slots=True)
class JoinMemberRef:
    """A reference to one dataset of a join. The first member of a join is its primary dataset."""

    leaf: LeafRef  # Subflavors, subset and multiplier are those of the join.
    nonmatch: NonMatch = "error"  # what a sample of the primary without a partner here leads to
    name: str | None = None  # keyword for the joiner; None to pass by position


@dataclass(frozen=True, slots=True)
class JoinerRef:
    """The name of a joiner: a class with ``from_joined``, or a function that makes one sample of a row."""

    module: str
    name: str
    kind: Literal["class", "function"]
    where: str  # place in the file, for messages, as in all references


@dataclass(frozen=True, slots=True)
class JoinRef(_Inheriting):
    """A reference to a join of datasets by sample keys. A join is one leaf of a mixture."""

    members: tuple[JoinMemberRef, ...]  # either all or none of them have names
    joiner: JoinerRef
    metadataset: StoreSpec | None  # the file, beside which the join's index lies; None for a dict
    where: str
    view: View | None = None  # with lists of bad samples only

    @property
    def path(self) -> str:
        """Path or URL of the primary dataset, whose keys and order the join has."""
        return self.members[0].leaf.path

    @property
    def split_part(self) -> str:
        return self.members[0].leaf.split_part

    @property
    def leaves(self) -> list[LeafRef]:
        return [member.leaf for member in self.members]


@dataclass(frozen=True, slots=True)
class MetadatasetRef(_Inheriting):
    """A reference to a split of a metadataset file. Its subset is a share of each dataset in the file."""

    spec: StoreSpec
    split: str


@dataclass(frozen=True, slots=True)
class BlendRef:
    """References with their shares of a mixture: weights, or repetitions, which do not change."""

    children: tuple[Reference, ...]
    shares: tuple[Course, ...]  # of each child, from batches of the job on, the first of which is 0
    by: Literal["weight", "repetitions"]
    where: str
    draws: Draws | None = None
    unit: str | None = None  # of the weights: samples, or the name of costs


_Chain: TypeAlias = tuple[tuple[BlendRef, int], ...]
"""The blends around a leaf, from the outermost on, each with the number of the child that it is in."""

AnyLeafRef: TypeAlias = LeafRef | JoinRef
"""A reference to a leaf of a mixture: a dataset or a join."""

Reference: TypeAlias = LeafRef | JoinRef | MetadatasetRef | BlendRef


@dataclass(frozen=True, slots=True)
class MixtureItem:
    """A leaf of a mixture, and its share."""

    ref: AnyLeafRef
    weight: float | None  # product of the normalised weights of all levels; None in mixtures by repetitions
    repetitions: float | None  # passes over the dataset in one epoch; None in mixtures by weights
    later: tuple[tuple[int, float], ...] = ()  # weights from later batches on, which all items share
    draws: Draws = "random"  # of all items
    unit: str = "samples"  # of the weights of all items
    lines: Lines | None = None  # by which the weights of all items change, if any does


def references(node: Reference) -> Iterator[LeafRef | JoinRef | MetadatasetRef]:
    """Yield the references in a tree; those in metadataset files that it names are not among them."""
    if isinstance(node, BlendRef):
        for child in node.children:
            yield from references(child)
    else:
        yield node


def inherit(
    node: Reference, subflavors: Mapping[str, Any], subset: Subset, multiplier: int | None
) -> Reference:
    """Apply the settings of an outer reference to all leaves of a tree.

    Outer subflavors override inner ones. A subset takes a share of each leaf. Multipliers multiply; None (no
    shuffling) overrides every other value, and then -1 (draws with replacement). Raises ConfigError if the
    subset has sample numbers, and applies to another subset.
    """
    if isinstance(node, BlendRef):
        children = tuple(inherit(child, subflavors, subset, multiplier) for child in node.children)
        return replace(node, children=children)
    return replace(
        node,
        subflavors={**node.subflavors, **subflavors},
        subset=subset.of(node.subset),
        multiplier=multiplied(node.multiplier, multiplier),
    )


def multiplied(inner: int | None, outer: int | None) -> int | None:
    """Return the product of two multipliers; see :func:`inherit`."""
    if inner is None or outer is None:
        return None
    return -1 if -1 in (inner, outer) else inner * outer


def check_references(node: Reference, content: Callable[[MetadatasetRef], Reference], limits: Limits) -> None:
    """Count the references of a tree and of the metadatasets that it names, and how deep they are nested.

    Each metadataset is counted once, however often others name it; ``content`` returns its tree.
    """
    known: dict[str, tuple[int, int]] = {}

    def count(node: Reference, files: tuple[str, ...]) -> tuple[int, int]:
        total = depth = 0
        for ref in references(node):
            total += len(ref.members) if isinstance(ref, JoinRef) else 1
            if isinstance(ref, MetadatasetRef):
                name = f"{ref.spec.url} [{ref.split}]"
                if name in files:
                    chain = " -> ".join((*files, name))
                    raise MetadataError(f"the metadataset contains itself: {chain}", where=ref.spec.url)
                longest = len(files) + 1 + known.get(name, (0, 0))[1]
                if longest > limits.reference_depth:
                    problem = f"{longest} metadatasets name each other in a chain"
                    raise LimitError(**limits.exceeded("reference_depth", problem), where=ref.spec.url)
                if name not in known:
                    known[name] = count(content(ref), (*files, name))
                total, depth = total + known[name][0], max(depth, 1 + known[name][1])
            if total > limits.references:
                problem = f"the metadatasets name {total:,} datasets or more"
                raise LimitError(**limits.exceeded("references", problem), where=files[0] if files else None)
        return total, depth

    count(node, ())


def mixture_items(node: Reference, expand: Callable[[MetadatasetRef], Reference]) -> list[MixtureItem]:
    """Flatten a tree to its leaves with their shares; ``expand`` returns the content of a metadataset file.

    Raises MetadataError if a tree has both weights and repetitions, or its blends draw differently, or a
    share is too small or too large.
    """
    modes: dict[str, str] = {}
    draws: dict[Draws, str] = {}
    units: dict[str, str] = {}

    def walk(node: Reference, share: float, chain: _Chain) -> Iterator[tuple[AnyLeafRef, float, _Chain]]:
        if isinstance(node, MetadatasetRef):
            yield from walk(expand(node), share, chain)
        elif isinstance(node, BlendRef):
            modes.setdefault(node.by, node.where)
            if node.draws is not None:
                draws.setdefault(node.draws, node.where)
            if node.unit is not None:
                units.setdefault(node.unit, node.where)
            parts = [schedule[0][1] for schedule in node.shares]
            total = (sum(parts) if node.by == "weight" else 1.0) or 1.0
            for number, (child, part) in enumerate(zip(node.children, parts, strict=True)):
                of_child = share * part / total
                if share and part and not 0 < of_child < math.inf:
                    raise MetadataError(
                        f"the share {part:g} is too small or too large beside the others", where=node.where
                    )
                yield from walk(child, of_child, (*chain, (node, number)))
        else:
            yield node, share, chain

    found = list(walk(node, 1.0, ()))
    if len(modes) > 1:
        raise MetadataError(
            f"blend_epochized cannot be mixed with blend, which is at {modes['weight']}",
            where=modes["repetitions"],
            hint="use one of the two in the whole tree",
        )
    if "repetitions" in modes:
        return [MixtureItem(ref, None, share) for ref, share, _ in found]
    if len(draws) > 1:
        raise MetadataError(
            f"'draws' is 'random' here, and 'even' at {draws['even']}",
            where=draws["random"],
            hint="all blends of a mixture are drawn together: let them say the same",
        )
    if len(units) > 1:
        one, other = list(units)[:2]
        raise MetadataError(
            f"'blend_weight_unit' is {one!r} here, and {other!r} at {units[other]}",
            where=units[one],
            hint="all blends of a mixture are drawn together: let them say the same",
        )
    chains = [chain for _, _, chain in found]
    later, lines = _later_weights(chains), _lines(chains)
    if all(not share for _, share, _ in found):
        raise _all_zero(0, found[0][2])
    how: Draws = next(iter(draws), "random")
    return [
        MixtureItem(ref, share, None, weights, how, next(iter(units), "samples"), lines)
        for (ref, share, _), weights in zip(found, later, strict=True)
    ]


def _lines(chains: Sequence[_Chain]) -> Lines:
    """Return what the weights of items follow from."""
    blends = {id(blend): blend for chain in chains for blend, _ in chain}
    numbers = {name: number for number, name in enumerate(blends)}
    links = (tuple((numbers[id(blend)], child) for blend, child in chain) for chain in chains)
    return Lines(tuple(blend.shares for blend in blends.values()), tuple(links))


def _later_weights(chains: Sequence[_Chain]) -> list[Schedule]:
    """Return the weights of each item after batch 0. Raises MetadataError if all are 0 from a batch on."""
    blends = {
        id(blend): [stairs(course) for course in blend.shares] for chain in chains for blend, _ in chain
    }
    batches = {batch for schedules in blends.values() for schedule in schedules for batch, _ in schedule}
    ordered = sorted(batches - {0})
    if not ordered:
        return [()] * len(chains)
    shares = {name: [_shares_at(schedules, batch) for batch in ordered] for name, schedules in blends.items()}
    weights = [
        [
            math.prod(shares[id(blend)][place][number] for blend, number in chain)
            for place in range(len(ordered))
        ]
        for chain in chains
    ]
    for place, batch in enumerate(ordered):
        if not any(of_item[place] for of_item in weights):
            raise _all_zero(batch, chains[0])
    return [tuple(zip(ordered, of_item, strict=True)) for of_item in weights]


def _shares_at(schedules: Sequence[Schedule], batch: int) -> list[float]:
    """Return the shares of a blend's children in the weights that hold at a batch; 0 if all are 0."""
    weights = [weight_at(schedule, batch) for schedule in schedules]
    return [weight / (sum(weights) or 1.0) for weight in weights]


def _all_zero(batch: int, chain: _Chain) -> MetadataError:
    return MetadataError(
        f"all weights are 0 from batch {batch} on",
        where=chain[0][0].where,
        hint="leave some dataset a weight",
    )
