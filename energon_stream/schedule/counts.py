"""Counting what was consumed of each leaf, from a cursor alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from energon_stream.schedule.combine import BlendSchedule, ConcatSchedule, RepeatSchedule
from energon_stream.schedule.leaf_order import LeafSchedule
from energon_stream.schedule.schedule import Cursor, Schedule


def samples_by_leaf(schedule: Schedule, cursor: Cursor, epochs: int = 0) -> Counter[int]:
    """Count the references consumed of each leaf, in passes as long as now, and up to a cursor."""
    return _times(_whole(schedule), epochs) + _consumed(schedule, cursor)


def _consumed(schedule: Schedule, cursor: Cursor) -> Counter[int]:
    if isinstance(schedule, RepeatSchedule):
        done = _times(_whole(schedule.inner), cursor.current - cursor.first)
        return done + _consumed(schedule.inner, cursor.inner)
    if isinstance(schedule, ConcatSchedule):
        done = _sum(map(_whole, schedule.children[: cursor.child]))
        return done + _consumed(schedule.children[cursor.child], cursor.inner)
    if isinstance(schedule, BlendSchedule):
        return _sum(map(_consumed, schedule.children, cursor.children))
    if not isinstance(schedule, LeafSchedule):
        raise TypeError(f"a {type(schedule).__name__}")
    return Counter({schedule.leaf: cursor.position})


def _whole(schedule: Schedule) -> Counter[int]:
    """Count the references of one pass; none if it never ends."""
    if isinstance(schedule, RepeatSchedule):
        whole = _whole(schedule.inner)
        times = schedule.repeats or 0.0
        part = {leaf: math.floor(count * (times % 1)) for leaf, count in whole.items()}
        return _times(whole, math.floor(times)) + Counter(part)
    if isinstance(schedule, (ConcatSchedule, BlendSchedule)):
        return _sum(map(_whole, schedule.children))
    if not isinstance(schedule, LeafSchedule):
        raise TypeError(f"a {type(schedule).__name__}")
    return Counter({schedule.leaf: schedule.length})


def _times(counts: Counter[int], number: int) -> Counter[int]:
    return Counter({leaf: count * number for leaf, count in counts.items()})


def _sum(counts: Iterable[Counter[int]]) -> Counter[int]:
    total: Counter[int] = Counter()
    for each in counts:
        total.update(each)
    return total
