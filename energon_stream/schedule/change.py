"""Plans of datasets that grew: a cursor of the plan of then, for the plan of now.

A dataset grows at its end: the plan of then had the first of the sources of now, each with the first of its shards.
As the totals change, so do the streams' shares, also of the sources after the one that grew. The pass that a stream is in
ends in the stream's share of then; its next pass of that source is of its share of now. Over all streams, the passes that
are under way have all samples of then once, as if nothing had changed, and those after them all samples of now.

That is so where streams are in passes of all sources at a time, in blends; where sources come one after the other, a stream has
not begun the later ones, which others may have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

from energon_stream.schedule.base import Cursor, Schedule
from energon_stream.schedule.combine import BlendSchedule, RepeatSchedule
from energon_stream.schedule.leaf import LeafSchedule
from energon_stream.schedule.plan import BlendPlan, LeafPlan, Plan, RepeatPlan, leaves

__all__ = ["PassUnderWay", "carry", "earlier_plan", "passes_under_way"]


@dataclass(frozen=True, slots=True)
class PassUnderWay:
    """Where a stream stands in a source.

    Attributes:
        leaf: Number of the source.
        given: References of the pass that were given out.
        left: References of it that are still to come.
    """

    leaf: int
    given: int
    left: int


def earlier_plan(plan: Plan, shards: Sequence[int]) -> Plan:
    """The plan of a dataset that had fewer sources or shards.

    A subset that ends where the dataset ends is taken to have done so then.

    Args:
        plan: The plan of now.
        shards: How many shards each source had, of the first ones of now; not more than now.

    Raises:
        TypeError: The plan is one of sources that come one after the other.
    """
    if isinstance(plan, LeafPlan):
        starts = plan.shard_starts[: shards[plan.leaf] + 1]
        end = int(starts[-1])
        stop = end if plan.stop is None or plan.stop == plan.shard_starts[-1] else min(plan.stop, end)
        return replace(plan, shard_starts=starts, stop=stop)
    if isinstance(plan, RepeatPlan):
        return replace(plan, child=earlier_plan(plan.child, shards))
    if isinstance(plan, BlendPlan):
        there = [child for child in plan.children if next(leaves(child)).leaf < len(shards)]
        children = tuple(earlier_plan(child, shards) for child in there)
        return BlendPlan(children, plan.weights[: len(children)])
    raise TypeError(f"what was before a {type(plan).__name__} is not known")


def carry(then: Schedule, now: Schedule, cursor: Cursor) -> Cursor:
    """A cursor for the schedule of now, in passes that have been begun.

    Args:
        then: The schedule of the earlier plan.
        now: That of the plan of now, of the same stream and with the same key.
        cursor: A cursor of the schedule of then.

    Raises:
        TypeError: The schedules are of other kinds.
    """
    if isinstance(then, LeafSchedule) and isinstance(now, LeafSchedule):
        numbers = cast("tuple[int, ...]", cursor)
        table = then.at(cursor).table
        same = (table.start, table.stop) == (now.table.start, now.table.stop)
        return (*numbers[:4], *(() if same else (table.start, table.stop)))
    if isinstance(then, RepeatSchedule) and isinstance(now, RepeatSchedule):
        first, number, inner = cast("tuple[int, int, Cursor]", cursor)
        return first, number, carry(then.inner, now.inner, inner)
    if isinstance(then, BlendSchedule) and isinstance(now, BlendSchedule):
        epoch, step, cursors = cast("tuple[int, int, tuple[Cursor, ...]]", cursor)
        both = zip(then.children, now.children, cursors, strict=False)
        added = now.children[len(then.children) :]
        carried = tuple(carry(*each) for each in both) + tuple(child.begin(epoch) for child in added)
        return epoch, step, carried
    raise TypeError(f"a {type(then).__name__} cannot have become a {type(now).__name__}")


def passes_under_way(schedule: Schedule, cursor: Cursor) -> Iterator[PassUnderWay]:
    """Where a cursor stands in each of its sources."""
    if isinstance(schedule, LeafSchedule):
        given = cast("tuple[int, ...]", cursor)[1]
        yield PassUnderWay(schedule.leaf, given, schedule.remaining(cursor))
    elif isinstance(schedule, RepeatSchedule):
        inner = cast("tuple[int, int, Cursor]", cursor)[2]
        left = schedule.remaining(cursor)  # less than of the inner pass, where only a share of that is used
        for found in passes_under_way(schedule.inner, inner):
            yield found if left is None else replace(found, left=min(found.left, left))
    elif isinstance(schedule, BlendSchedule):
        cursors = cast("tuple[int, int, tuple[Cursor, ...]]", cursor)[2]
        for child, inner in zip(schedule.children, cursors, strict=True):
            yield from passes_under_way(child, inner)
