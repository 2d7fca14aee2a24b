"""Planned packing: the windows of packs that the whole job's plan has.

Windows follow each other along one schedule of the whole job. A window is a function of the place where it
begins, so every process plans the same ones, and takes the packs of its own streams.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from energon_stream.errors import ConfigError
from energon_stream.rng import derive_key
from energon_stream.schedule.balance import loads_of_steps
from energon_stream.schedule.chapters import FILLS, ChapterSteps, order_by_place, pack_chapter
from energon_stream.schedule.combine import left_in_pass, pass_length
from energon_stream.schedule.copies import part_copies, sample_numbers, times_before
from energon_stream.schedule.exchange import exchange_samples
from energon_stream.schedule.neighbours import pack_neighbours
from energon_stream.schedule.pack_planning import (
    EVEN,
    PieceColumns,
    cost_of,
    cost_of_streams,
    cut_pieces,
    deal_packs,
    in_units,
    pack_lengths,
    spread_pieces,
)
from energon_stream.schedule.pack_spec import CHOICE, SMALL, PackSpec
from energon_stream.schedule.schedule import Cursor, Refs, Schedule
from energon_stream.schedule.several_costs import fill_beside_large, fill_kinds

if TYPE_CHECKING:
    import numpy.typing as npt

    from energon_stream.arrays import Float64Array, Int64Array

_KEPT = 1 << 20  # samples in the windows that a process keeps, for streams that look ahead differently far
_LEAST_KEPT = 4  # windows that are kept, whatever they have
_DENSE = (0.99, 0.975)  # shares of what fits that are tried for packs of neighbours
_LOOSE = 0.98  # fill of other packs below which packs of neighbours are tried with it
_NEARLY = 0.02  # of the time of steps that packs of neighbours may take more
_WORST = 0.07  # weight of what their worst step takes more
_LEAST_STEPS = 4  # of a window that ends with a pass: fewer are less even
_TAKEN = 4096  # references that are taken from the job's schedule at a time
_FILLS = (0.998, 0.995, 0.99, 0.985, 0.98, 0.97, 0.95, 0.9, 0.8, 0.65, 0.5)
"""Shares of the room in a window's packs that are tried, the fullest first."""


class StreamPacks(NamedTuple):
    """The packs of one stream in a window. Pieces are in the order in which they are consumed."""

    refs: Refs
    start: Int64Array
    stop: Int64Array
    ends: list[int]  # pieces up to the end of each pack


@dataclass(frozen=True, slots=True)
class PlannedWindow:
    """The packs of all streams in a window."""

    after: Cursor  # place in the job's schedule behind the window
    count: int  # references of the job in it, with those that are left out
    streams: tuple[StreamPacks, ...]


class JobPacks:
    """Plans the windows of a whole job by the length of each sample of each leaf, and keeps the last ones."""

    def __init__(
        self,
        job: Schedule,
        spec: PackSpec,
        costs: tuple[npt.NDArray[np.integer[Any]], ...],
        streams: int,
        key: int,
        more: tuple[tuple[npt.NDArray[np.integer[Any]], ...], ...] = (),
    ) -> None:
        self.job: Schedule = job
        self.spec: PackSpec = spec
        self.streams: int = streams
        self._costs, self._more, self._key = costs, more, key
        self._windows: OrderedDict[tuple[int, Cursor], PlannedWindow] = OrderedDict()
        self._kept = 0
        # References from a place on, their costs, and the place after them, while a window is planned.
        self._taken: dict[Cursor, tuple[Refs, Int64Array, Cursor]] = {}
        self.last: tuple[PlannedWindow, Float64Array] | None = None  # and its loads of ranks by step and cost

    def window(self, epoch: int, number: int, start: Cursor) -> PlannedWindow | None:
        """Return the window that begins at a place; None at the end of the pass."""
        if self.job.remaining(start) == 0:
            return None
        key = number, start
        found = self._windows.get(key)
        if found is None:
            self._windows[key] = found = self._plan(epoch, number, start)
            self._taken.clear()
            self._kept += found.count
            while self._kept > _KEPT and len(self._windows) > _LEAST_KEPT:
                self._kept -= self._windows.popitem(last=False)[1].count
        else:
            self._windows.move_to_end(key)
        return found

    def windows(self, epoch: int = 0) -> Iterator[PlannedWindow]:
        """Yield the windows of a pass, each planned when it is wanted."""
        number, at = 0, self.job.begin(epoch)
        while (window := self.window(epoch, number, at)) is not None:
            yield window
            number, at = number + self.counted(window), window.after

    def counted(self, window: PlannedWindow) -> int:
        """Return by how much cursors behind a window count more."""
        packs = len(window.streams[0].ends)
        return -(-packs * self.streams // self.spec.step) if self.spec.in_passes else 1

    def lengths(self, refs: Refs) -> Int64Array:
        """Look up the costs of some references, a column each; 0 in the first where a sample is left out."""
        lengths = np.zeros((len(refs), 1 + len(self._more)), dtype=np.int64)
        for leaf in range(len(self._costs)):
            mine = refs.leaf == leaf
            for number, costs in enumerate((self._costs, *self._more)):
                lengths[mine, number] = costs[leaf][refs.index[mine]]
        if self.spec.overlong == "drop":
            for number, kind in enumerate(self.spec.kinds):
                if kind.capacity is not None:
                    lengths[lengths[:, number] > kind.capacity, 0] = 0
        return lengths

    def _plan(self, epoch: int, number: int, start: Cursor) -> PlannedWindow:
        key = derive_key(self._key, "window", epoch, number)
        fewer = self if not self.spec.in_passes else self._within_pass(start)
        if self.spec.more or not self.spec.chapter:
            return fewer._plan_window(start, key)
        return fewer._plan_windows(start, key)

    def _within_pass(self, start: Cursor) -> JobPacks:
        """Return the packs with a window that ends with a pass, if that ends within the next one.

        A window has whole steps, at least some: what a pass has left beyond these shares one with the next.
        """
        left = left_in_pass(self.job, start)
        _, refs, costs, _ = self._take(start, self.spec.packs)
        while 0 < left < len(refs):
            rooms = [
                (n, kind.capacity) for n, kind in enumerate(self.spec.kinds) if kind.capacity is not None
            ]
            steps = min(int(costs[:left, n].sum()) // (self.spec.step * room) for n, room in rooms)
            if steps >= self.spec.packs // self.spec.step:
                break
            if steps >= _LEAST_STEPS:
                fewer = copy(self)
                fewer.spec = self.spec.of_steps(steps)
                return fewer
            left += pass_length(self.job)
        return self

    def _plan_windows(self, start: Cursor, key: int) -> PlannedWindow:
        """Plan a chapter."""
        places, refs, costs, is_last = self._take(start, self.spec.packs)
        room = self.spec.capacity
        near, least = self._plan_chapter(places, refs, costs[:, 0], is_last, room, key)
        if near is not None and not least[0]:
            return near
        windows = [self._plan_window(start, derive_key(key, 0))]
        while len(windows) < self.spec.chapter and self.job.remaining(windows[-1].after) != 0:
            windows.append(self._plan_window(windows[-1].after, derive_key(key, len(windows))))
        found = _joined(windows)
        if near is None:
            filled = sum(int((own.stop - own.start).sum()) for own in found.streams)
            room = filled // max(1, sum(len(own.ends) for own in found.streams))
            if room < _LOOSE * self.spec.capacity:
                near, least = self._plan_chapter(places, refs, costs[:, 0], is_last, room, key)
        cost = self._cost(found)
        time, worst = np.subtract(least[1:], cost[1:])
        if near is None or (least[0] and not cost[0]) or (worst > 0 and time + _WORST * worst > _NEARLY):
            return found
        return near

    def _plan_chapter(
        self, places: list[Cursor], refs: Refs, lengths: Int64Array, is_last: bool, room: int, key: int
    ) -> tuple[PlannedWindow | None, tuple[bool, float, float]]:
        """Return packs of neighbours that have about ``room``, as of :func:`pack_chapter`, and their cost."""
        spec, sums = self.spec, np.cumsum(lengths)
        for share, rest in FILLS if is_last else FILLS[::3]:
            fill = int(share * room)
            steps = ChapterSteps(
                spec.packs // spec.step, spec.window, spec.step, self.streams, spec.capacity, fill, rest
            )
            count = int(np.searchsorted(sums, spec.packs * fill, side="right"))
            pieces = cut_pieces(lengths[:count], spec.capacity)
            sizes = pieces.stop - pieces.start
            if not len(sizes):
                break
            again = np.zeros(count, dtype=np.int64)
            if spec.in_passes:
                again = times_before(refs.leaf[:count], refs.index[:count])
            of = refs.leaf[pieces.ref], refs.index[pieces.ref], again[pieces.ref]
            place = order_by_place(*of, sizes, key)
            made = pack_chapter(sizes, place, steps, spec.load, key, is_last and count == len(lengths))
            if made is not None:
                found = self._made(places, refs, count, pieces, *made)
                return found, self._cost(found)
        return None, (True, np.inf, np.inf)

    def _cost(self, window: PlannedWindow) -> tuple[bool, float, float]:
        """Return the cost of a window's whole steps, as of :func:`cost_of`."""
        loads = loads_of_steps(self, window)
        units = in_units(loads.reshape(-1, loads.shape[-1])).reshape(loads.shape).sum(axis=2)
        return cost_of(units.transpose(1, 0, 2)) if loads.size else (False, 1.0, 1.0)

    def _take(self, start: Cursor, packs: int) -> tuple[list[Cursor], Refs, Int64Array, bool]:
        """Return references for more than some packs with their costs, and whether they end the pass.

        The first values are places in the job's schedule, each ``_TAKEN`` references further.
        """
        taken, total, after, places = list[Refs](), 0, start, list[Cursor]()
        lengths: list[Int64Array] = []
        is_last = False
        while total <= packs * self.spec.capacity and not is_last:
            places.append(after)
            if after not in self._taken:
                refs, then = self.job.take(after, _TAKEN)
                self._taken[after] = refs, self.lengths(refs), then
            refs, own, after = self._taken[after]
            taken.append(refs)
            lengths.append(own)
            total += int(lengths[-1][:, 0].sum())
            is_last = len(refs) < _TAKEN or self.job.remaining(after) == 0
        return places, Refs.concatenate(taken), np.concatenate(lengths), is_last

    def _plan_window(self, start: Cursor, key: int) -> PlannedWindow:
        capacity, packs = self.spec.capacity, self.spec.step * self.spec.window
        places, refs, every, is_last = self._take(start, packs)
        near = self._of_neighbours(refs, every[:, 0], packs, capacity, key)
        if near is not None and near[1][2] <= EVEN:
            return self._made(places, refs, *near[0])
        count, pieces, pack = self._fill(every, packs, is_last)
        room = int((pieces.stop - pieces.start).sum()) / max(1, int(pack.max(initial=-1)) + 1)
        if near is None and room < _LOOSE * capacity:
            near = self._of_neighbours(refs, every[:, 0], packs, room, key)
            if near is not None and near[1][2] <= EVEN:
                return self._made(places, refs, *near[0])
        is_last = is_last and count == len(refs)
        if len(pack) and not is_last:
            pieces, pack = spread_pieces(pieces, pack, packs, self.spec.overlong == "split")
        loads, dealt = self._deal(every, pieces, pack, key)
        if self.spec.more and not is_last and (least := cost_of_streams(loads, dealt, self.spec.step))[0]:
            rooms = [kind.capacity for kind in self.spec.kinds]
            other = fill_beside_large(every, rooms, packs, self.streams)
            if other is not None:
                own = PieceColumns(other[1], np.zeros_like(other[1]), every[other[1], 0])
                made = self._exchanged(every[own.ref], *other[2:]) if self.spec.chapter else other[2]
                even = self._deal(every, own, made, key)
                if (cost := cost_of_streams(*even, self.spec.step)) < least:
                    (count, pieces, pack), dealt, least = (other[0], own, made), even[1], cost
            is_beside = other is not None and pieces.ref is other[1]  # then all but large samples are even
            if least[0] and self.spec.chapter and not is_beside:
                made = self._exchanged(every[pieces.ref], pack, np.zeros_like(pack))
                even = self._deal(every, pieces, made, key)
                if cost_of_streams(*even, self.spec.step) < least:
                    pack, dealt = made, even[1]
        if near is not None and near[1][1] <= cost_of_streams(loads, dealt, self.spec.step)[1] + _NEARLY:
            return self._made(places, refs, *near[0])
        return self._made(places, refs, count, pieces, pack, dealt)

    def _exchanged(self, costs: Int64Array, pack: Int64Array, group: Int64Array) -> Int64Array:
        """Return the pack of each sample after exchanges in each group, as of :func:`exchange_samples`."""
        found, rooms = pack.copy(), [kind.capacity for kind in self.spec.kinds]
        loads = self.spec.loads(costs, np.arange(len(costs)), len(costs))
        for number in np.unique(group):
            mine = np.flatnonzero(group == number)
            packs, own = np.unique(pack[mine], return_inverse=True)
            step = next(size for size in (self.spec.step, self.streams, len(packs)) if len(packs) % size == 0)
            found[mine] = packs[exchange_samples(costs[mine], loads[mine], rooms, own, step)]
        return found

    def _deal(
        self, every: Int64Array, pieces: PieceColumns, pack: Int64Array, key: int
    ) -> tuple[Float64Array, list[list[int]]]:
        """Return the loads of packs, and the packs of each stream."""
        costs = np.column_stack([pieces.stop - pieces.start, every[pieces.ref, 1:]])
        loads = self.spec.loads(costs, pack, int(pack.max(initial=-1)) + 1)
        drawn = not self.spec.chapter
        return loads, deal_packs(loads, self.spec.step, self.streams, key, drawn=drawn)

    def _made(
        self,
        places: list[Cursor],
        refs: Refs,
        count: int,
        pieces: PieceColumns,
        pack: Int64Array,
        dealt: list[list[int]],
    ) -> PlannedWindow:
        if self.spec.in_passes:
            own = Refs(refs.leaf[:count], refs.index[:count])
            pack = self._parted(own, pieces, pack)
        near = min(count // _TAKEN, len(places) - 1)
        after = self.job.advance(places[near], count - near * _TAKEN)
        return PlannedWindow(after, count, self._streams(refs, pieces, pack, dealt))

    def _parted(self, refs: Refs, pieces: PieceColumns, pack: Int64Array) -> Int64Array:
        """Return the pack of each piece after exchanges, so that none has a sample twice, if that can be."""
        sample = sample_numbers(refs.leaf, refs.index)[pieces.ref]
        costs = np.column_stack([pieces.stop - pieces.start, self.lengths(refs)[pieces.ref, 1:]])
        return part_copies(sample, costs, [kind.capacity for kind in self.spec.kinds], pack)

    def _of_neighbours(
        self, refs: Refs, lengths: Int64Array, packs: int, room: float, key: int
    ) -> tuple[tuple[int, PieceColumns, Int64Array, list[list[int]]], tuple[bool, float, float]] | None:
        """Return a window of whole steps whose packs have neighbours, as of :func:`pack_neighbours`."""
        spec, sums = self.spec, np.cumsum(lengths)
        packs = min(packs, int(sums[-1]) // (spec.step * spec.capacity) * spec.step)
        has_choice = not (spec.more or spec.chapter) and room and packs >= CHOICE * self.streams
        for share in _DENSE if has_choice else ():
            count = int(np.searchsorted(sums, share * packs * room, side="right"))
            pieces = cut_pieces(lengths[:count], spec.capacity)
            if len(pieces.ref) < SMALL * packs:
                break
            order = np.lexsort((pieces.start, refs.index[pieces.ref], refs.leaf[pieces.ref]))
            pieces = PieceColumns(*(column[order] for column in pieces))
            sizes = pieces.stop - pieces.start
            made = pack_neighbours(sizes, spec.capacity, packs, spec.step, self.streams, spec.load, key)
            if made is not None:
                loads = self.spec.loads(sizes[:, None], made[0], packs)
                return (count, pieces, *made), cost_of_streams(loads, made[1], spec.step)
        return None

    def _fill(self, costs: Int64Array, packs: int, is_last: bool) -> tuple[int, PieceColumns, Int64Array]:
        """Return how many references a window has, their pieces, and the pack of each piece."""
        if self.spec.more:
            rooms, evenly = [kind.capacity for kind in self.spec.kinds], bool(self.spec.chapter)
            count, own, filled = fill_kinds(costs, rooms, packs, is_last, evenly=evenly)
            return count, PieceColumns(own, np.zeros_like(own), costs[own, 0]), filled
        capacity, lengths = self.spec.capacity, costs[:, 0]
        sums = np.cumsum(lengths)
        counts = [int(np.searchsorted(sums, share * packs * capacity, side="right")) for share in _FILLS]
        if is_last and sums[-1] <= packs * capacity:
            counts = [len(lengths), *counts]
        # As many pieces as packs always fit.
        needed = np.cumsum(-(-lengths // capacity))
        counts.append(int(np.searchsorted(needed, packs, side="right")))
        least = max(1, counts[-1])
        for count in counts:
            pieces = cut_pieces(lengths[: max(count, least)], capacity)
            pack = pack_lengths(pieces.stop - pieces.start, capacity, packs)
            if pack is not None:
                return max(count, least), pieces, pack
        raise ConfigError(
            f"a sample of {int(lengths[0]):,} is longer than the {packs} packs of a window",
            hint="raise the capacity, or the window, or leave it out with overlong='drop'",
        )

    def _streams(
        self, refs: Refs, pieces: PieceColumns, pack: Int64Array, dealt: list[list[int]]
    ) -> tuple[StreamPacks, ...]:
        order, sizes = np.argsort(pack, kind="stable"), np.bincount(pack)
        first = np.cumsum(sizes) - sizes
        found = []
        for own in dealt:
            ends = np.cumsum(sizes[own])
            pieces_of = np.repeat(first[own] - ends + sizes[own], sizes[own]) + np.arange(ends[-1:].sum())
            mine = order[pieces_of]
            ref = pieces.ref[mine]
            refs_of = Refs(refs.leaf[ref], refs.index[ref])
            found.append(StreamPacks(refs_of, pieces.start[mine], pieces.stop[mine], ends.tolist()))
        return tuple(found)


def _joined(windows: list[PlannedWindow]) -> PlannedWindow:
    """Return windows that follow each other as one."""
    streams = []
    for every in zip(*(window.streams for window in windows), strict=True):
        before = np.cumsum([0, *(len(own.start) for own in every)]).tolist()
        ends = [first + end for first, own in zip(before, every, strict=False) for end in own.ends]
        refs = Refs.concatenate([own.refs for own in every])
        start, stop = (np.concatenate(bounds) for bounds in zip(*(own[1:3] for own in every), strict=True))
        streams.append(StreamPacks(refs, start, stop, ends))
    return PlannedWindow(windows[-1].after, sum(window.count for window in windows), tuple(streams))
