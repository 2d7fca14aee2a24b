"""Plans of datasets that grew: cursors of the earlier plan become cursors of the present one.

A dataset grows at its end: the earlier plan had the first leaves of the present one, each with its first
shards. New totals change the streams' shares, also of the leaves after the one that grew. The pass that a
stream is in ends in the stream's earlier share; its next pass of that leaf has the present share. This does
not work for concatenations: a stream may not have begun a later leaf that others have begun.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from energon_stream.schedule.combine import BlendSchedule, RepeatSchedule
from energon_stream.schedule.leaf_order import LeafSchedule
from energon_stream.schedule.plan import BlendPlan, LeafPlan, Plan, RepeatPlan, leaves
from energon_stream.schedule.schedule import BlendCursor, Cursor, Schedule


@dataclass(frozen=True, slots=True)
class PassUnderWay:
    """Progress of one stream in the present pass of one leaf."""

    leaf: int  # number of the leaf
    consumed: int  # references of the pass that were consumed
    left: int  # references of it that are still to come


def earlier_plan(plan: Plan, shards: Sequence[int]) -> Plan:
    """Return the plan of when the first leaves had ``shards``, and there were no others.

    A subset that ends with the dataset is assumed to have done so before. TypeError for a concatenation.
    """
    if isinstance(plan, LeafPlan):
        starts = plan.shard_starts[: shards[plan.leaf] + 1]
        end = int(starts[-1])
        stop = end if plan.stop is None or plan.stop == plan.shard_starts[-1] else min(plan.stop, end)
        return replace(plan, shard_starts=starts, stop=stop)
    if isinstance(plan, RepeatPlan):
        return replace(plan, child=earlier_plan(plan.child, shards))
    if isinstance(plan, BlendPlan):
        kept = [child for child in plan.children if next(leaves(child)).leaf < len(shards)]
        children = tuple(earlier_plan(child, shards) for child in kept)
        if len(children) == len(plan.children):
            return replace(plan, children=children)
        # What these weights were is not known, and no cursor depends on them.
        weights = tuple(weight or 1.0 for weight in plan.weights[: len(children)])
        return replace(plan, children=children, weights=weights, changes=())
    raise TypeError(f"the earlier plan of a {type(plan).__name__} is unknown")


def carry(before: Schedule, now: Schedule, cursor: Cursor) -> Cursor:
    """Convert a cursor of the earlier schedule, in passes that have been begun, to one of the present."""
    if isinstance(before, LeafSchedule) and isinstance(now, LeafSchedule):
        table = before.in_share(cursor.share).table
        share = table.start, table.stop
        return cursor._replace(share=None if share == (now.table.start, now.table.stop) else share)
    if isinstance(before, RepeatSchedule) and isinstance(now, RepeatSchedule):
        return cursor._replace(inner=carry(before.inner, now.inner, cursor.inner))
    if isinstance(before, BlendSchedule) and isinstance(now, BlendSchedule):
        kept = zip(before.children, now.children, cursor.children, strict=False)
        added = now.children[len(before.children) :]
        children = [carry(*each) for each in kept] + [child.begin(cursor.epoch) for child in added]
        # Even draws among more children begin anew.
        even = now.fresh(cursor.step) if added else cursor.even
        return BlendCursor(cursor.epoch, cursor.step, tuple(children), even)
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
