"""Cursors far ahead: where ``advance`` ends, without the references on the way."""

from __future__ import annotations

from typing import cast

import numpy as np

from energon_stream.schedule.combine import BlendSchedule, ConcatSchedule, RepeatSchedule
from energon_stream.schedule.leaf_order import LeafSchedule
from energon_stream.schedule.schedule import (
    BlendCursor,
    ConcatCursor,
    Cursor,
    LeafCursor,
    RepeatCursor,
    Schedule,
)

NEAR = 256  # references over which a leaf is advanced as a reader does it
_DRAWS = 1 << 18  # draws of a blend that are made at a time, in a few megabytes


def skip(schedule: Schedule, cursor: Cursor, count: int) -> Cursor:
    """Return ``schedule.advance(cursor, count)``, sooner.

    Whole passes, and leaves with equally long slices, take no time. Elsewhere slices or draws are counted,
    some ten million a second.
    """
    if isinstance(schedule, RepeatSchedule):
        return _of_repeat(schedule, cursor, count)
    if isinstance(schedule, ConcatSchedule):
        return _of_concat(schedule, cursor, count)
    if isinstance(schedule, BlendSchedule):
        return _of_blend(schedule, cursor, count)
    if isinstance(schedule, LeafSchedule):
        return _of_leaf(schedule, cursor, count)
    return schedule.advance(cursor, count)


def _of_leaf(leaf: LeafSchedule, cursor: LeafCursor, count: int) -> LeafCursor:
    epoch, position, group, offset, *_ = cursor
    schedule = leaf.of_pass(cursor)
    left = min(count, schedule.length - position)
    if left < NEAR:
        return leaf.advance(cursor, left)
    group, offset = schedule.find(epoch, group, offset + left)
    return cursor._replace(position=position + left, group=group, offset=offset)


def _of_repeat(repeat: RepeatSchedule, cursor: RepeatCursor, count: int) -> RepeatCursor:
    in_all = repeat.remaining(cursor)
    left = count if in_all is None else min(count, in_all)
    first, current, inner = cursor
    in_pass = cast("int", repeat.inner.remaining(inner))
    if left > in_pass:
        length = cast("int", repeat.inner.length)
        whole, rest = divmod(left - in_pass - 1, length)  # whole passes between, which are left out
        current += 1 + whole
        inner, left = repeat.inner.next_pass(inner, current), rest + 1
    return RepeatCursor(first, current, skip(repeat.inner, inner, left))


def _of_concat(concat: ConcatSchedule, cursor: ConcatCursor, count: int) -> ConcatCursor:
    number, inner, epoch = cursor
    while True:
        child = concat.children[number]
        left = child.remaining(inner)
        size = count if left is None else min(count, left)
        inner, count = skip(child, inner, size), count - size
        if not count or number + 1 == len(concat.children):
            return ConcatCursor(number, inner, epoch)
        number += 1
        inner = concat.children[number].begin(epoch)


def _of_blend(blend: BlendSchedule, cursor: BlendCursor, count: int) -> BlendCursor:
    while count:
        choices, even = blend._choices(cursor, min(count, _DRAWS))
        if not len(choices):
            break
        uses = np.bincount(choices, minlength=len(blend.children)).tolist()
        children = tuple(
            skip(child, at, n) if n else at
            for child, at, n in zip(blend.children, cursor.children, uses, strict=True)
        )
        cursor = cursor._replace(step=cursor.step + len(choices), children=children, even=even)
        count -= len(choices)
    return cursor
