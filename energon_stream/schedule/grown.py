"""Plans of datasets that changed: cursors of the earlier plan become cursors of the present one.

The earlier plan had some leaves of the present one, each with its first shards, in any order, and others that
are gone. New totals change the streams' shares, also of the leaves after the one that changed. The pass that
a stream is in ends in the stream's earlier share; its next pass of that leaf has the present share. A leaf
that was moved keeps the random key of its earlier place. This does not work for concatenations: a stream may
not have begun a later leaf that others have begun.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from energon_stream.schedule.combine import BlendSchedule, RepeatSchedule
from energon_stream.schedule.leaf_order import LeafSchedule, OrderSpec
from energon_stream.schedule.plan import BlendPlan, LeafPlan, Plan, RepeatPlan, leaves
from energon_stream.schedule.schedule import BlendCursor, Cursor, Schedule
from energon_stream.schedule.weights import WeightChange


@dataclass(frozen=True, slots=True)
class PassUnderWay:
    """Progress of one stream in the present pass of one leaf."""

    leaf: int  # number of the leaf
    consumed: int  # references of the pass that were consumed
    left: int  # references of it that are still to come


@dataclass(frozen=True, slots=True)
class EarlierLeaf:
    """A leaf of the earlier plan."""

    now: int | None  # its number in the present plan; None if it is gone
    shards: int  # number of its shards then
    samples: int  # samples that the plan used then


def in_place(shards: Sequence[int]) -> tuple[EarlierLeaf, ...]:
    """Return earlier leaves that are the first ones now."""
    return tuple(EarlierLeaf(number, count, 0) for number, count in enumerate(shards))


def leaf_then(plan: LeafPlan, shards: int) -> LeafPlan:
    """Return the plan of a leaf with fewer shards. A subset that ends with the dataset did so then."""
    starts = plan.shard_starts[: shards + 1]
    end = int(starts[-1])
    stop = end if plan.stop is None or plan.stop == plan.shard_starts[-1] else min(plan.stop, end)
    return replace(plan, shard_starts=starts, stop=stop)


def earlier_plan(plan: Plan, then: Sequence[EarlierLeaf]) -> Plan:
    """Return the plan of when there were other leaves, in their order. TypeError for a concatenation."""
    if isinstance(plan, LeafPlan):
        leaf = then[plan.leaf]
        return _gone(leaf) if leaf.now is None else leaf_then(plan, leaf.shards)
    if isinstance(plan, RepeatPlan):
        return replace(plan, child=earlier_plan(plan.child, then))
    if not isinstance(plan, BlendPlan):
        raise TypeError(f"the earlier plan of a {type(plan).__name__} is unknown")
    if are_first(then):
        kept = [child for child in plan.children if next(leaves(child)).leaf < len(then)]
        children = [earlier_plan(child, then) for child in kept]
        if len(children) == len(plan.children):
            return replace(plan, children=tuple(children))
    else:
        children = [_then(plan.children, number, leaf) for number, leaf in enumerate(then)]
        places = [leaf.now for leaf in then if leaf.now is not None]
        if len(places) == len(then) == len(plan.children):
            first, *changes = (change.of(places) for change in (WeightChange(0, plan.weights), *plan.changes))
            lines, later = plan.lines and plan.lines.of(places), tuple(changes)
            return replace(plan, children=tuple(children), weights=first.weights, changes=later, lines=lines)
    # What the weights were is not known, and no cursor depends on them.
    return replace(plan, children=tuple(children), weights=(1.0,) * len(children), changes=(), lines=None)


def are_first(then: Sequence[EarlierLeaf]) -> bool:
    """Return whether earlier leaves are the first ones now."""
    return [leaf.now for leaf in then] == list(range(len(then)))


def _then(children: Sequence[Plan], number: int, leaf: EarlierLeaf) -> Plan:
    """Return an earlier child of a blend of leaves and repeated leaves."""
    present = children[leaf.now or 0]
    if leaf.now is None:
        endless = isinstance(present, RepeatPlan) and present.repeats is None
        return RepeatPlan(_gone(leaf)) if endless else _gone(leaf)
    (plan,) = leaves(present)
    plan = replace(leaf_then(plan, leaf.shards), leaf=number)
    return replace(present, child=plan) if isinstance(present, RepeatPlan) else plan


def _gone(leaf: EarlierLeaf) -> LeafPlan:
    return LeafPlan(-1, np.array([0, leaf.samples], dtype=np.int64), OrderSpec())


def carry(before: Schedule, now: Schedule, cursor: Cursor, then: Sequence[EarlierLeaf] = ()) -> Cursor:
    """Convert a cursor of the earlier schedule, in passes that have been begun, to one of the present.

    ``then`` are the earlier leaves; by default, they are the first ones now.
    """
    if isinstance(before, LeafSchedule) and isinstance(now, LeafSchedule):
        if before.is_gone:
            return now.begin(cursor.epoch)
        table = before.of_pass(cursor).table
        share = table.start, table.stop
        was, place = cursor.place, None
        if before.place is not None and now.place is not None:
            was = before.place[2] if was is None else was
            place = None if was == now.place[2] else was
        same_share = share == (now.table.start, now.table.stop)
        return cursor._replace(share=None if same_share else share, place=place)
    if isinstance(before, RepeatSchedule) and isinstance(now, RepeatSchedule):
        return cursor._replace(inner=carry(before.inner, now.inner, cursor.inner, then))
    if isinstance(before, BlendSchedule) and isinstance(now, BlendSchedule):
        if are_first(then):
            earlier = {number: number for number in range(len(before.children))}
        else:
            earlier = {leaf.now: number for number, leaf in enumerate(then) if leaf.now is not None}
        children = tuple(
            carry(before.children[earlier[number]], child, cursor.children[earlier[number]], then)
            if number in earlier
            else child.begin(cursor.epoch)
            for number, child in enumerate(now.children)
        )
        # Even draws among other children, or of streams that lacked some of them, begin anew.
        is_same = are_first(then) and len(earlier) == len(children)
        if before.even is not None and now.even is not None:
            is_same = is_same and list(before.even.streams) == list(now.even.streams)
        even = cursor.even if is_same else now.fresh(cursor.step)
        lost = cursor.lost or len(earlier) < len(before.children)
        return BlendCursor(cursor.epoch, cursor.step, children, even, lost)
    raise TypeError(f"a {type(before).__name__} cannot have become a {type(now).__name__}")


def passes_under_way(schedule: Schedule, cursor: Cursor) -> Iterator[PassUnderWay]:
    """Yield the progress in the present pass of each leaf."""
    if isinstance(schedule, LeafSchedule):
        yield PassUnderWay(schedule.leaf, cursor.position, schedule.remaining(cursor))
    elif isinstance(schedule, RepeatSchedule):
        left = schedule.remaining(cursor)  # less than in the inner pass, if only a share of that is used
        for found in passes_under_way(schedule.inner, cursor.inner):
            yield found if left is None else replace(found, left=min(found.left, left))
    elif isinstance(schedule, BlendSchedule):
        for child, inner in zip(schedule.children, cursor.children, strict=True):
            yield from passes_under_way(child, inner)
