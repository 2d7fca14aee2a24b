"""Restoring a state into a dataset that changed since the state was saved.

Shards may be appended to leaves, leaves to blends, and the weights of blends may change. That nothing else
changed is proved: the first leaves and shards of the present dataset, as many as there were when the state
was saved, are described once more, and the hashes of that description must be the state's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from energon_stream.errors import StateError, StateMismatchError
from energon_stream.pipeline import ConcatDataset, IterMapDataset, RepeatDataset, SavableDataset
from energon_stream.pipeline.node import Context
from energon_stream.pipeline.reader_dataset import ReaderDataset, find_readers
from energon_stream.schedule import (
    BlendPlan,
    ConcatPlan,
    CursorCodec,
    Plan,
    RepeatPlan,
    WeightChange,
    carry,
    leaves,
    passes_under_way,
    reading,
    stream_shares,
)
from energon_stream.state.description import Description, SavedLeaves, fingerprint, marks, read_leaves
from energon_stream.state.digest import with_digest
from energon_stream.state.mixture_weights import WEIGHTS, read_changes
from energon_stream.state.rank import check_topology, read_rank_state
from energon_stream.state.restore_report import Change, ChangeReport, LeafChange

_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class _Reader:
    """A reader dataset, now and when the state was saved."""

    path: str  # its place in the pipeline
    dataset: ReaderDataset  # the present dataset
    saved: SavedLeaves  # its leaves when the state was saved
    # For each leaf, samples of the present passes that this rank's streams consumed, and samples left.
    counts: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def differs(self) -> bool:
        """True if there are more shards now."""
        return self.saved.shards != self.dataset.shards

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
    if read["fingerprint"] == now.prints:
        return read, None
    with reading():
        return _continued(read, dataset, now)


def _continued(
    read: dict[str, Any], dataset: SavableDataset[Any], now: Description
) -> tuple[dict[str, Any], ChangeReport]:
    found = list(find_readers(dataset))
    saved = read_leaves(read.get("leaves"))
    if len(saved) != len(found):
        raise _refused(f"the pipeline had {len(saved)} reader datasets and has {len(found)}")
    readers = [_Reader(*place, was) for place, was in zip(found, saved, strict=True)]
    for reader in readers:
        _check_can_have_grown(reader)
    _check_operators(dataset, {id(reader.dataset) for reader in readers if reader.differs})
    earlier = [reader.dataset.config(reader.saved.shards) for reader in readers]
    prints = fingerprint(dataset.config(), earlier)
    _check_prints(read, prints, now, readers, earlier)
    # Weights that differ from those of then replace all that were set under way.
    is_reweighted = not read["fingerprint"].get("weights") == prints["weights"] == now.prints["weights"]
    was_set = read_changes(read)
    kept = () if is_reweighted else was_set
    streams = dict(read["streams"])
    for stream, at in streams.items():
        if at:
            carried = _carrier(int(stream), readers, kept, is_reweighted)
            streams[stream] = {**at, "node": _replaced(dataset, at["node"], "", carried)}
    changes = [change for reader in readers for change in _changes(reader, dataset.worker_config.streams)]
    has_weights = read["fingerprint"].get("weights") != prints["weights"]
    report = ChangeReport(tuple(changes), has_weights, len(was_set) - len(kept))
    present = {"fingerprint": dict(now.prints), "options": now.options, "leaves": now.leaves}
    rest = {name: value for name, value in read.items() if kept or name != WEIGHTS}
    return with_digest({**rest, **present, "streams": streams}), report


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
    if reader.differs and dataset.packing is not None:
        raise _refused("planned packs are made of all samples, and some were added")
    if reader.differs and _has_concat(dataset.plan):
        raise _refused(
            "datasets that are concatenated have changed, and some stream may not have begun one that others "
            "have begun",
            "restore at the beginning of a validation pass, without a state",
        )


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
    if saved.get("pipeline") != prints["pipeline"]:
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
    stream: int, readers: Sequence[_Reader], changes: tuple[WeightChange, ...], is_reweighted: bool
) -> Callable[[str, Any], Any]:
    """Return a function that converts the state of a reader's node; ``changes`` of weights still hold."""
    by_path = {reader.path: reader for reader in readers}

    def change(path: str, state: Any) -> Any:
        reader = by_path[path]
        if is_reweighted and isinstance(reader.dataset.plan, BlendPlan) and reader.dataset.plan.even:
            _, step, _, _, *words = state["at"]
            at = (*state["at"][:3], step, *(0 for _ in words))  # other weights: even draws are counted anew
            state = {**state, "at": at}
        if not reader.differs:
            return state
        before = reader.dataset.schedule(stream, path, reader.saved.shards, changes)
        now = reader.dataset.schedule(stream, path, changes=changes)
        context = Context(reader.dataset.worker_config, stream, path=path)
        epoch, cursor = reader.dataset.read_cursor(state, context, before, CursorCodec(before))
        if cursor == before.begin(epoch):
            cursor = now.begin(epoch)  # nothing of this pass was consumed
        else:
            cursor = carry(before, now, cursor)
            for found in passes_under_way(now, cursor):
                consumed, left = reader.counts.get(found.leaf, (0, 0))
                reader.counts[found.leaf] = consumed + found.consumed, left + found.left
        return {**state, "at": CursorCodec(now).pack(cursor)}

    return change


def _changes(reader: _Reader, streams: Sequence[int]) -> Iterator[LeafChange]:
    """Yield the changes of a reader's leaves."""
    dataset, had = reader.dataset, reader.saved.shards
    if not reader.differs:
        return
    now = {leaf.leaf: leaf.num_samples for leaf in leaves(dataset.plan)}
    before = {leaf.leaf: leaf.num_samples for leaf in leaves(dataset.plan_of(had))}
    moved = _moved_shares(reader, streams)
    for number, shards in enumerate(dataset.shards):
        earlier = had[number] if number < len(had) else 0
        change: Change = "added" if not earlier else "dealt" if earlier == shards else "grown"
        if change == "dealt" and number not in moved:
            continue
        consumed, left = reader.counts.get(number, (0, 0)) if earlier else (0, 0)
        samples = before.get(number, 0), now[number]
        yield LeafChange(reader.name(number), change, (earlier, shards), samples, consumed, left)


def _moved_shares(reader: _Reader, streams: Sequence[int]) -> set[int]:
    """Return the leaves of which some stream has another share."""
    number = reader.dataset.worker_config.num_streams
    plans = reader.dataset.plan_of(reader.saved.shards), reader.dataset.plan
    return {
        leaf.leaf
        for stream in streams
        for (leaf, *before), (_, *after) in zip(
            *(stream_shares(plan, number, stream) for plan in plans), strict=False
        )
        if before != after
    }
