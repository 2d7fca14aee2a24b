"""Cursors of saved states, checked against the schedule that goes on from them."""

from __future__ import annotations

import math

from energon_stream.schedule.combine import BlendSchedule, ConcatSchedule, RepeatSchedule
from energon_stream.schedule.leaf_order import LeafSchedule
from energon_stream.schedule.packed_schedule import PackCursor, PackedSchedule
from energon_stream.schedule.saved import damaged
from energon_stream.schedule.schedule import (
    BlendCursor,
    ConcatCursor,
    Cursor,
    LeafCursor,
    RepeatCursor,
    Schedule,
)

_MOST_SLOTS = 1 << 19  # slices that one check may look up, in about 0.05 s
_LEAST_SLOTS = 1 << 12  # slices whose look-up takes about as long as an empty one


def check_cursor(schedule: Schedule, cursor: Cursor, epoch: int, most_slots: int = _MOST_SLOTS) -> None:
    """Raise StateError unless a cursor is a place in pass number ``epoch`` of its schedule.

    The group and the offset of each leaf must fit its position. The slices tell, for as many leaves as
    ``most_slots`` allows; for the others, it must be possible with the lengths that their slices have.
    """
    _Check(most_slots).consumed(schedule, cursor, epoch)


class _Check:
    """One check of a cursor. ``slots`` is the number of slices that it may still look up."""

    def __init__(self, slots: int) -> None:
        self._slots = slots

    def consumed(self, schedule: Schedule, cursor: Cursor, epoch: int) -> tuple[int, bool]:
        """Return the references consumed in a cursor's pass; and False if that is a lower bound only."""
        if isinstance(schedule, PackedSchedule):
            return self._of_packs(schedule, cursor, epoch)
        if isinstance(schedule, RepeatSchedule):
            return self._of_repeat(schedule, cursor, epoch)
        if isinstance(schedule, ConcatSchedule):
            return self._of_concat(schedule, cursor, epoch)
        if isinstance(schedule, BlendSchedule):
            return self._of_blend(schedule, cursor, epoch)
        if not isinstance(schedule, LeafSchedule):
            raise TypeError(f"a {type(schedule).__name__}")
        return self._of_leaf(schedule, cursor, epoch)

    def _of_packs(self, packs: PackedSchedule, cursor: PackCursor, epoch: int) -> tuple[int, bool]:
        if cursor.epoch != epoch:
            raise damaged(f"pass {cursor.epoch} of packs in pass {epoch}")
        consumed, _ = self.consumed(packs.job, cursor.window, epoch)
        packs.check(cursor)
        return consumed, False

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
            self.consumed(child, at, epoch) for child, at in zip(blend.children, cursor.children, strict=True)
        ]
        least, exact = sum(consumed for consumed, _ in each), all(exact for _, exact in each)
        if not blend.is_even(cursor):
            raise damaged(f"{cursor.even} for the even draws of a blend")
        if cursor.step < least or (exact and not cursor.lost and cursor.step != least):
            raise damaged(f"{cursor.step} draws of a blend, of which {least} samples were consumed")
        return cursor.step, True

    def _of_leaf(self, leaf: LeafSchedule, cursor: LeafCursor, epoch: int) -> tuple[int, bool]:
        if leaf.is_gone:
            return 0, False
        schedule, position = leaf.of_pass(cursor), cursor.position
        if cursor.epoch != epoch or not self._is_place(schedule, cursor):
            place = f"{tuple(cursor)} is no place in pass {epoch}"
            raise damaged(f"{place} of dataset {leaf.leaf} of the mixture")
        return position, True

    def _is_place(self, leaf: LeafSchedule, cursor: LeafCursor) -> bool:
        epoch, position, group, offset, *_ = cursor
        if not 0 < position <= leaf.length:
            return not (position or group or offset)
        slots = group * leaf.slots_per_group
        if leaf.order.shuffle_over_epochs != -1:  # with replacement, groups follow each other without end
            if slots >= leaf.slots + leaf.slots_per_group:
                return False
            slots = min(slots, leaf.slots)
        if slots > position:  # each slice has a sample
            return False
        if max(slots, _LEAST_SLOTS) <= self._slots:
            self._slots -= max(slots, _LEAST_SLOTS)
            begin, size = leaf.count(epoch, slots)
            fits = begin + offset == position
        else:
            least, most = leaf.table.slice_lengths
            size = leaf.slots_per_group * most
            fits = slots * least <= position - offset <= slots * most
        return fits and (offset < size or (position == leaf.length and not offset))
