"""Restoring a state into a dataset that changed since the state was saved.

Shards may be appended to leaves, the weights of blends may change, and their leaves may be others: leaves
that are the same, as :mod:`energon_stream.state.identity` tells, go on wherever they stand, and others begin
anew.

A state of an earlier version has no identities. Then leaves may be appended only, and it is proved that
nothing else changed: the first leaves and shards of the present dataset, as many as there were when the state
was saved, are described once more, and the hashes of that description must be the state's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from energon_stream.errors import StateError, StateMismatchError
from energon_stream.pipeline import ConcatDataset, IterMapDataset, RepeatDataset, SavableDataset
from energon_stream.pipeline.node import Context
from energon_stream.pipeline.reader_dataset import ReaderDataset, find_readers
from energon_stream.schedule import (
    BlendPlan,
    BlendSchedule,
    ConcatPlan,
    CursorCodec,
    EarlierLeaf,
    Plan,
    RepeatPlan,
    WeightChange,
    are_first,
    carry,
    in_place,
    is_count,
    leaves,
    pack_even,
    passes_under_way,
    reading,
    stream_shares,
)
from energon_stream.state.description import Description, SavedLeaves, fingerprint, marks, read_leaves
from energon_stream.state.digest import with_digest
from energon_stream.state.identity import IDENTITIES, Matching, gone_name, hash_content
from energon_stream.state.mixture_weights import WEIGHTS, read_changes, write_changes
from energon_stream.state.rank import check_packs, check_topology, read_rank_state
from energon_stream.state.restore_report import Change, ChangeReport, LeafChange

_MOST_NAMED = 3
Weights: TypeAlias = tuple[WeightChange, ...]


@dataclass(frozen=True, slots=True)
class _Reader:
    """A reader dataset, now and when the state was saved."""

    path: str  # its place in the pipeline
    dataset: ReaderDataset  # the present dataset
    saved: SavedLeaves  # its leaves when the state was saved
    then: tuple[EarlierLeaf, ...]  # which these are now
    matching: Matching | None  # how they were found; None if they are the first of now
    # For each leaf, samples of the present passes that this rank's streams consumed, and samples left.
    counts: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def differs(self) -> bool:
        """True if the leaves or their shards are others now."""
        return self.dataset.differs(self.then)

    @property
    def is_renumbered(self) -> bool:
        """True if some leaf has another number, or is gone."""
        return not are_first(self.then)

    def name(self, number: int) -> str:
        """Return the name of a leaf in messages."""
        return self.dataset.leaves[number].index.name


def continue_state(
    state: Any, dataset: SavableDataset[Any], now: Description
) -> tuple[dict[str, Any], ChangeReport | None]:
    """Convert the state of an earlier dataset to a state of the present one.

    Raises StateMismatchError if it has another topology, or the dataset cannot have grown from the earlier.
    """
    read = read_rank_state(state)
    check_topology(read, dataset.worker_config, dataset.pass_length)
    matched = now.matched(read)
    plans = [reader.plan for _, reader in find_readers(dataset)]
    if not now.differences(read) and not any(isinstance(plan, BlendPlan) and plan.even for plan in plans):
        return read, None
    check_packs(read, now)
    with reading():
        return _continued(read, dataset, now, matched)


def _continued(
    read: dict[str, Any], dataset: SavableDataset[Any], now: Description, matched: list[Matching] | None
) -> tuple[dict[str, Any], ChangeReport]:
    found = list(find_readers(dataset))
    saved = read_leaves(read.get("leaves"))
    if len(saved) != len(found):
        raise _refused(f"the pipeline had {len(saved)} reader datasets and has {len(found)}")
    nothing: list[None] = [None] * len(found)
    readers = [
        _Reader(*place, was, in_place(was.shards) if each is None else each.then, each)
        for place, was, each in zip(found, saved, nothing if matched is None else matched, strict=True)
    ]
    for reader in readers:
        _check_can_have_changed(reader, read, now)
    _check_operators(dataset, {id(reader.dataset) for reader in readers if reader.differs})
    earlier = [reader.dataset.config(reader.then) for reader in readers]
    prints = fingerprint(dataset.config(), earlier)
    places = [([leaf.now for leaf in each.then], [*range(len(each.dataset.leaves))]) for each in readers]
    if matched is None or all(then == there for then, there in places):
        _check_prints(read, prints, now, readers, earlier)
    else:
        _check_pipeline(read, prints, now)
    # Weights that differ from those of then, or are of other leaves, replace all that were set under way.
    was_set, single = read_changes(read), ([None], [0])
    has_others = any({*then} != {*there} and (then, there) != single for then, there in places)
    is_reweighted = has_others or read["fingerprint"].get("weights") != prints["weights"]
    hold = () if is_reweighted else was_set
    kept = tuple(change.of(map(then.index, there)) for then, there in places[:1] for change in hold)
    streams = dict(read["streams"])
    for stream, at in streams.items():
        if at:
            carried = _carrier(int(stream), readers, hold, kept, is_reweighted)
            node = _replaced(dataset, at["node"], "", carried)
            streams[stream] = {**at, "node": _renumbered(node, readers)}
    changes = [change for reader in readers for change in _changes(reader, dataset.worker_config.streams)]
    unchecked = [each.name(at) for each in matched or () for at in each.unchecked]
    if matched is None:
        unchecked = [reader.name(number) for reader in readers for number in range(len(reader.then))]
    report = ChangeReport(tuple(changes), is_reweighted, len(was_set) - len(kept), tuple(unchecked))
    present = {
        "fingerprint": dict(now.prints),
        "options": now.options,
        "leaves": now.leaves,
        IDENTITIES: None if now.identities is None else [each.plain for each in now.identities],
    }
    return with_digest({**read, **present, WEIGHTS: write_changes(kept), "streams": streams}), report


def _refused(why: str, hint: str = "") -> StateMismatchError:
    return StateMismatchError(
        f'on_change="continue" cannot go on: {why}',
        hint=hint or "build the dataset as it was when the state was saved, or start without a state",
    )


def _has_concat(plan: Plan) -> bool:
    if isinstance(plan, RepeatPlan):
        return _has_concat(plan.child)
    return isinstance(plan, ConcatPlan) or (
        isinstance(plan, BlendPlan) and any(map(_has_concat, plan.children))
    )


def _check_can_have_changed(reader: _Reader, state: Mapping[str, Any], now: Description) -> None:
    if reader.dataset.packing is not None:
        why = "; ".join(now.differences(state))
        raise _refused(f"planned packs are made of all samples, weights and options: {why}")
    if reader.matching is None:
        _check_can_have_grown(reader)
    elif not reader.matching.has_same_shape:
        raise _refused(
            "the order differs: a single dataset became a mixture, or a mixture is of another kind"
        )
    elif names := reader.matching.with_other_options:
        raise _refused(
            "the order differs: "
            + (now.difference(state, "order") or f"options of shuffling, slices or repetitions of {names[0]}")
        )
    if reader.differs and _has_concat(reader.dataset.plan):
        raise _refused(
            "datasets that are concatenated have changed, and some stream may not have begun one that others "
            "have begun",
            "restore at the beginning of a validation pass, without a state",
        )


def _check_can_have_grown(reader: _Reader) -> None:
    dataset, had = reader.dataset, reader.saved.shards
    if len(had) > len(dataset.shards):
        raise _refused(
            f"there were {len(had)} datasets and are {len(dataset.shards)}; "
            "datasets can be added at the end, not removed",
            "keep the dataset, with a weight of 0 from a batch on: see docs/guides/live-mixtures.md",
        )
    for number, (before, after) in enumerate(zip(had, dataset.shards, strict=False)):
        index = dataset.leaves[number].index
        if before > after:
            raise _refused(f"{reader.name(number)} had {before} shards and has {after}")
        if before < after and index.selection is not None and index.selection.weights is not None:
            why = "has weight_by, and new samples change the share of each old one"
            raise _refused(f"{reader.name(number)} {why}")
        if before < after and len(index.shard_counts) != after:
            why = "is a join: when a member grows, any of its rows may change"
            raise _refused(f"{reader.name(number)} {why}")


def _check_operators(dataset: SavableDataset[Any], changed: set[int]) -> None:
    """Check that no operator relies on the earlier inner dataset."""
    has_changed = any(id(reader) in changed for _, reader in find_readers(dataset))
    if isinstance(dataset, IterMapDataset):
        raise _refused("IterMapDataset makes a pass again from its start, and the pass has changed")
    if has_changed and isinstance(dataset, RepeatDataset) and not float(dataset.repeats or 1).is_integer():
        raise _refused(f"repeats={dataset.repeats} ends within a pass, whose length changed")
    if has_changed and isinstance(dataset, ConcatDataset):
        raise _refused("a dataset inside a ConcatDataset has changed within a pass")
    for inner in dataset.inputs:
        _check_operators(inner, changed)


def _check_prints(
    state: Mapping[str, Any],
    prints: Mapping[str, str],
    now: Description,
    readers: Sequence[_Reader],
    earlier: Sequence[Mapping[str, Any]],
) -> None:
    """Check that the earlier dataset, described again, has the state's hashes, except for weights."""
    saved = state["fingerprint"]
    then = hash_content([(reader.dataset, reader.saved.shards) for reader in readers])
    is_checked = not any(reader.matching and reader.matching.unchecked for reader in readers)
    if readers and saved.get("content", then) != then and is_checked:
        raise _refused("some dataset holds other samples, and there are too many to tell which")
    if saved.get("data") != prints["data"]:
        names = [
            reader.name(number)
            for reader, described in zip(readers, earlier, strict=True)
            for number, (one, other) in enumerate(
                zip(reader.saved.marks, marks(described["leaves"]), strict=True)
            )
            if one != other
        ]
        raise _refused(
            "existing shards were renamed, reordered or changed size in "
            f"{', '.join(names[:_MOST_NAMED]) or 'some dataset'}{' and others' * (len(names) > _MOST_NAMED)}, "
            "or a view has others of their samples",
            "append new shards behind the existing ones, and keep the view",
        )
    if saved.get("order") != prints["order"]:
        raise _refused(
            "the order differs in more than weights and new shards: "
            + (
                now.difference(state, "order")
                or "options of shuffling and slices, repetitions, subsets in percent, or datasets added "
                "elsewhere than at the end of a blend"
            )
        )
    _check_pipeline(state, prints, now)


def _check_pipeline(state: Mapping[str, Any], prints: Mapping[str, str], now: Description) -> None:
    if state["fingerprint"].get("pipeline") != prints["pipeline"]:
        why = now.difference(state, "pipeline") or "batch size, operators, functions, or lengths of passes"
        raise _refused(f"the pipeline differs: {why}")


def _replaced(dataset: SavableDataset[Any], state: Any, path: str, change: Callable[[str, Any], Any]) -> Any:
    """Return a node's state with changed states of its readers."""
    if state is None:
        return None
    if isinstance(dataset, ReaderDataset):
        return change(path, state)
    try:
        states = list(zip(dataset.inputs, dataset.inner_states(state), strict=True))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise StateError(
            f"the state is damaged, or {type(dataset).__name__}.inner_states does not read it: {error!r}",
            hint="for an operator of your own, run energon_stream.testing.operator_suite.assert_exact_resume",
        ) from error
    inner = [
        _replaced(one, at, dataset.input_path(path, number), change)
        for number, (one, at) in enumerate(states)
    ]
    return dataset.with_inner_states(state, inner)


def _carrier(
    stream: int, readers: Sequence[_Reader], then: Weights, changes: Weights, is_reweighted: bool
) -> Callable[[str, Any], Any]:
    """Return a function that converts the state of a reader's node; ``then`` were its ``changes``."""
    by_path = {reader.path: reader for reader in readers}

    def change(path: str, state: Any) -> Any:
        reader = by_path[path]
        now = before = reader.dataset.schedule(stream, path, changes=changes)
        if reader.differs:
            before = reader.dataset.schedule(stream, path, reader.then, then)
        if isinstance(before, BlendSchedule) and before.even is not None:
            epoch, step, inner, *even = state["at"]
            if is_reweighted or is_count(even[0]):  # other weights, or even draws of an earlier version
                (begin,) = step if isinstance(step, (list, tuple)) else (step,)
                state = {**state, "at": (epoch, step, inner, *pack_even(before, before.fresh(begin)))}
        if not reader.differs:
            return state
        context = Context(reader.dataset.worker_config, stream, path=path)
        epoch, cursor = reader.dataset.read_cursor(state, context, before, CursorCodec(before))
        if cursor == before.begin(epoch) or all(leaf.now is None for leaf in reader.then):
            cursor = now.begin(epoch)  # nothing of this pass was consumed, or that is gone
        else:
            cursor = carry(before, now, cursor, reader.then)
            for found in passes_under_way(now, cursor):
                consumed, left = reader.counts.get(found.leaf, (0, 0))
                reader.counts[found.leaf] = consumed + found.consumed, left + found.left
        return {**state, "at": CursorCodec(now).pack(cursor)}

    return change


def _renumbered(state: Any, readers: Sequence[_Reader]) -> Any:
    """Return a stream's state in which the keys of samples that operators hold have the present leaves."""
    if not any(reader.is_renumbered for reader in readers):
        return state
    if isinstance(state, dict):
        return {name: _renumbered(value, readers) for name, value in state.items()}
    if not isinstance(state, (list, tuple)):
        return state
    if len(state) == 3 and state[0] == "Source" and is_count(state[1]):
        then = readers[0].then
        now = then[state[1]].now if len(readers) == 1 and state[1] < len(then) else None
        if now is None:
            raise _refused(
                "an operator, such as packing or a shuffle buffer, holds samples of a dataset that is gone, or "
                "was moved in one of several mixtures",
                "keep the dataset, with a weight of 0 from a batch on: see docs/guides/live-mixtures.md",
            )
        return (state[0], now, state[2])
    return type(state)(_renumbered(value, readers) for value in state)


def _changes(reader: _Reader, streams: Sequence[int]) -> Iterator[LeafChange]:
    """Yield the changes of a reader's leaves."""
    dataset, then = reader.dataset, reader.then
    if not reader.differs:
        return
    replaced = {} if reader.matching is None else reader.matching.replaced()
    earlier = {leaf.now: number for number, leaf in enumerate(then) if leaf.now is not None}
    now = {leaf.leaf: leaf.num_samples for leaf in leaves(dataset.plan)}
    before = {leaf.leaf: leaf.num_samples for leaf in leaves(dataset.plan_of(then)) if leaf.leaf >= 0}
    dealt = _dealt(reader, streams, earlier)
    for at, shards in enumerate(dataset.shards):
        was = earlier.get(at)
        if was is None:
            if at in replaced:
                old = then[replaced[at]]
                sizes = (old.shards, shards), (old.samples, now[at])
                yield LeafChange(reader.name(at), "replaced", *sizes, 0, 0)
            else:
                yield LeafChange(reader.name(at), "added", (0, shards), (0, now[at]), 0, 0)
            continue
        change: Change = "grown" if then[was].shards != shards else "moved" if was != at else "dealt"
        if change == "dealt" and at not in dealt:
            continue
        counts = reader.counts.get(at, (0, 0))
        places = None if was == at else (was, at)
        sizes = (then[was].shards, shards), (before.get(was, 0), now[at])
        yield LeafChange(reader.name(at), change, *sizes, *counts, places)
    for number, leaf in enumerate(then):
        if leaf.now is None and number not in replaced.values():
            name = gone_name(number, leaf.shards, leaf.samples)
            yield LeafChange(name, "removed", (leaf.shards, 0), (leaf.samples, 0), 0, 0)


def _dealt(reader: _Reader, streams: Sequence[int], earlier: Mapping[int, int]) -> set[int]:
    """Return the leaves of which some stream has another share; ``earlier`` are their numbers then."""
    config = reader.dataset.worker_config
    plans = reader.dataset.plan_of(reader.then), reader.dataset.plan
    found: set[int] = set()
    for stream in streams:
        before, now = (
            {
                place: share
                for place, (_, *share) in enumerate(
                    stream_shares(plan, config.num_streams, config.share(stream))
                )
            }
            for plan in plans
        )
        found |= {at for at, was in earlier.items() if before[was] != now[at]}
    return found
