"""Plans: frozen descriptions of an order, from which each stream builds its schedule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

import numpy as np

from energon_stream.arrays import Int64Array
from energon_stream.rng import derive_key
from energon_stream.schedule.base import Schedule
from energon_stream.schedule.combine import BlendSchedule, ConcatSchedule, RepeatSchedule
from energon_stream.schedule.leaf import LeafSchedule, OrderSpec
from energon_stream.schedule.slices import SliceTable
from energon_stream.schedule.split import stream_bounds

__all__ = [
    "BlendPlan",
    "ConcatPlan",
    "LeafPlan",
    "Plan",
    "RepeatPlan",
    "build_schedule",
    "describe_plan",
    "leaves",
    "stream_shares",
]


@dataclass(frozen=True, slots=True)
class LeafPlan:
    """One source dataset.

    Attributes:
        leaf: Number of the source.
        shard_starts: ``int64``, first sample of each shard and the total at the end.
        order: How to shuffle.
        start: First sample of the subset that is used.
        stop: One past the last sample of the subset; None for all.
    """

    leaf: int
    shard_starts: Int64Array = field(repr=False, compare=False)
    order: OrderSpec
    start: int = 0
    stop: int | None = None

    @property
    def num_samples(self) -> int:
        """Samples of the subset, over all streams."""
        return (int(self.shard_starts[-1]) if self.stop is None else self.stop) - self.start


@dataclass(frozen=True, slots=True)
class RepeatPlan:
    """Pass after pass; see :class:`RepeatSchedule`."""

    child: Plan
    repeats: float | None = None


@dataclass(frozen=True, slots=True)
class BlendPlan:
    """A weighted draw for each sample; see :class:`BlendSchedule`."""

    children: tuple[Plan, ...]
    weights: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ConcatPlan:
    """One after the other; see :class:`ConcatSchedule`."""

    children: tuple[Plan, ...]


Plan: TypeAlias = LeafPlan | RepeatPlan | BlendPlan | ConcatPlan


def leaves(plan: Plan) -> Iterator[LeafPlan]:
    """All leaves, in order."""
    if isinstance(plan, LeafPlan):
        yield plan
    elif isinstance(plan, RepeatPlan):
        yield from leaves(plan.child)
    else:
        for child in plan.children:
            yield from leaves(child)


def stream_shares(plan: Plan, num_streams: int, stream: int) -> Iterator[tuple[LeafPlan, int, int]]:
    """Each leaf with the first sample, and one past the last, of one stream's share of it.

    The remainders of the leaves' splits rotate over the streams, by the samples of the leaves before.
    """
    passed = 0
    for leaf in leaves(plan):
        bounds = stream_bounds(leaf.num_samples, num_streams, passed % num_streams)
        passed += leaf.num_samples
        yield leaf, leaf.start + bounds[stream], leaf.start + bounds[stream + 1]


def build_schedule(plan: Plan, *, num_streams: int, stream: int, key: int) -> Schedule:
    """Make one stream's schedule.

    Each node draws from a key of its own, made of ``key`` and its path, so that equal datasets are not
    shuffled alike.

    Args:
        plan: What to schedule.
        num_streams: Streams of the whole job.
        stream: Which of them.
        key: Key of all draws; different for each stream.
    """
    shares = stream_shares(plan, num_streams, stream)

    def build(node: Plan, path: str) -> Schedule:
        if isinstance(node, LeafPlan):
            _, first, last = next(shares)
            table = SliceTable.build(node.shard_starts, first, last, node.order.max_samples_per_sequence)
            return LeafSchedule(node.leaf, table, node.order, derive_key(key, path))
        if isinstance(node, RepeatPlan):
            return RepeatSchedule(build(node.child, f"{path}r"), node.repeats)
        children = tuple(build(child, f"{path}/{number}") for number, child in enumerate(node.children))
        if isinstance(node, ConcatPlan):
            return ConcatSchedule(children)
        return BlendSchedule(children, node.weights, derive_key(key, path))

    return build(plan, "")


def describe_plan(plan: Plan) -> dict[str, Any]:
    """A plan as plain values, for fingerprints and reports."""
    if isinstance(plan, LeafPlan):
        return {
            "leaf": plan.leaf,
            "samples": [plan.start, plan.start + plan.num_samples],
            "shards": int(np.size(plan.shard_starts)) - 1,
            "order": asdict(plan.order),
        }
    if isinstance(plan, RepeatPlan):
        return {"repeat": describe_plan(plan.child), "repeats": plan.repeats}
    children = [describe_plan(child) for child in plan.children]
    if isinstance(plan, ConcatPlan):
        return {"concat": children}
    return {"blend": children, "weights": list(plan.weights)}
