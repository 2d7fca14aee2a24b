"""Identities of the leaves that a state was saved with, by which it finds its datasets again.

A state has ``"identities"``, for each reader dataset ``[shape, columns, records]``: a hash of the plan
without its leaves, columns of :mod:`energon_stream.schedule.packed`, and seven bytes for each leaf::

    columns  samples that the plan used, kind of content (0 if nothing is known), hash of the order's options
    records  3 bytes of a hash of split part, names and counts of shards, view and subset
             3 bytes of a hash of the content, see ``DatasetIndex.content``
             1 byte of a hash of the location, which only tells equal datasets from each other

Above 64 leaves, samples are counted modulo the streams, on which the streams' shares depend. Above 4,096
there are no identities; the ``"content"`` of the fingerprint stands for all leaves.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from energon_stream.index.dataset import identity
from energon_stream.index.join_index import JoinIndex
from energon_stream.printable import strip_credentials
from energon_stream.schedule import (
    BlendPlan,
    ConcatPlan,
    EarlierLeaf,
    LeafPlan,
    Plan,
    RepeatPlan,
    damaged,
    is_count,
    leaf_then,
    leaves,
    pack_columns,
    reading,
    shown,
    unpack_columns,
)
from energon_stream.urls import is_local, local_path

if TYPE_CHECKING:
    from energon_stream.pipeline.reader_dataset import ReaderDataset

IDENTITIES = "identities"
_MOST_RECORDS = 4096
_MOST_COUNTED = 64
_RECORD, _KNOWN, _NAMES, _LOCATION = 7, slice(0, 6), slice(0, 3), slice(6, 7)
_MOST_TRIED = 1 << 14  # pairs of leaves that are compared because one may have grown into the other


def _hash(value: Any, size: int) -> bytes:
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=size).digest()


class LeafIdentity(NamedTuple):
    """Identity of a leaf in a state."""

    record: bytes
    samples: int
    kind: int
    options: int

    def has_names_of(self, other: LeafIdentity) -> bool:
        return self.record[_NAMES] == other.record[_NAMES]

    def has_place_of(self, other: LeafIdentity) -> bool:
        return self.record[_LOCATION] == other.record[_LOCATION]

    def has_content_of(self, other: LeafIdentity) -> bool:
        return self.kind == other.kind and self.record[_KNOWN] == other.record[_KNOWN]


@dataclass(frozen=True)
class SavedIdentities:
    """Identities of the leaves of one reader dataset."""

    shape: bytes  # hash of the plan without its leaves
    leaves: tuple[LeafIdentity, ...]

    @cached_property
    def plain(self) -> list[Any]:
        """The values that states hold: made once, because each save takes them."""
        records, *columns = zip(*self.leaves, strict=True)
        packed = pack_columns([np.array(column, dtype=np.int64) for column in columns])
        return [self.shape, packed, b"".join(records)]


def read_identities(saved: Any, numbers: Sequence[int]) -> list[SavedIdentities]:
    """Read the identities of readers with these numbers of leaves. Raises StateError if they are damaged."""
    with reading("the identities of its datasets"):
        found = []
        for (shape, packed, records), number in zip(saved, numbers, strict=True):
            columns = unpack_columns(packed, number, most=3).tolist()
            is_whole = isinstance(shape, bytes) and isinstance(records, bytes) and len(columns) == 3
            if not is_whole or len(records) != number * _RECORD or not all(map(is_count, chain(*columns))):
                raise damaged(f"{shown(records)} for the identities of {number} datasets")
            cut = [records[at : at + _RECORD] for at in range(0, len(records), _RECORD)]
            found.append(SavedIdentities(shape, tuple(map(LeafIdentity, cut, *columns))))
        return found


def identities(readers: Sequence[ReaderDataset]) -> list[SavedIdentities] | None:
    """Return the identities of the leaves of all readers; None if there are too many, or no readers."""
    if not readers or sum(len(reader.leaves) for reader in readers) > _MOST_RECORDS:
        return None
    return [
        SavedIdentities(
            _hash(_shape(reader.plan), 8),
            tuple(_identify(reader, number, shards) for number, shards in enumerate(reader.shards)),
        )
        for reader in readers
    ]


def hash_content(readers: Sequence[tuple[ReaderDataset, Sequence[int]]]) -> str:
    """Return a hash of what is known of the content of the leaves of readers, given numbers of shards."""
    found = [
        leaf.index.content(count)
        for reader, shards in readers
        for leaf, count in zip(reader.leaves, shards, strict=False)
    ]
    return _hash(found, 8).hex()


def _shape(plan: Plan) -> Any:
    if isinstance(plan, RepeatPlan):
        return ["leaf"] if isinstance(plan.child, LeafPlan) else [plan.repeats, _shape(plan.child)]
    if isinstance(plan, BlendPlan):
        return ["blend", plan.even]
    return ["concat"] if isinstance(plan, ConcatPlan) else ["leaf"]


def _child(plan: Plan, number: int) -> Plan:
    """Return the part of a plan that has one leaf."""
    if isinstance(plan, RepeatPlan) and not isinstance(plan.child, LeafPlan):
        return _child(plan.child, number)
    return plan.children[number] if isinstance(plan, (BlendPlan, ConcatPlan)) else plan


def _identify(reader: ReaderDataset, number: int, shards: int) -> LeafIdentity:
    """Return the identity of a leaf when it had some number of shards."""
    index, child = reader.leaves[number].index, _child(reader.plan, number)
    (plan,) = leaves(child)
    plan = leaf_then(plan, shards)
    samples = plan.num_samples
    if len(reader.leaves) > _MOST_COUNTED:
        samples %= reader.worker_config.num_streams
    kind, content = index.content(shards) or ("", "")
    url = index.members[0].spec.url if isinstance(index, JoinIndex) else index.spec.url
    place = local_path(url) if is_local(url) else strip_credentials(url)
    names = [identity(index, shards), plan.start, plan.num_samples]
    options = [plan.order.describe(), child.repeats if isinstance(child, RepeatPlan) else 1]
    return LeafIdentity(
        _hash(names, 3) + _hash(content, 3) + _hash(place, 1),
        samples,
        zlib.crc32(kind.encode()) % 255 + 1 if kind else 0,
        int.from_bytes(_hash(options, 2), "little"),
    )


@dataclass(slots=True)
class Matching:
    """Leaves of a state, each with the leaf of the reader that it is now."""

    reader: ReaderDataset
    shards: Sequence[int]  # of each leaf when the state was saved
    saved: SavedIdentities
    now: SavedIdentities
    # Number of the present leaf by that of the saved one.
    found: dict[int, int] = field(default_factory=dict)
    # Present leaves that are taken for the same, though their content is not known.
    unchecked: list[int] = field(default_factory=list)

    @property
    def then(self) -> tuple[EarlierLeaf, ...]:
        """The leaves of the state."""
        return tuple(
            EarlierLeaf(self.found.get(number), shards, self.saved.leaves[number].samples)
            for number, shards in enumerate(self.shards)
        )

    def name(self, at: int) -> str:
        """Return the name of a present leaf in messages."""
        return self.reader.leaves[at].index.name

    @property
    def has_same_shape(self) -> bool:
        """True if the plans differ in their leaves and weights at most."""
        return self.saved.shape == self.now.shape

    @property
    def with_other_options(self) -> list[str]:
        """Names of leaves that are still there, and have another order."""
        pairs = ((self.saved.leaves[number], at) for number, at in self.found.items())
        return [self.name(at) for leaf, at in pairs if leaf.options != self.now.leaves[at].options]

    def identity(self, at: int, shards: int) -> LeafIdentity:
        """Return the identity of the first ``shards`` shards of a present leaf."""
        is_now = shards == len(self.reader.leaves[at].index.shard_paths)
        return self.now.leaves[at] if is_now else _identify(self.reader, at, shards)

    def replaced(self) -> dict[int, int]:
        """Return which leaf of the state stood where a present leaf is that is not among them."""
        now, known = self.now.leaves, {*self.found.values()}
        gone = dict.fromkeys(number for number in range(len(self.shards)) if number not in self.found)
        found: dict[int, int] = {}
        for at in range(len(now)):
            if at not in known:
                same = [number for number in gone if self.saved.leaves[number].has_place_of(now[at])]
                for number in [*same, at]:
                    if number in gone:
                        found[at] = number
                        del gone[number]
                        break
        return found

    def changes(self) -> Iterator[str]:
        """Yield in words what is different now."""
        reader, replaced = self.reader, self.replaced()
        earlier = {at: number for number, at in self.found.items()}
        if not self.has_same_shape:
            yield "the kind of mixture differs: a single dataset, a blend, repetitions, or draws"
        for at, shards in enumerate(reader.shards):
            name = self.name(at)
            if at in replaced:
                number = replaced[at]
                then = self.then[number]
                if self.saved.leaves[number].has_names_of(self.now.leaves[at]):
                    yield f"{name} has shards of the same names and counts, and other samples in them"
                else:
                    was = f"{then.shards} shards with {then.samples} samples"
                    yield f"{name} has other shards, samples or options, or another view, than the dataset of {was} there"
            elif at not in earlier:
                yield f"{name} is new"
            elif self.shards[earlier[at]] != shards:
                yield f"{name} grew from {self.shards[earlier[at]]} to {shards} shards"
            elif earlier[at] != at:
                yield f"{name} was dataset {earlier[at]} of the mixture, and is dataset {at}"
        for name in self.with_other_options:
            yield f"{name} has other options of shuffling, slices or repetitions"
        for number, then in enumerate(self.then):
            if number not in self.found and number not in replaced.values():
                yield gone_name(number, then.shards, then.samples) + " is gone"


def unchecked_names(names: Sequence[str]) -> str:
    """Return in words that the content of some datasets is not known."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more} was moved, or is indexed in another way; names and counts of shards are the same"


def gone_name(number: int, shards: int, samples: int) -> str:
    """Return what a state knows of a dataset that is not there any more."""
    return f"dataset {number} of the mixture, with {shards} shards and {samples} samples,"


def match(
    reader: ReaderDataset, shards: Sequence[int], saved: SavedIdentities, present: SavedIdentities
) -> Matching:
    """Find the leaves of a state among those of a reader.

    The same leaf has the same names and content. Of several, that of the same location or place is taken.
    """
    matching, now = Matching(reader, shards, saved, present), present.leaves
    left = dict.fromkeys(range(len(now)))  # present leaves that are not found yet

    def find(part: slice, *, place: bool = False, number: bool = False) -> None:
        """Find leaves that are equal in a part of their records, and in their locations or numbers."""
        equal: dict[bytes, list[int]] = {}
        for at in left:
            equal.setdefault(now[at].record[part], []).append(at)
        for then, leaf in enumerate(saved.leaves):
            for at in equal.get(leaf.record[part], ()) if then not in matching.found else ():
                is_same = (leaf.kind == now[at].kind) == (part == _KNOWN)
                fits = (not place or leaf.has_place_of(now[at])) and (not number or at == then)
                if at in left and is_same and fits:
                    matching.found[then] = at
                    del left[at]
                    break

    find(_KNOWN, place=True, number=True)
    find(_KNOWN, place=True)
    find(_KNOWN, number=True)
    find(_KNOWN)
    find(_NAMES, place=True)  # whose content is known in different ways
    find(_NAMES, number=True)
    _find_grown(matching, left)
    for then, at in matching.found.items():
        was, leaf = saved.leaves[then], matching.identity(at, shards[then])
        if was.kind != leaf.kind or (not was.kind and not was.has_place_of(leaf)):
            matching.unchecked.append(at)
    return matching


def _find_grown(matching: Matching, left: dict[int, None]) -> None:
    """Find the leaves that have more shards now."""
    reader, saved, now = matching.reader, matching.saved.leaves, matching.now.leaves
    missing = [number for number in range(len(saved)) if number not in matching.found]
    is_short = len(missing) * len(left) <= _MOST_TRIED
    for number in missing:
        leaf, shards = saved[number], matching.shards[number]
        likely = [at for at in left if leaf.has_place_of(now[at]) or at == number]
        for at in dict.fromkeys([*likely, *left]) if is_short else likely:
            if may_grow(reader, at) and shards < len(reader.leaves[at].index.shard_paths):
                then = matching.identity(at, shards)
                if then.has_content_of(leaf) or (
                    then.kind != leaf.kind and then.has_names_of(leaf) and at in likely
                ):
                    matching.found[number] = at
                    del left[at]
                    break


def may_grow(reader: ReaderDataset, number: int) -> bool:
    """Return whether shards that are appended to a leaf leave its earlier samples where they were."""
    index = reader.leaves[number].index
    is_weighted = index.selection is not None and index.selection.weights is not None
    return not is_weighted and len(index.shard_counts) == len(index.shard_paths)
