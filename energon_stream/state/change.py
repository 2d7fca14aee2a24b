"""Going on in a dataset that changed since a state was saved.

What may change, each alone or together with others: shards are appended to sources, sources to blends, and blends get
other weights. That nothing else changed is proved, not assumed: the dataset of then is described again as the first shards and
sources of the one of now, and the hashes of that have to be the state's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from energon_stream.errors import StateError, StateMismatchError
from energon_stream.pipeline import ConcatDataset, IterMapDataset, RepeatDataset, SavableDataset
from energon_stream.pipeline.reader_dataset import ReaderDataset, find_readers
from energon_stream.schedule import (
    BlendPlan,
    ConcatPlan,
    CursorCodec,
    Plan,
    RepeatPlan,
    carry,
    leaves,
    passes_under_way,
    stream_shares,
)
from energon_stream.state.description import Description, SavedLeaves, fingerprint, marks, read_sources, runs
from energon_stream.state.rank import check_topology, read_rank_state
from energon_stream.state.report import Change, ChangeReport, LeafChange

__all__ = ["continue_state"]

_NAMED = 3


@dataclass(frozen=True, slots=True)
class _Changed:
    """A dataset of sources, and what it was.

    Attributes:
        path: Its place in the pipeline.
        dataset: What it is now.
        shards: How many shards its sources had.
        counts: For each source, what this rank's streams have given out of the passes that they are in, and what is left.
    """

    path: str
    dataset: ReaderDataset
    shards: tuple[int, ...]
    counts: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def differs(self) -> bool:
        """Whether there are more shards now."""
        return self.shards != self.dataset.shards

    def name(self, number: int) -> str:
        """A source in messages."""
        index = self.dataset.leaves[number].index
        return f"{index.spec.url} [{index.split_part}]"


def continue_state(
    state: Any, dataset: SavableDataset[Any], now: Description
) -> tuple[dict[str, Any], ChangeReport | None]:
    """Make the state of a dataset that changed one of the dataset as it is.

    Args:
        state: What ``save_state_rank`` returned, or its msgpack bytes.
        dataset: The dataset.
        now: Its description.

    Returns:
        The state, and what changed; None where nothing did.

    Raises:
        StateError: Not a state of this library, or a damaged one.
        StateMismatchError: Of another topology, or a dataset that this one cannot have grown from.
    """
    read = read_rank_state(state)
    check_topology(read, dataset.worker_config, dataset.pass_length)
    if read["fingerprint"] == now.prints:
        return read, None
    found = list(find_readers(dataset))
    then = read_sources(read.get("sources"))
    if len(then) != len(found):
        raise _refused(f"the pipeline had {len(then)} datasets of sources and has {len(found)}")
    changed = [_Changed(*each, was.shards) for each, was in zip(found, then, strict=True)]
    for each in changed:
        _check_can_have_grown(each)
    _check_operators(dataset, {id(each.dataset) for each in changed if each.differs})
    earlier = [each.dataset.config(each.shards) for each in changed]
    prints = fingerprint(dataset.config(), earlier)
    _check_prints(read["fingerprint"], prints, changed, then, earlier)
    streams = {
        stream: saved
        and {**saved, "node": _replaced(dataset, saved["node"], "", _carrier(int(stream), changed))}
        for stream, saved in read["streams"].items()
    }
    sources = tuple(change for each in changed for change in _changes(each, dataset.worker_config.streams))
    report = ChangeReport(sources, read["fingerprint"].get("weights") != prints["weights"])
    return {**read, "fingerprint": dict(now.prints), "sources": now.sources, "streams": streams}, report


def _refused(
    why: str, hint: str = "build the dataset of then, or start without a state"
) -> StateMismatchError:
    return StateMismatchError(f'on_change="continue" cannot go on: {why}', hint=hint)


def _has_concat(plan: Plan) -> bool:
    if isinstance(plan, RepeatPlan):
        return _has_concat(plan.child)
    return isinstance(plan, ConcatPlan) or (
        isinstance(plan, BlendPlan) and any(map(_has_concat, plan.children))
    )


def _check_can_have_grown(changed: _Changed) -> None:
    dataset, had = changed.dataset, changed.shards
    if len(had) > len(dataset.shards):
        raise _refused(
            f"there were {len(had)} sources and are {len(dataset.shards)}; sources can be added at the end, not be removed",
            "leave the source in, with a small weight",
        )
    for number, (before, after) in enumerate(zip(had, dataset.shards, strict=False)):
        index = dataset.leaves[number].index
        if before > after:
            raise _refused(f"{changed.name(number)} had {before} shards and has {after}")
        if before < after and len(index.shard_counts) != after:
            raise _refused(
                f"{changed.name(number)} is a join, whose rows may all be others when a member grows"
            )
    if changed.differs and _has_concat(dataset.plan):
        raise _refused(
            "sources that come one after the other have changed, and some stream may not have begun one that others have",
            "restore it where a validation pass begins, without a state",
        )


def _check_operators(dataset: SavableDataset[Any], changed: set[int]) -> None:
    """Check that no operator relies on what its inner dataset was."""
    has_changed = any(id(source) in changed for _, source in find_readers(dataset))
    if isinstance(dataset, IterMapDataset):
        raise _refused("IterMapDataset makes a pass again from its start, which would be another one now")
    if has_changed and isinstance(dataset, RepeatDataset) and not float(dataset.repeats or 1).is_integer():
        raise _refused(f"repeats={dataset.repeats} ends within a pass, whose length changed")
    if has_changed and isinstance(dataset, ConcatDataset):
        raise _refused("datasets that come one after the other have changed in a pass over them")
    for inner in dataset.inputs:
        _check_operators(inner, changed)


def _check_prints(
    saved: Mapping[str, Any],
    prints: Mapping[str, str],
    changed: Sequence[_Changed],
    then: Sequence[SavedLeaves],
    earlier: Sequence[Mapping[str, Any]],
) -> None:
    """Check that the dataset of then has the state's hashes, but for weights."""
    if saved.get("data") != prints["data"]:
        names = [
            name
            for each, was, node in zip(changed, then, earlier, strict=True)
            for name in _suspects(each, was, node["leaves"])
        ]
        some = f"one of {len(names)} sources, such as " if len(names) > _NAMED else ""
        raise _refused(
            "the shards of then are not the first ones of now (they have other names, another order or other numbers of "
            f"samples) in {some}{', '.join(names[:_NAMED]) or 'some source'}",
            "append new shards behind those of then",
        )
    if saved.get("order") != prints["order"]:
        raise _refused(
            "the order is another one in more than weights and new shards (options of shuffling and slices, repetitions, "
            "subsets in percent, sources added elsewhere than at the end of a blend)"
        )
    if saved.get("pipeline") != prints["pipeline"]:
        raise _refused("the pipeline is another one (batch size, operators, functions, lengths of passes)")


def _suspects(changed: _Changed, then: SavedLeaves, described: Sequence[Any]) -> list[str]:
    """Sources among which the one is whose first shards are not those of then."""
    compared = zip(runs(len(described)), then.marks, marks(described), strict=True)
    return [changed.name(number) for run, was, now in compared if was != now for number in run]


def _replaced(dataset: SavableDataset[Any], state: Any, path: str, change: Callable[[str, Any], Any]) -> Any:
    """A node's state, with the states of its sources changed."""
    if state is None:
        return None
    if isinstance(dataset, ReaderDataset):
        return change(path, state)
    try:
        each = list(zip(dataset.inputs, dataset.inner_states(state), strict=True))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise StateError(
            f"the state is damaged, or {type(dataset).__name__}.inner_states does not read it: {error!r}",
            hint="run assert_exact_resume of energon_stream.testing.operator_suite on an operator of your own",
        ) from error
    inner = [
        _replaced(one, at, dataset.input_path(path, number), change) for number, (one, at) in enumerate(each)
    ]
    return dataset.with_inner_states(state, inner)


def _carrier(stream: int, changed: Sequence[_Changed]) -> Callable[[str, Any], Any]:
    """What makes a source's state in one stream one of now."""
    differing = {each.path: each for each in changed if each.differs}

    def change(path: str, state: Any) -> Any:
        each = differing.get(path)
        if each is None:
            return state
        then = each.dataset.schedule(stream, path, each.shards)
        now = each.dataset.schedule(stream, path)
        cursor = CursorCodec(then).unpack(state["at"])
        if cursor == then.begin(state["epoch"]):
            cursor = now.begin(state["epoch"])  # of this pass, nothing was given out
        else:
            cursor = carry(then, now, cursor)
            for found in passes_under_way(now, cursor):
                given, left = each.counts.get(found.leaf, (0, 0))
                each.counts[found.leaf] = given + found.consumed, left + found.left
        return {**state, "at": CursorCodec(now).pack(cursor)}

    return change


def _changes(changed: _Changed, streams: Sequence[int]) -> Iterator[LeafChange]:
    """What is to be said of each source that changed."""
    dataset = changed.dataset
    if not changed.differs:
        return
    now = {leaf.leaf: leaf.num_samples for leaf in leaves(dataset.plan)}
    then = {leaf.leaf: leaf.num_samples for leaf in leaves(dataset.plan_of(changed.shards))}
    moved = _dealt_anew(changed, streams)
    for number, shards in enumerate(dataset.shards):
        before = changed.shards[number] if number < len(changed.shards) else 0
        change: Change = "added" if not before else "dealt" if before == shards else "grown"
        if change == "dealt" and number not in moved:
            continue
        given, left = changed.counts.get(number, (0, 0)) if before else (0, 0)
        samples = then.get(number, 0), now[number]
        yield LeafChange(changed.name(number), change, (before, shards), samples, given, left)


def _dealt_anew(changed: _Changed, streams: Sequence[int]) -> set[int]:
    """Sources of which some stream has another share."""
    number = changed.dataset.worker_config.num_streams
    plans = changed.dataset.plan_of(changed.shards), changed.dataset.plan
    return {
        leaf.leaf
        for stream in streams
        for (leaf, *before), (_, *after) in zip(
            *(stream_shares(plan, number, stream) for plan in plans), strict=False
        )
        if before != after
    }
