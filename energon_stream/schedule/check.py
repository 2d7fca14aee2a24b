"""Cursors of saved states, checked against the schedule that goes on from them."""

from __future__ import annotations

import math

from energon_stream.schedule.base import BlendCursor, ConcatCursor, Cursor, LeafCursor, RepeatCursor, Schedule
from energon_stream.schedule.combine import BlendSchedule, ConcatSchedule, RepeatSchedule
from energon_stream.schedule.leaf import LeafSchedule
from energon_stream.schedule.saved import damaged

_MOST_SLOTS = 1 << 20
"""Slices that one check may look up, in about 0.1 s."""


def check_cursor(schedule: Schedule, cursor: Cursor, epoch: int) -> None:
    """Check that a cursor is a place in pass number ``epoch`` of its schedule.

    The group and the offset of each leaf must be those of its position. That is checked for as many leaves as
    ``_MOST_SLOTS`` allows; the others must be inside some group.

    Raises StateError if it is not.
    """
    _Check(_MOST_SLOTS).consumed(schedule, cursor, epoch)


class _Check:
    """One check of a cursor. ``slots`` is the number of slices that it may still look up."""

    def __init__(self, slots: int) -> None:
        self._slots = slots

    def consumed(self, schedule: Schedule, cursor: Cursor, epoch: int) -> tuple[int, bool]:
        """Check a cursor; return the references consumed in its pass, and whether that is their exact number.

        It is a lower bound where earlier passes may have had other lengths.
        """
        if isinstance(schedule, RepeatSchedule):
            return self._of_repeat(schedule, cursor, epoch)
        if isinstance(schedule, ConcatSchedule):
            return self._of_concat(schedule, cursor, epoch)
        if isinstance(schedule, BlendSchedule):
            return self._of_blend(schedule, cursor, epoch)
        if not isinstance(schedule, LeafSchedule):
            raise TypeError(f"a {type(schedule).__name__}")
        return self._of_leaf(schedule, cursor, epoch)

    def _of_repeat(self, repeat: RepeatSchedule, cursor: RepeatCursor, epoch: int) -> tuple[int, bool]:
        passes = None if repeat.repeats is None else math.ceil(repeat.repeats)
        done = cursor.current - cursor.first
        if cursor.first != epoch * (passes or 1) or not 0 <= done < (passes or math.inf):
            raise damaged(f"repetition {done} of {passes} from pass {cursor.first} on, in pass {epoch}")
        consumed, exact = self.consumed(repeat.inner, cursor.inner, cursor.current)
        return consumed, exact and not done

    def _of_concat(self, concat: ConcatSchedule, cursor: ConcatCursor, epoch: int) -> tuple[int, bool]:
        if cursor.epoch != epoch:
            raise damaged(f"pass {cursor.epoch} of a concatenation in pass {epoch}")
        consumed, exact = self.consumed(concat.children[cursor.child], cursor.inner, epoch)
        return consumed, exact and not cursor.child

    def _of_blend(self, blend: BlendSchedule, cursor: BlendCursor, epoch: int) -> tuple[int, bool]:
        if cursor.epoch != epoch:
            raise damaged(f"pass {cursor.epoch} of a blend in pass {epoch}")
        each = [
            self.consumed(child, at, epoch)
            for child, at in zip(blend.children, cursor.children, strict=True)
        ]
        least, exact = sum(consumed for consumed, _ in each), all(exact for _, exact in each)
        if cursor.step < least or (exact and cursor.step != least):
            raise damaged(f"{cursor.step} draws of a blend, of which {least} samples were consumed")
        return cursor.step, True

    def _of_leaf(self, leaf: LeafSchedule, cursor: LeafCursor, epoch: int) -> tuple[int, bool]:
        schedule, (number, position, group, offset, _) = leaf.in_share(cursor.share), cursor
        slots = group * schedule.slots_per_group
        fits = number == epoch and position <= schedule.length and slots <= position
        if fits and position:
            size = schedule.count(epoch, slots, slots + schedule.slots_per_group)
            fits = offset < size or (offset == 0 and position == schedule.length)
            if fits and slots <= self._slots:
                self._slots -= slots
                fits = schedule.count(epoch, 0, slots) + offset == position
        if not fits or (not position and offset):
            raise damaged(f"{tuple(cursor)} is no place in pass {epoch} of dataset {leaf.leaf} of the mixture")
        return position, True
