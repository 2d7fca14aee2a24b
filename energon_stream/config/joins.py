"""Joins of a metadataset: make one sample of the samples in a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from energon_stream.config.named_code import import_class, imported_joiner, is_own_module
from energon_stream.config.sample_factory import SampleFactory
from energon_stream.config.sample_types import resolve_sample_type
from energon_stream.errors import ConfigError, MetadataError
from energon_stream.media import AuxStores, FileStore
from energon_stream.samples import Sample, SourceInfo
from energon_stream.schedule import LeafPlan, OrderSpec

if TYPE_CHECKING:
    from energon_stream.config.references import JoinerRef, JoinRef
    from energon_stream.index.join_index import JoinIndex
    from energon_stream.pipeline.leaf import DatasetLeaf
    from energon_stream.read.locator import RawSample
    from energon_stream.read.part_ranges import PartSelection

Joiner = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class JoinLeaf:
    """A join as one leaf of a mixture; see :class:`energon_stream.pipeline.leaf.Leaf`."""

    index: JoinIndex  # the opened join
    members: tuple[DatasetLeaf, ...]  # the joined datasets. Each makes a sample for the joiner.
    joiner: Joiner  # makes one sample of the samples in a row; a missing sample is None
    names: tuple[str, ...] | None = None  # keywords for the joiner; None passes the samples by position
    subflavors: dict[str, Any] | None = None  # put on each sample
    # Auxiliary data for cookers, where the joiner makes crude samples.
    stores: AuxStores = field(default_factory=AuxStores)

    is_crude: ClassVar[bool] = False  # the type of the joiner's samples is not known before it runs
    selection: ClassVar[PartSelection | None] = None  # all parts of joined samples are read

    @property
    def plain_keys(self) -> bool:
        """True if the keys of the samples, which are those of the primary dataset, have no shard."""
        return self.members[0].plain_keys

    def make(self, raw: RawSample, restore_key: tuple[Any, ...]) -> Any:
        """Join the samples of a row, and set restore key and sources of the result."""
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


def join_leaf(
    number: int,
    ref: JoinRef,
    index: JoinIndex,
    members: Sequence[DatasetLeaf],
    order: OrderSpec,
    trust: bool | None,
) -> tuple[JoinLeaf, LeafPlan]:
    """Make a leaf of an opened join: one virtual shard of its rows, in the order of the primary dataset.

    Raises ConfigError if the subset does not fit or the joiner cannot join such samples, and what
    :func:`import_class` raises for the joiner.
    """
    joiner = _resolve_joiner(ref.joiner, trust)
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
            raise ConfigError(
                f"two datasets of the join have different auxiliary data of the name {name!r}",
                where=ref.where,
                hint="give one of them another name",
            )
    return found


_FROM_JOINED = Sample.from_joined.__func__  # type: ignore[attr-defined] # a classmethod has one


def _resolve_joiner(ref: JoinerRef, trust: bool | None) -> Joiner:
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
