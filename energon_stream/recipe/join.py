"""Joins of a metadataset: opening them, and making one sample of those that belong together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from energon_stream.errors import ConfigError, MetadataError
from energon_stream.index.dataset import WebDatasetIndex
from energon_stream.index.dataset_index import DatasetIndex
from energon_stream.index.join_index import JoinIndex, JoinMember, open_join_index
from energon_stream.media import AuxStores, FileStore
from energon_stream.pipeline.leaf import DatasetLeaf
from energon_stream.read.locator import RawSample
from energon_stream.read.part_selection import PartSelection
from energon_stream.recipe.named_code import import_class, is_own_module
from energon_stream.recipe.sample_factory import SampleFactory
from energon_stream.recipe.sample_types import resolve_sample_type
from energon_stream.recipe.tree import JoinerRef, JoinRef
from energon_stream.samples import Sample, SourceInfo
from energon_stream.schedule import LeafPlan, OrderSpec
from energon_stream.storage import StoreSpec

__all__ = ["JoinLeaf", "join_leaf", "join_parts", "metadataset_of", "open_join", "resolve_joiner"]

Joiner = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class JoinLeaf:
    """A join as one source of a plan.

    Attributes:
        index: The opened join.
        members: The datasets that are joined, which make the samples that the joiner gets.
        joiner: Makes one sample of those of a row; None stands for a missing one.
        names: Keywords of the joiner; None to pass by position.
        subflavors: Put on each sample.
        stores: What the joiner's samples may be completed with, where they are crude.
    """

    index: JoinIndex
    members: tuple[DatasetLeaf, ...]
    joiner: Joiner
    names: tuple[str, ...] | None = None
    subflavors: dict[str, Any] | None = None
    stores: AuxStores = field(default_factory=AuxStores)

    @property
    def is_crude(self) -> bool:
        """Only the joiner knows."""
        return False

    @property
    def selection(self) -> PartSelection | None:
        """All: joined samples are read whole."""
        return None

    def make(self, raw: RawSample, restore_key: tuple[Any, ...]) -> Any:
        """Join the samples of a row. Of the result, restore key and sources are set here."""
        samples = [
            None if found is None else leaf.make(found, restore_key)
            for leaf, found in zip(self.members, raw.members, strict=True)
        ]
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


def metadataset_of(ref: JoinRef) -> StoreSpec:
    """The file beside which the index of a join lies.

    Raises:
        ConfigError: The join was given as a dict.
    """
    if ref.metadataset is None:
        raise ConfigError(
            "a join needs a metadataset file, beside which its index lies",
            where=ref.where,
            hint="write the metadataset to a file, and prepare it with `energon-stream prepare`",
        )
    return ref.metadataset


def join_parts(ref: JoinRef, indices: Sequence[DatasetIndex]) -> list[JoinMember]:
    """What is joined, once the members are opened.

    Raises:
        ConfigError: A member is no prepared folder of tars.
    """
    parts = []
    for member, index in zip(ref.members, indices, strict=True):
        if not isinstance(index, WebDatasetIndex) or index.plain is not None:
            raise ConfigError(
                "only folders of tars can be joined, and they must be prepared",
                where=index.spec.url,
                hint=f"see {ref.where}",
            )
        parts.append(JoinMember(index, member.nonmatch))
    return parts


def open_join(ref: JoinRef, indices: Sequence[DatasetIndex]) -> JoinIndex:
    """Open the index of a join.

    Args:
        ref: The join.
        indices: Its opened members.

    Raises:
        NotPreparedError: It has none, or a member was prepared again since.
        EnergonStreamError: What :func:`open_join_index` raises.
    """
    return open_join_index(metadataset_of(ref), join_parts(ref, indices))


def join_leaf(
    number: int,
    ref: JoinRef,
    index: JoinIndex,
    members: Sequence[DatasetLeaf],
    order: OrderSpec,
    trust: bool | None,
) -> tuple[JoinLeaf, LeafPlan]:
    """Make a source of an opened join: one virtual shard of its rows, in the primary's order.

    Args:
        number: Its number in the plan.
        ref: Its reference.
        index: The opened join.
        members: Its members as sources.
        order: How to shuffle.
        trust: Whether a joiner of another package may be imported; None asks the environment.

    Raises:
        ConfigError: The subset is not one, or the joiner cannot join such samples.
        UntrustedCodeError: The joiner is of another package, and that is not trusted.
        MetadataError: There is no such joiner.
    """
    joiner = resolve_joiner(ref.joiner, trust)
    if getattr(joiner, "__func__", None) is _FROM_JOINED:
        for member in members:
            if isinstance(member.builder, SampleFactory) and member.builder.sample_type is None:
                raise ConfigError(
                    f"{ref.joiner.name}.from_joined cannot join the crude samples of {member.index.spec.url}",
                    where=ref.joiner.where,
                    hint="name a function as the joiner, or give the dataset a sample type",
                )
    names = tuple(str(member.name) for member in ref.members) if ref.members[0].name is not None else None
    subflavors = dict(ref.subflavors)
    leaves = tuple(replace(leaf, subflavors={**(leaf.subflavors or {}), **subflavors}) for leaf in members)
    start, stop = ref.subset.bounds(index.num_samples, ref.where)
    leaf = JoinLeaf(index, leaves, joiner, names, leaves[0].subflavors, AuxStores(_all_aux(ref, members)))
    return leaf, LeafPlan(number, index.shard_starts, order, start, stop)


def _all_aux(ref: JoinRef, members: Sequence[DatasetLeaf]) -> dict[str, FileStore[Any]]:
    found: dict[str, FileStore[Any]] = {}
    for name, store in (pair for member in members for pair in member.stores.aux.items()):
        if found.setdefault(name, store) != store:
            raise ConfigError(f"two datasets of the join have other data as aux {name!r}", where=ref.where)
    return found


_FROM_JOINED = Sample.from_joined.__func__  # type: ignore[attr-defined] # a classmethod has one


def resolve_joiner(ref: JoinerRef, trust: bool | None) -> Joiner:
    """Find what makes one sample of several: a class's ``from_joined``, or a function.

    Raises:
        UntrustedCodeError: It is of another package, and that is not trusted.
        MetadataError: There is none of that name, or it is of another kind.
    """
    found: Any
    if ref.kind == "class" and is_own_module(ref.module):
        document = {"__module__": ref.module, "__class__": ref.name}
        found = resolve_sample_type(document, trust=trust, where=ref.where)
    else:
        found = import_class(ref.module, ref.name, trust=trust, where=ref.where)
    joiner = getattr(found, "from_joined", None) if ref.kind == "class" else found
    if not callable(joiner) or (ref.kind == "function" and isinstance(found, type)):
        wanted = "a class with from_joined" if ref.kind == "class" else "a function"
        raise MetadataError(f"{ref.module}.{ref.name} is not {wanted}", where=ref.where)
    return joiner  # type: ignore[no-any-return] # just seen to be callable
