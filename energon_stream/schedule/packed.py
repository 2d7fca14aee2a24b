"""Cursors as plain values, which states hold.

A cursor becomes a tuple of its fields; a leaf's has four numbers, two more with a share, and one more with a
place. A blend with even draws adds the columns of their state as ``bytes``, and one that lost a child has its
step in a tuple. Where a blend has sixteen children or more, and all are leaves or repeated leaves, ``bytes``
stand for the cursors of its children. The bytes hold columns:

* references consumed since the blend's pass began, in all passes of the child together
* number of the group: the difference from its number if all groups were of equal size
* references before the group: the difference from their number if all groups were of equal size
* where some leaf was moved in the blend: the number of its earlier place plus 1; 0 for the others
* where some pass began before its dataset grew: both bounds of the share, as differences from the bounds now

No column depends on the weights: they may change between save and restore.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from energon_stream.arrays import Int64Array
from energon_stream.errors import StateError
from energon_stream.schedule.combine import BlendSchedule, ConcatSchedule, RepeatSchedule
from energon_stream.schedule.leaf_order import LeafSchedule
from energon_stream.schedule.packed_schedule import PackCursor, PackedSchedule
from energon_stream.schedule.rounds import EvenState
from energon_stream.schedule.saved import MOST_COUNT, is_count, reading, shown
from energon_stream.schedule.schedule import (
    BlendCursor,
    ConcatCursor,
    Cursor,
    LeafCursor,
    RepeatCursor,
    Schedule,
)

PackedCursor: TypeAlias = Any
"""A cursor as plain values; ``bytes`` stand for the children of large blends."""

_LEAST_CHILDREN = 16  # smaller blends stay readable: packing would save little
_MOST_COLUMNS = 6


def pack_columns(columns: Sequence[Int64Array] | EvenState) -> bytes:
    """Compress columns of equal length, of numbers ``x`` written as ``2 x`` or ``-2 x - 1``."""
    table = np.array(columns, dtype=np.int64)
    unsigned = ((table << 1) ^ (table >> 63)).astype("<i8").view(np.uint8).reshape(*table.shape, 8)
    # Bytes of equal significance lie side by side: high bytes are much alike, low ones are noise.
    return zlib.compress(unsigned.transpose(0, 2, 1).tobytes())


def unpack_columns(data: bytes, length: int, most: int = _MOST_COLUMNS) -> Int64Array:
    """Read up to ``most`` columns of a known length into an array of shape (columns, length).

    Raises ValueError if there are none. Finding out takes no more memory than such columns.
    """
    inflate = zlib.decompressobj()
    try:
        raw = inflate.decompress(data, most * length * 8 + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not inflate.eof or inflate.unused_data or not raw or len(raw) % (length * 8):
        raise ValueError(f"{len(data)} bytes do not hold columns of {length} numbers")
    planes = np.frombuffer(raw, dtype=np.uint8).reshape(-1, 8, length)
    unsigned = np.ascontiguousarray(planes.transpose(0, 2, 1)).view("<u8")[..., 0]
    return ((unsigned >> np.uint64(1)) ^ -(unsigned & np.uint64(1))).astype(np.int64)


def _expected_group(position: Int64Array, facts: Int64Array) -> Int64Array:
    length, slots, per_group = facts
    expected: Int64Array = position * slots // np.maximum(length * per_group, 1)
    return expected


def _expected_begin(group: Int64Array, facts: Int64Array) -> Int64Array:
    length, slots, per_group = facts
    expected: Int64Array = group * per_group * length // np.maximum(slots, 1)
    return expected


class _LeafChildren:
    """The children of a large blend, and their last cursors as numbers.

    Few move between two states. The cursors of the others are the same objects and not looked at again.
    """

    def __init__(self, blend: BlendSchedule, leaves: Sequence[LeafSchedule]) -> None:
        self._leaves = leaves
        self._repeated = [child is not leaf for child, leaf in zip(blend.children, leaves, strict=True)]
        self._passes = np.array([child.begin(1)[0] for child in blend.children], dtype=np.int64)
        self._bounds = np.array([(leaf.table.start, leaf.table.stop) for leaf in leaves], dtype=np.int64)
        self._last: Sequence[Cursor] = [None] * len(leaves)
        self._gone = np.array([leaf.is_gone for leaf in leaves])
        self._rows = np.zeros((len(leaves), 12), dtype=np.int64)

    def pack(self, epoch: int, cursors: Sequence[Cursor]) -> bytes | None:
        """Pack the children's cursors; None if no blend would come to them."""
        moved = [n for n, (last, now) in enumerate(zip(self._last, cursors, strict=True)) if last is not now]
        if moved:
            self._rows[moved] = [self._row(number, cursors[number]) for number in moved]
            self._last = cursors
        first, current, inner, position, group, offset, place, *bounds = self._rows.T[:9]
        facts, done = self._rows.T[9:], current - first
        fits = (first == epoch * self._passes) & (inner == current) & (position <= facts[0])
        if not (fits & (done >= 0) & ((position > 0) | (done == 0))).all():
            return None
        begin = position - offset - _expected_begin(group, facts)
        columns = [done * facts[0] + position, group - _expected_group(position, facts), begin]
        columns += [place] if place.any() else []
        moves = bounds - self._bounds.T
        return pack_columns([*columns, *moves] if moves.any() else columns)

    def _row(self, number: int, cursor: Cursor) -> tuple[int, ...]:
        first, current, at = cursor if self._repeated[number] else (cursor.epoch, cursor.epoch, cursor)
        leaf = self._leaves[number].of_pass(at)
        place = 0 if at.place is None else at.place + 1
        return (first, current, *at[:4], place, leaf.table.start, leaf.table.stop, *leaf.facts)

    def unpack(self, epoch: int, data: bytes) -> tuple[Cursor, ...]:
        """Read the children's cursors. Raises ValueError if the bytes are damaged."""
        total, group, begin, *more = unpack_columns(data, len(self._leaves))
        places = [0] * len(self._leaves)
        if len(more) in (1, 3):
            places = more.pop(0).tolist()
            if min(places) < 0 or not any(places):
                raise ValueError("a column of places without any")
        moves = [np.where(self._gone, 0, each) for each in more]
        bounds = self._bounds + np.stack(moves, axis=1) if moves else self._bounds
        earlier = (bounds != self._bounds).any(axis=1).tolist()
        shares = [tuple(pair) if old else None for pair, old in zip(bounds.tolist(), earlier, strict=True)]
        leaves = [
            leaf.of_pass(LeafCursor(0, 0, 0, 0, share))
            for leaf, share in zip(self._leaves, shares, strict=True)
        ]
        facts = np.array([leaf.facts for leaf in leaves], dtype=np.int64).T
        done = np.maximum(total - 1, 0) // np.maximum(facts[0], 1)
        position = total - done * facts[0]
        group = group + _expected_group(position, facts)
        offset = position - begin - _expected_begin(group, facts)
        first = epoch * self._passes
        rows = np.stack([first, first + done, position, group, offset], axis=1)
        rows[self._gone, 2:] = 0
        if rows.min() < 0 or rows.max() >= MOST_COUNT or (rows[:, 2] > facts[0]).any():
            raise ValueError("some place is outside its dataset")
        cursors: list[Cursor] = []
        for (start, current, *counts), repeated, share, place in zip(
            rows.tolist(), self._repeated, shares, places, strict=True
        ):
            at = LeafCursor(current, counts[0], counts[1], counts[2], share, place - 1 if place else None)
            cursors.append(RepeatCursor(start, current, at) if repeated else at)
        return tuple(cursors)


def _counts(*values: Any) -> tuple[int, ...]:
    if len(values) not in (2, 4, 5, 6, 7) or not all(map(is_count, values)):
        raise ValueError(f"({', '.join(map(shown, values))}) is no place in a dataset")
    return values


def pack_even(blend: BlendSchedule, even: EvenState) -> tuple[bytes, ...]:
    """Return the state of a blend's even draws as a plain value; none without even draws."""
    if blend.even is None:
        return ()
    return (pack_columns(even),)


def _unpack_even(blend: BlendSchedule, values: Sequence[Any]) -> EvenState:
    if blend.even is None and not values:
        return ()
    if blend.even is not None and values and all(map(is_count, values)):
        raise StateError(
            "the state has even draws of an earlier version, which drew alike in all streams",
            hint='restore with on_change="continue": sources go on where they are, and draws begin anew',
        )
    if blend.even is None or len(values) != 1 or not isinstance(values[0], (bytes, bytearray)):
        raise ValueError(f"{len(values)} values for even draws")
    start = blend.fresh(0)
    return tuple(map(tuple, unpack_columns(bytes(values[0]), len(start[0]), len(start)).tolist()))


class CursorCodec:
    """Converts the cursors of one schedule to plain values and back."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._large: dict[int, _LeafChildren | None] = {}

    def pack(self, cursor: Cursor) -> PackedCursor:
        """Return a cursor as plain values."""
        return self._pack(self._schedule, cursor)

    def unpack(self, value: PackedCursor) -> Cursor:
        """Return the cursor that :meth:`pack` made plain. Lists may stand for tuples, as after msgpack.

        Raises StateError if it has another form. :func:`check_cursor` finds out whether it is a place.
        """
        with reading():
            return self._unpack(self._schedule, value)

    def _pack(self, schedule: Schedule, cursor: Cursor) -> PackedCursor:
        if isinstance(schedule, PackedSchedule):
            epoch, number, window, pack, place = cursor
            return epoch, number, pack, place, self._pack(schedule.job, window)
        if isinstance(schedule, RepeatSchedule):
            return cursor.first, cursor.current, self._pack(schedule.inner, cursor.inner)
        if isinstance(schedule, ConcatSchedule):
            return cursor.child, self._pack(schedule.children[cursor.child], cursor.inner), cursor.epoch
        if not isinstance(schedule, BlendSchedule):
            return (*cursor[:4], *(cursor.share or ()), *(() if cursor.place is None else (cursor.place,)))
        large = self._large_blend(schedule)
        packed = None if large is None else large.pack(cursor.epoch, cursor.children)
        step = (cursor.step,) if cursor.lost else cursor.step
        if packed is None:
            children = zip(schedule.children, cursor.children, strict=True)
            at: Any = tuple([self._pack(*each) for each in children])
        else:
            at = packed
        return cursor.epoch, step, at, *pack_even(schedule, cursor.even)

    def _unpack(self, schedule: Schedule, value: PackedCursor) -> Cursor:
        if not isinstance(value, (list, tuple)):
            raise TypeError(f"{shown(value)} is no cursor")
        if isinstance(schedule, PackedSchedule):
            *counts, inner = value
            epoch, number, pack, place = _counts(*counts)
            return PackCursor(epoch, number, self._unpack(schedule.job, inner), pack, place)
        if isinstance(schedule, RepeatSchedule):
            first, current, inner = value
            first, current = _counts(first, current)
            return RepeatCursor(first, current, self._unpack(schedule.inner, inner))
        if isinstance(schedule, ConcatSchedule):
            number, inner, epoch = value
            number, epoch = _counts(number, epoch)
            return ConcatCursor(number, self._unpack(schedule.children[number], inner), epoch)
        if not isinstance(schedule, BlendSchedule):
            if isinstance(schedule, LeafSchedule) and schedule.is_gone:
                return schedule.begin()
            epoch, position, group, offset, *more = _counts(*value)
            at = more.pop() if len(more) % 2 else None
            return LeafCursor(epoch, position, group, offset, (more[0], more[1]) if more else None, at)
        epoch, step, packed, *counted = value
        lost = isinstance(step, (list, tuple))
        (step,) = step if lost else (step,)
        epoch, step = _counts(epoch, step)
        even = _unpack_even(schedule, counted)
        if schedule.even is not None:
            schedule.even.go_on(step, even)
        if not isinstance(packed, (bytes, bytearray)):
            children = zip(schedule.children, packed, strict=True)
            return BlendCursor(epoch, step, tuple(self._unpack(*each) for each in children), even, lost)
        large = self._large_blend(schedule)
        if large is None:
            raise ValueError(f"packed cursors in a blend of {len(schedule.children)}")
        return BlendCursor(epoch, step, large.unpack(epoch, bytes(packed)), even, lost)

    def _large_blend(self, blend: BlendSchedule) -> _LeafChildren | None:
        """Facts about a blend's children; None if their cursors are not packed."""
        if id(blend) not in self._large:
            inner = [child.inner if isinstance(child, RepeatSchedule) else child for child in blend.children]
            leaves = [leaf for leaf in inner if isinstance(leaf, LeafSchedule)]
            packs = len(leaves) == len(inner) >= _LEAST_CHILDREN
            self._large[id(blend)] = _LeafChildren(blend, leaves) if packs else None
        return self._large[id(blend)]
