"""Plans: frozen descriptions of an order, from which each stream builds its schedule."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from energon_stream.rng import derive_key
from energon_stream.schedule.combine import BlendSchedule, ConcatSchedule, RepeatSchedule
from energon_stream.schedule.cost_draws import CostDraws, mean_parts
from energon_stream.schedule.leaf_order import LeafSchedule, OrderSpec
from energon_stream.schedule.lines import Lines, stretch_of
from energon_stream.schedule.slices import SliceTable
from energon_stream.schedule.weights import (
    ALONG_LINES,
    BY_SEGMENTS,
    IN_STAIRS,
    EvenDraws,
    WeightChange,
    changes_along,
    changes_in_stream,
)
from energon_stream.worker_fields import share_of

if TYPE_CHECKING:
    from energon_stream.arrays import Int64Array
    from energon_stream.schedule.schedule import Schedule
    from energon_stream.selection import Selection


@dataclass(frozen=True, slots=True)
class LeafPlan:
    """One dataset at the bottom of a mixture."""

    leaf: int  # number of the leaf
    # ``int64``, first sample of each shard, and the total at the end.
    shard_starts: Int64Array = field(repr=False, compare=False)
    order: OrderSpec  # options of the order
    start: int = 0  # first sample of the subset that is used
    stop: int | None = None  # one past the last sample of the subset; None for all
    # Samples of a view; None for all. With one, the other numbers count its samples alone.
    selection: Selection | None = field(default=None, repr=False, compare=False)
    # Costs of all samples of the split part, where weights are shares of a cost.
    costs: npt.NDArray[Any] | None = field(default=None, repr=False, compare=False)
    mean_cost: int = field(default=0, init=False, repr=False, compare=False)  # as of :func:`mean_parts`

    def __post_init__(self) -> None:  # counted once, and not again for each stream
        costs = np.ones(1) if self.costs is None else self.costs
        object.__setattr__(self, "mean_cost", mean_parts(costs))

    @property
    def num_samples(self) -> int:
        """Samples of the subset, over all streams."""
        return (int(self.shard_starts[-1]) if self.stop is None else self.stop) - self.start


@dataclass(frozen=True, slots=True)
class RepeatPlan:
    """Repeated passes; see :class:`RepeatSchedule`."""

    child: Plan
    repeats: float | None = None


@dataclass(frozen=True, slots=True)
class BlendPlan:
    """A weighted draw for each sample; see :class:`BlendSchedule`."""

    children: tuple[Plan, ...]
    weights: tuple[float, ...]
    changes: tuple[WeightChange, ...] = ()  # other weights, by batch of the job, ascending
    per_batch: int = 1  # references of a batch
    even: bool = False  # whether draws follow the weights to the sample; see :class:`EvenDraws`
    # Name and hash of the costs of which weights are shares; None for samples.
    unit: tuple[str, str] | None = None
    foresees: int = 0  # version of even draws, by which they foresee changes that were not set under way
    planned: tuple[WeightChange, ...] | None = None  # ``changes`` before some were set under way
    told: float = math.inf  # batch from which on weights were set under way
    lines: Lines | None = None  # that ``changes`` have stairs of, and even draws follow; they have the knots

    @property
    def is_live(self) -> bool:
        """True if weights may change: all children are repeated without end."""
        return all(isinstance(child, RepeatPlan) and child.repeats is None for child in self.children)

    def with_changes(self, changes: Sequence[WeightChange]) -> BlendPlan:
        """Return the plan with other weights; they replace its own from the first of them on."""
        own = [change for change in self.changes if not changes or change.begin < changes[0].begin]
        planned = self.changes if self.planned is None else self.planned
        told = changes[0].begin if changes else self.told
        return replace(self, changes=(*own, *changes), planned=planned, told=told)

    def of_version(self, version: int | None) -> BlendPlan:
        """Return the plan with draws as a version had them; None for the newest way."""
        if version is None or version >= self.foresees:
            return self
        is_along = version == ALONG_LINES and self.lines is not None and self.lines.are_long
        return replace(self, foresees=version, lines=self.lines if is_along else None)

    def course(self, *, planned: bool = False) -> list[WeightChange]:
        """Return all weights that even draws follow, the first ones too; or those before some were set."""
        changes = self.planned if planned and self.planned is not None else self.changes
        if self.lines is None:
            return [WeightChange(0, self.weights), *changes]
        told = math.inf if planned else self.told
        along = [change for change in changes_along(self.lines) if change.begin < told]
        return along + [change for change in changes if change.begin >= told]

    def weights_at(self, batch: int) -> tuple[float, ...]:
        """Return the weights that hold at a batch of the job."""
        change = [change for change in self.course() if change.begin <= batch][-1]
        if change.along is None:
            return change.weights
        return tuple(stretch_of(change.along, change.begin).weights(np.array([batch + 0.5]))[:, 0].tolist())


@dataclass(frozen=True, slots=True)
class ConcatPlan:
    """Plans that follow each other; see :class:`ConcatSchedule`."""

    children: tuple[Plan, ...]


Plan: TypeAlias = LeafPlan | RepeatPlan | BlendPlan | ConcatPlan


def leaves(plan: Plan) -> Iterator[LeafPlan]:
    """Yield all leaves, in order."""
    if isinstance(plan, LeafPlan):
        yield plan
    elif isinstance(plan, RepeatPlan):
        yield from leaves(plan.child)
    else:
        for child in plan.children:
            yield from leaves(child)


def bit_reversal(size: int) -> list[int]:
    """Return the generalised bit reversal of ``range(size)``: halve, recurse into both halves, interleave."""

    def reorder(items: list[int]) -> list[int]:
        if len(items) <= 2:
            return items
        middle = len(items) // 2
        left, right = reorder(items[:middle]), reorder(items[middle:])
        result = [value for pair in zip(left, right, strict=False) for value in pair]
        return result + right[len(left) :]

    return reorder(list(range(size)))


@lru_cache(maxsize=1024)  # mixtures of many datasets, of which each stream asks for all
def stream_bounds(num_samples: int, num_streams: int, rotation: int = 0) -> Int64Array:
    """Cut ``range(num_samples)`` into one contiguous range per stream: ``[bounds[s], bounds[s + 1])``.

    This is the split arithmetic of Megatron-Energon. The first ``num_samples % num_streams`` streams after
    ``rotation`` get one sample more; :func:`bit_reversal` then lays these far apart.
    """
    base, remainder = divmod(num_samples, num_streams)
    bounds = np.zeros(num_streams + 1, dtype=np.int64)
    bounds[1:][_reversed_bits(num_streams)] = base + (
        (np.arange(num_streams) - rotation) % num_streams < remainder
    )
    return np.cumsum(bounds)


@lru_cache(maxsize=16)
def _reversed_bits(size: int) -> Int64Array:
    return np.array(bit_reversal(size), dtype=np.int64)


def stream_shares(plan: Plan, num_streams: int, stream: int) -> Iterator[tuple[LeafPlan, int, int]]:
    """Yield each leaf with the first sample, and one past the last, of one stream's share.

    The remainders of the leaves' splits rotate over the streams, by the samples in the leaves before.
    """
    for leaf, bounds in _all_bounds(plan, num_streams):
        yield leaf, leaf.start + int(bounds[stream]), leaf.start + int(bounds[stream + 1])


def _all_bounds(plan: Plan, num_streams: int) -> Iterator[tuple[LeafPlan, Int64Array]]:
    """Yield each leaf with the bounds of all streams' shares."""
    passed = 0
    for leaf in leaves(plan):
        yield leaf, stream_bounds(leaf.num_samples, num_streams, passed % num_streams)
        passed += leaf.num_samples


def reached_shares(plan: Plan, num_streams: int) -> Iterator[tuple[BlendPlan, list[float]]]:
    """Yield each endless blend in which some stream lacks a source, with the shares that its sources reach.

    A stream draws from the sources that it has samples of. One with fewer samples than there are streams is
    missing in some of them, so that its share of the job's draws is below its weight.
    """
    if all(leaf.num_samples >= num_streams for leaf in leaves(plan)):
        return
    bounds = np.array([bounds for _, bounds in _all_bounds(plan, num_streams)])
    present = iter(np.diff(bounds, axis=1) > 0)
    found: list[tuple[BlendPlan, list[float]]] = []

    def visit(node: Plan) -> npt.NDArray[np.bool_]:
        if isinstance(node, LeafPlan):
            return next(present)
        if isinstance(node, RepeatPlan):
            return visit(node.child)
        has = np.array([visit(child) for child in node.children])
        if isinstance(node, BlendPlan) and node.is_live and not has.all():
            drawn = np.array(node.weights)[:, None] * has
            total = drawn.sum(axis=0)
            found.append((node, (drawn / np.where(total > 0, total, 1)).mean(axis=1).tolist()))
        return np.asarray(has.any(axis=0))

    visit(plan)
    yield from found


def build_schedule(
    plan: Plan, *, num_streams: int, stream: int, key: int, dealt_to: int = 1, mixed: int = 0
) -> Schedule:
    """Make one stream's schedule. Each node draws from its own key, so equal datasets differ in order.

    ``dealt_to`` is that of ``WorkerConfig``. With ``mixed``, this number of samples is mixed later, and
    neighbours stay together.
    """
    shares = stream_shares(plan, num_streams, share_of(stream, num_streams, dealt_to))

    def build(node: Plan, path: str) -> Schedule:
        if isinstance(node, LeafPlan):
            _, first, last = next(shares)
            table = SliceTable.build(node.shard_starts, first, last, node.order.max_samples_per_sequence)
            outer, slash, own = path.rpartition("/")
            suffix = own.lstrip("0123456789")
            place = (key, outer, int(own.removesuffix(suffix)), suffix) if slash else None
            return LeafSchedule(
                node.leaf, table, node.order, derive_key(key, path), node.selection, place, mixed
            )
        if isinstance(node, RepeatPlan):
            return RepeatSchedule(build(node.child, f"{path}r"), node.repeats)
        children = tuple(build(child, f"{path}/{number}") for number, child in enumerate(node.children))
        if isinstance(node, ConcatPlan):
            return ConcatSchedule(children)
        changes = changes_in_stream(node.changes, num_streams, stream, node.per_batch)
        even = _even_draws(node, num_streams, stream, dealt_to) if node.even else None
        return BlendSchedule(children, node.weights, derive_key(key, path), changes, even)

    return build(plan, "")


def _even_draws(plan: BlendPlan, num_streams: int, stream: int, dealt_to: int) -> EvenDraws | CostDraws:
    """Return the draws that a stream has together with all streams that have samples of the same sources."""
    streams: Sequence[int] = range(num_streams)
    weights, foreseen = plan.course(), plan.course(planned=True) if plan.foresees else []
    if any(leaf.num_samples < num_streams for leaf in leaves(plan)):
        has = np.diff(np.array([bounds for _, bounds in _all_bounds(plan, num_streams)]), axis=1) > 0
        sizes = [len(list(leaves(child))) for child in plan.children]
        mine = np.array([part.any(axis=0) for part in np.split(has, np.cumsum(sizes)[:-1])])
        mine = mine[:, [share_of(each, num_streams, dealt_to) for each in streams]]
        streams = np.flatnonzero((mine == mine[:, [stream]]).all(axis=0)).tolist()
        own = mine[:, stream].astype(float).tolist()
        weights, foreseen = ([change.scaled(own) for change in each] for each in (weights, foreseen))
    if plan.unit is None:
        knots = plan.lines.begins() if plan.lines and plan.foresees >= BY_SEGMENTS else None
        return EvenDraws(weights, streams, stream, num_streams, plan.per_batch, foreseen, knots)
    costs = [np.ones(1) if leaf.costs is None else leaf.costs for leaf in leaves(plan)]
    means = [leaf.mean_cost for leaf in leaves(plan)]
    by_mean = [
        change.scaled([1 / mean for mean in means])._replace(
            weights=tuple(weight / mean for weight, mean in zip(change.weights, means, strict=True))
        )
        for change in weights
    ]
    even = EvenDraws(by_mean, streams, stream, num_streams, plan.per_batch)
    return CostDraws(even, weights, means, costs, (num_streams, stream, plan.per_batch))


def describe_plan(plan: Plan) -> dict[str, Any]:
    """Return a plan as plain values, for fingerprints and reports."""
    if isinstance(plan, LeafPlan):
        return {
            "leaf": plan.leaf,
            "samples": [plan.start, plan.start + plan.num_samples],
            "shards": int(np.size(plan.shard_starts)) - 1,
            "order": plan.order.describe(),
        }
    if isinstance(plan, RepeatPlan):
        return {"repeat": describe_plan(plan.child), "repeats": plan.repeats}
    children = [describe_plan(child) for child in plan.children]
    if isinstance(plan, ConcatPlan):
        return {"concat": children}
    weights: list[Any] = list(plan.weights)
    changes = [[change.begin, *change.weights] for change in plan.changes]
    draws: dict[str, Any] = {"draws": "even"} if plan.even else {}
    if plan.foresees:
        draws["foresees"] = True if plan.foresees == IN_STAIRS else plan.foresees
    if plan.lines is not None:
        draws["lines"] = plan.lines.describe()
    if plan.unit is not None:
        draws["unit"] = list(plan.unit)
    return {"blend": children, "weights": weights + changes, **draws}
