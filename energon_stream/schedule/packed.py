"""Cursors of blends of many sources, in a few bytes for each source.

The cursor of a blend, ``(epoch, step, (cursor of each child, ...))``, becomes ``(epoch, step, bytes)`` where it has sixteen
children or more and all of them are sources, or sources repeated. What the schedule knows is left out, and what is left is
written by columns, one number for each child:

``given``
    References given out over all passes of the child's source in this pass of the blend. Pass and place in it follow.
``start``
    Where the source's group begins, against ``group x mean size of a group``.
``group``
    Number of that group, against ``place / mean size of a group``.
``first`` and ``stop``
    Only where some pass began before its dataset grew: the bounds of the share of then, against those of now.

No column depends on the weights, so a packed cursor can be read when these have changed. Signed numbers are written
as ``2 x`` or ``-2 x - 1``. The bytes are the number of columns, for each the number of its byte planes (0 where all
numbers are 0), and the planes, lowest first, as one raw deflate stream (RFC 1951) with a block of its own for each: high
bytes are much alike, low ones are noise.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from itertools import compress
from operator import is_not
from typing import Any, TypeAlias, cast

import numpy as np

from energon_stream.arrays import Int64Array
from energon_stream.errors import StateError
from energon_stream.schedule.base import Cursor, Schedule, as_cursor
from energon_stream.schedule.combine import BlendSchedule, ConcatSchedule, RepeatSchedule
from energon_stream.schedule.leaf import LeafSchedule

__all__ = ["CursorCodec", "PackedCursor", "pack_columns", "unpack_columns"]

PackedCursor: TypeAlias = Any
"""A cursor in which ``bytes`` stand for the children of large blends."""

_LEAST_CHILDREN = 16
"""Blends of fewer stay as they are: that takes hardly more, and can be looked at."""


def pack_columns(columns: Sequence[Int64Array]) -> bytes:
    """Write columns of equal length, of numbers that are not negative."""
    widths, planes = [], []
    for column in columns:
        width = (int(column.max(initial=0)).bit_length() + 7) // 8
        rows = column.astype("<i8").view(np.uint8).reshape(-1, 8)
        widths.append(width)
        planes += [rows[:, place].tobytes() for place in range(width)]
    deflate = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    parts = [bytes([len(widths), *widths])]
    for plane in planes:
        parts += deflate.compress(plane), deflate.flush(zlib.Z_PARTIAL_FLUSH)
    return b"".join([*parts, deflate.flush()])


def unpack_columns(data: bytes, length: int) -> list[Int64Array]:
    """Read what :func:`pack_columns` wrote.

    Args:
        data: The bytes.
        length: Numbers in each column.

    Raises:
        ValueError: The bytes are no columns of that length.
    """
    widths = data[1 : 1 + data[0]] if data else b""
    try:
        planes = zlib.decompress(data[1 + len(widths) :], wbits=-zlib.MAX_WBITS)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not widths or max(widths) > 8 or len(planes) != sum(widths) * length:
        raise ValueError(f"{len(planes)} bytes are not {sum(widths)} planes of {length}")
    rows = np.frombuffer(planes, dtype=np.uint8).reshape(-1, length)
    columns, done = [], 0
    for width in widths:
        column = np.zeros((length, 8), dtype=np.uint8)
        column[:, :width] = rows[done : done + width].T
        columns.append(column.view("<i8")[:, 0].astype(np.int64))
        done += width
    return columns


def _unsigned(values: Int64Array) -> Int64Array:
    return (values << 1) ^ (values >> 63)


def _signed(values: Int64Array) -> Int64Array:
    return (values >> 1) ^ -(values & 1)


def _source_of(child: Schedule) -> LeafSchedule | None:
    inner = child.inner if isinstance(child, RepeatSchedule) else child
    return inner if isinstance(inner, LeafSchedule) else None


class _Sources:
    """The children of a blend: what is known of them, and their last cursors, as arrays.

    Few children move between two states, and cursors are not changed in place, so those that are the same object
    are looked at once.
    """

    def __init__(self, blend: BlendSchedule, sources: Sequence[LeafSchedule]) -> None:
        self._sources = sources
        self._bare = [child is source for child, source in zip(blend.children, sources, strict=True)]
        begins = [cast("tuple[int, ...]", child.begin(1))[0] for child in blend.children]
        self._passes = np.array(begins, dtype=np.int64)  # of each, in one pass of the blend
        self._now = np.array([(source.table.start, source.table.stop) for source in sources], dtype=np.int64)
        self._last: Sequence[Any] = [None] * len(sources)
        self._places = np.zeros((len(sources), 8), dtype=np.int64)
        self._lengths = np.zeros(len(sources), dtype=np.int64)
        self._groups = np.ones(len(sources))

    def pack(self, epoch: int, cursors: Sequence[Any]) -> bytes | None:
        """The children's cursors as bytes; None where they are none that a blend comes to."""
        self._look_at(cursors)
        firsts, passes, epochs, given, group, offset, *share = self._places.T
        lengths, groups, done = self._lengths, self._groups, passes - firsts
        known = (firsts == epoch * self._passes) & (epochs == passes) & (done >= 0)
        if not (known & (given <= lengths) & ((given > 0) | (done == 0) & (given == 0))).all():
            return None
        start = given - offset - np.rint(group * groups).astype(np.int64)
        number = group - np.floor(given / groups).astype(np.int64)
        columns = [done * lengths + given, _unsigned(start), _unsigned(number)]
        differ = [_unsigned(bound - now) for bound, now in zip(share, self._now.T, strict=True)]
        return pack_columns(columns + differ if any(column.any() for column in differ) else columns)

    def _look_at(self, cursors: Sequence[Any]) -> None:
        moved = list(compress(range(len(cursors)), map(is_not, self._last, cursors)))
        if not moved:
            return
        places = []
        for number in moved:
            cursor, source = cursors[number], self._sources[number]
            first, done, inner = (cursor[0], cursor[0], cursor) if self._bare[number] else cursor
            in_share = source if len(inner) == 4 else source.at(inner)
            self._lengths[number], self._groups[number] = in_share.length, in_share.mean_group
            places.append((first, done, *inner[:4], in_share.table.start, in_share.table.stop))
        self._places[moved] = places
        self._last = cursors

    def unpack(self, epoch: int, data: bytes) -> tuple[Cursor, ...]:
        """The children's cursors."""
        total, start, number, *differ = unpack_columns(data, len(self._sources))
        shares = self._now + np.transpose([_signed(column) for column in differ]) if differ else self._now
        earlier = (shares != self._now).any(axis=1).tolist()
        pairs = zip(self._sources, earlier, shares.tolist(), strict=True)
        in_share = [source.at((0, 0, 0, 0, *share)) if then else source for source, then, share in pairs]
        lengths = np.array([source.length for source in in_share], dtype=np.int64)
        groups = np.array([source.mean_group for source in in_share])
        done = np.maximum(total - 1, 0) // np.maximum(lengths, 1)
        given = total - done * lengths
        group = _signed(number) + np.floor(given / groups).astype(np.int64)
        offset = given - _signed(start) - np.rint(group * groups).astype(np.int64)
        firsts = epoch * self._passes
        columns = (firsts, firsts + done, given, group, offset)
        cursors: list[Cursor] = []
        for row, bare, then, share in zip(
            np.transpose(columns).tolist(), self._bare, earlier, shares.tolist(), strict=True
        ):
            first, at, *place = row
            inner = (at, *place, *share) if then else (at, *place)
            cursors.append(inner if bare else (first, at, inner))
        return tuple(cursors)


class CursorCodec:
    """Packs the cursors of one schedule, and reads packed ones and others.

    Args:
        schedule: The schedule.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._known: dict[int, _Sources | None] = {}

    def pack(self, cursor: Cursor) -> PackedCursor:
        """A cursor in plain values, with ``bytes`` where that is shorter."""
        return self._pack(self._schedule, cursor)

    def unpack(self, value: PackedCursor) -> Cursor:
        """A cursor of what :meth:`pack` made of it, or of the cursor itself, also with lists in the place of tuples.

        Raises:
            StateError: It is no cursor of this schedule.
        """
        try:
            return self._unpack(self._schedule, value)
        except (TypeError, ValueError, IndexError) as error:
            raise StateError(f"the state is damaged: a cursor cannot be read ({error})") from error

    def _pack(self, schedule: Schedule, cursor: Cursor) -> PackedCursor:
        if isinstance(schedule, RepeatSchedule):
            first, number, inner = cast("tuple[int, int, Cursor]", cursor)
            return first, number, self._pack(schedule.inner, inner)
        if isinstance(schedule, ConcatSchedule):
            number, inner, epoch = cast("tuple[int, Cursor, int]", cursor)
            return number, self._pack(schedule.children[number], inner), epoch
        if not isinstance(schedule, BlendSchedule):
            return cursor
        epoch, step, cursors = cast("tuple[int, int, tuple[Cursor, ...]]", cursor)
        sources = self._sources(schedule)
        packed = None if sources is None else sources.pack(epoch, cursors)
        if packed is not None:
            return epoch, step, packed
        children = zip(schedule.children, cursors, strict=True)
        return epoch, step, tuple([self._pack(child, inner) for child, inner in children])

    def _unpack(self, schedule: Schedule, value: PackedCursor) -> Cursor:
        if isinstance(schedule, RepeatSchedule):
            first, number, inner = value
            return int(first), int(number), self._unpack(schedule.inner, inner)
        if isinstance(schedule, ConcatSchedule):
            number, inner, epoch = value
            return int(number), self._unpack(schedule.children[number], inner), int(epoch)
        if not isinstance(schedule, BlendSchedule):
            cursor = as_cursor(value)
            if not isinstance(cursor, tuple) or len(cursor) not in (4, 6):
                raise ValueError(f"{value!r} is no place in a source")
            return cursor
        epoch, step, cursors = value
        if isinstance(cursors, (bytes, bytearray)):
            sources = self._sources(schedule)
            if sources is None:
                raise ValueError(f"packed cursors in a blend of {len(schedule.children)}")
            return int(epoch), int(step), sources.unpack(int(epoch), bytes(cursors))
        children = zip(schedule.children, cursors, strict=True)
        return int(epoch), int(step), tuple(self._unpack(child, inner) for child, inner in children)

    def _sources(self, blend: BlendSchedule) -> _Sources | None:
        """What is known of a blend's children; None where they cannot be packed."""
        if id(blend) not in self._known:
            found = [_source_of(child) for child in blend.children]
            sources = [source for source in found if source is not None]
            large = len(blend.children) >= _LEAST_CHILDREN and len(sources) == len(found)
            self._known[id(blend)] = _Sources(blend, sources) if large else None
        return self._known[id(blend)]
