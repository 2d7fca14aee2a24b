"""Planned packing: a stream's schedule whose references are the packs that the whole job's plan gives it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from energon_stream.schedule.balance import loads_of_ranks, loads_of_steps
from energon_stream.schedule.pack_planning import PackPiece
from energon_stream.schedule.planned import JobPacks, StreamPacks
from energon_stream.schedule.saved import damaged
from energon_stream.schedule.schedule import Cursor, Refs, Schedule


class PackCursor(NamedTuple):
    """Place in planned packs."""

    epoch: int  # number of the pass
    number: int  # steps of the pass before this window; windows, where these do not end with passes
    window: Cursor  # place in the job's schedule where the window begins
    pack: int  # packs of the stream that were consumed in the window
    place: int  # pieces of the next pack that were consumed


@dataclass(frozen=True, slots=True, eq=False)
class PackedSchedule:
    """One stream's share of the packs of a job."""

    packs: JobPacks = field(repr=False)
    stream: int

    @property
    def job(self) -> Schedule:
        return self.packs.job

    @property
    def length(self) -> int | None:
        """References in one pass. The whole pass is planned to count them."""
        return self.remaining(self.begin())

    def begin(self, epoch: int = 0) -> PackCursor:
        return PackCursor(epoch, 0, self.job.begin(epoch), 0, 0)

    def next_pass(self, cursor: PackCursor, epoch: int) -> PackCursor:
        return self.begin(epoch)

    def _at(self, cursor: PackCursor) -> tuple[PackCursor, StreamPacks | None]:
        """Return the stream's packs of the window that has the next reference; None at the end."""
        while True:
            window = self.packs.window(cursor.epoch, cursor.number, cursor.window)
            if window is None:
                return cursor, None
            own = window.streams[self.stream]
            if cursor.pack < len(own.ends):
                return cursor, own
            number = cursor.number + self.packs.counted(window)
            cursor = PackCursor(cursor.epoch, number, window.after, 0, 0)

    def _first(self, cursor: PackCursor, own: StreamPacks) -> int:
        begin = own.ends[cursor.pack - 1] if cursor.pack else 0
        if cursor.place >= own.ends[cursor.pack] - begin:
            raise damaged(f"piece {cursor.place} of a pack of {own.ends[cursor.pack] - begin}")
        return begin + cursor.place

    def _step(self, cursor: PackCursor, count: int, parts: list[Refs] | None) -> PackCursor:
        while count > 0:
            cursor, own = self._at(cursor)
            if own is None:
                break
            first = self._first(cursor, own)
            last = min(first + count, own.ends[-1])
            if parts is not None:
                parts.append(Refs(own.refs.leaf[first:last], own.refs.index[first:last]))
            count -= last - first
            pack = cursor.pack
            while pack < len(own.ends) and own.ends[pack] <= last:
                pack += 1
            cursor = cursor._replace(pack=pack, place=last - (own.ends[pack - 1] if pack else 0))
        return cursor

    def take(self, cursor: PackCursor, count: int) -> tuple[Refs, PackCursor]:
        parts: list[Refs] = []
        after = self._step(cursor, count, parts)
        return Refs.concatenate(parts), after

    def advance(self, cursor: PackCursor, count: int) -> PackCursor:
        return self._step(cursor, count, None)

    def rest_of_window(self, cursor: PackCursor) -> tuple[tuple[int, int], list[int]]:
        """Return the pass and window of the next references, and how many end each of its packs."""
        cursor, own = self._at(cursor)
        spec = self.packs.spec
        window = cursor.epoch, cursor.number // (spec.packs // spec.step if spec.in_passes else 1)
        if own is None:
            return window, []
        first = self._first(cursor, own)
        return window, [end - first for end in own.ends[cursor.pack :]]

    def pack_ends(self, packs: int) -> list[int]:
        """Return the references up to the end of each of the first packs; of fewer, if the pass has fewer."""
        ends: list[int] = []
        windows = self.packs.windows()
        while len(ends) < packs and (window := next(windows, None)) is not None:
            before = ends[-1] if ends else 0
            ends += [before + end for end in window.streams[self.stream].ends]
        return ends[:packs]

    def piece(self, cursor: PackCursor) -> PackPiece:
        """Return what the pack has of the next reference."""
        cursor, own = self._at(cursor)
        if own is None:
            raise ValueError("there is no reference at the end of a pass")
        at = self._first(cursor, own)
        begin = own.ends[cursor.pack - 1] if cursor.pack else 0
        spec = self.packs.spec
        packs = (spec.step if spec.in_passes else spec.packs) // self.packs.streams
        return PackPiece(
            cursor.number * packs + cursor.pack,
            cursor.place,
            own.ends[cursor.pack] - begin,
            int(own.start[at]),
            int(own.stop[at]),
        )

    def loads(self, cursor: PackCursor, ranks: int) -> list[tuple[float, float]]:
        """Return the slowest rank's load and the mean in the step of the next pack, for each cost.

        The last packs of a pass make no whole step, and have no loads.
        """
        cursor, own = self._at(cursor)
        window = self.packs.window(cursor.epoch, cursor.number, cursor.window)
        if own is None or window is None:
            return []
        last = self.packs.last
        if last is None or last[0] is not window:
            self.packs.last = last = window, loads_of_ranks(loads_of_steps(self.packs, window), ranks)
        step = cursor.pack // (self.packs.spec.step // self.packs.streams)
        of_ranks = last[1][:, step : step + 1].reshape(ranks, -1)
        return [(float(loads.max()), float(loads.mean())) for loads in of_ranks.T]

    def check(self, cursor: PackCursor) -> None:
        """Raise StateError if the packs and pieces that a cursor counts are not in its window."""
        window = self.packs.window(cursor.epoch, cursor.number, cursor.window)
        own = None if window is None else window.streams[self.stream]
        if own is not None and cursor.pack < len(own.ends):
            self._first(cursor, own)
        elif cursor.place or cursor.pack > (0 if own is None else len(own.ends)):
            raise damaged(f"{cursor.pack} packs and {cursor.place} pieces of a window")

    def count(self, cursor: PackCursor) -> tuple[int, int] | None:
        """Count the packs and references left in this pass; None if it never ends. It plans all of them."""
        if self.job.length is None:
            return None
        packs = refs = 0
        while True:
            cursor, own = self._at(cursor)
            if own is None:
                return packs, refs
            packs += len(own.ends) - cursor.pack
            refs += own.ends[-1] - self._first(cursor, own)
            cursor = cursor._replace(pack=len(own.ends), place=0)

    def remaining(self, cursor: PackCursor) -> int | None:
        counted = self.count(cursor)
        return None if counted is None else counted[1]

    def length_at(self, cursor: PackCursor) -> int | None:
        return self.remaining(self.begin(cursor.epoch))
