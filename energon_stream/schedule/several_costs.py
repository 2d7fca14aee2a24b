"""Packs of samples with several costs, such as tokens and patches."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Sequence
from functools import partial, reduce
from operator import ge, sub
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from energon_stream.arrays import Float64Array, Int64Array
    from energon_stream.schedule.pack_planning import Load

_CHECKED = 16  # rows of samples after which packs are checked for room
_BLOCK = 64  # packs that are formed together of samples with several costs
_NO_LIMIT = 1 << 62
_FILLS = (0.98, 0.95, 0.9, 0.8, 0.65, 0.5)
"""Shares of the room that are tried after higher ones, if each sample took the largest of its costs."""

_EVENLY = 0.975  # share in even packs that is preferred to packs that are fuller
_PARTS = 10  # of a room, above which samples are counted
_LARGE = 0.9  # share of a room from which on a sample has a pack of its own kind
_BESIDE = tuple(number / 200 for number in range(196, 180, -1))  # shares of the room beside large samples
_FEW = 4  # samples of a pack, in the mean, below which each is put into the fullest pack
_OF_FEW = 0.98, 0.97, 0.96, 0.94
"""Shares in the fuller cost that are tried then."""
_LOOKED = 16  # packs without room for other costs at which such a sample looks, in the mean
_FULL = 0.97  # fill of packs beside large samples below which they are not used


class PackKind(NamedTuple):
    """A cost of samples."""

    name: str
    capacity: int | None  # largest sum in a pack
    load: Load  # work that it makes

    def describe(self) -> list[Any]:
        """Return plain values."""
        load = self.load if isinstance(self.load, str) else getattr(self.load, "__name__", "function")
        return [self.name, self.capacity, load]


def pack_kinds(
    costs: Int64Array, capacities: Sequence[int | None], packs: int, ways: Sequence[bool] = (False,)
) -> Int64Array | None:
    """Put samples with several costs into packs: the largest first, each where all costs stay the most even.

    Packs are made in blocks side by side, each of samples of all sizes. ``costs`` has a column for each kind;
    a kind without a capacity is made even only. ``ways`` are tried in turn: True puts samples into the
    fullest pack that has room, and fits more.

    Returns the pack of each sample; None if ``packs`` do not suffice.

    Example:
        >>> costs = np.array([[6, 0], [5, 4], [4, 4], [3, 0]])
        >>> pack_kinds(costs, (10, None), 2).tolist()
        [1, 0, 1, 0]
    """
    blocks = next(count for count in range(max(1, packs // _BLOCK), 0, -1) if packs % count == 0)
    columns = np.ascontiguousarray(costs.T)
    limits = np.array([_NO_LIMIT if room is None else room for room in capacities], dtype=np.int64)[:, None]
    alone = (columns > limits - columns.min(axis=1, initial=_NO_LIMIT, keepdims=True)).any(axis=0)
    if (columns[:, ~alone].sum(axis=1) > (packs - int(alone.sum())) * limits[:, 0].astype(np.float64)).any():
        return None  # no other fits beside these, so that they would not fit after all were tried
    totals = columns.sum(axis=1).tolist()
    rooms = [room or max(1, total) / packs for room, total in zip(capacities, totals, strict=True)]
    scale = [1 / room for room in rooms]
    order = np.argsort(-(columns * np.array(scale)[:, None]).max(axis=0), kind="stable")
    dealt = np.append(order, np.full(-len(costs) % blocks, len(costs))).reshape(-1, blocks)
    padded = np.append(columns, np.zeros((len(columns), 1), dtype=np.int64), axis=1)
    mine = _deal_to_blocks(padded, dealt, scale)
    added = padded.astype(np.float64)[:, mine].transpose(1, 0, 2).copy()  # in which sums are exact
    for fullest in ways:
        picks = _pick_packs(added, packs // blocks, capacities, scale, fullest=fullest)
        if picks is not None:
            placed = np.empty(len(costs) + 1, dtype=np.int64)
            placed[mine] = picks
            is_used = np.zeros(packs, dtype=np.bool_)
            is_used[placed[:-1]] = True
            found: Int64Array = (np.cumsum(is_used) - 1)[placed[:-1]]
            return found
    return None


def _deal_to_blocks(costs: Int64Array, dealt: Int64Array, scale: list[float]) -> Int64Array:
    """Deal the samples of each row to blocks, by the cost in which the blocks differ most so far.

    The largest sample of a row goes to the block that has least of that cost. Returns rows by block.
    """
    blocks, columns, found = range(dealt.shape[1]), costs.tolist(), list[list[int]]()
    if len(blocks) == 1:
        return dealt
    sums = [[0] * len(blocks) for _ in columns]
    for own in dealt.tolist():
        apart = [(max(each) - min(each)) * part for each, part in zip(sums, scale, strict=True)]
        kind = apart.index(max(apart))
        heavy = sorted(own, key=columns[kind].__getitem__, reverse=True)
        for block, sample in zip(sorted(blocks, key=sums[kind].__getitem__), heavy, strict=True):
            own[block] = sample
        sums = [
            [had + cost[sample] for had, sample in zip(each, own, strict=True)]
            for each, cost in zip(sums, columns, strict=True)
        ]
        found.append(own)
    return np.array(found, dtype=np.int64).reshape(dealt.shape)


def _pick_packs(
    added: Float64Array, size: int, capacities: Sequence[int | None], scale: list[float], *, fullest: bool
) -> Int64Array | None:
    """Return the pack of each sample of each row; None if one does not fit.

    ``added`` has the costs, of the shape (rows, kinds, blocks); a block has ``size`` packs.
    """
    rows, kinds, blocks = added.shape
    sums, parts = np.zeros((2, kinds, blocks, size))
    each, every = [*parts], sums.reshape(-1)
    limited = [part for part, room in zip(each, capacities, strict=True) if room is not None]
    most = np.array([np.inf if room is None else room for room in capacities])[:, None, None]
    first = np.arange(0, sums.size, size).reshape(kinds, blocks)
    picks = np.empty((rows, blocks), dtype=np.int64)
    for row, (own, pick) in enumerate(zip(added[..., None], picks, strict=True)):
        np.add(sums, own, out=parts)
        for part, of_room in zip(each, scale, strict=True):
            np.multiply(part, of_room, out=part)
        score = -reduce(np.add, each) if fullest else reduce(np.maximum, each)
        if fullest or len(limited) < kinds:  # else packs without room, above 1, are last anyway
            score[reduce(np.maximum, limited) > 1] = np.inf
        score.argmin(axis=1, out=pick)
        every[first + pick] += own[..., 0]
        if (row % _CHECKED == 0 or row == rows - 1) and (sums > most).any():
            return None
    picks += first[0]
    return picks


def _best_fit(costs: Int64Array, capacities: Sequence[int | None], packs: int) -> Int64Array | None:
    """Put samples into packs: the largest first, each into the fullest pack that has room.

    The fullest one has the least room for the cost of which there is most. Returns the pack of each sample;
    None if ``packs`` do not suffice, or too many are tried for other costs.
    """
    limits = np.array([_NO_LIMIT if room is None else room for room in capacities])
    order = np.argsort(-(costs / limits).max(axis=1), kind="stable")
    by = np.argsort(-(costs.sum(axis=0) / limits), kind="stable")
    # A pack is one integer, its room and its number, as in pack_lengths.
    first, *others = limits[by].tolist()
    rooms = [first * packs + pack for pack in range(packs)]
    left, picks, looks = [others for _ in rooms], list[int](), _LOOKED * len(costs)
    for size, *more in costs[order][:, by].tolist():
        begin = bisect_left(rooms, size * packs)
        for at in range(begin, packs):
            pack = rooms[at] % packs
            if all(map(ge, left[pack], more)):
                break
        else:
            return None
        looks -= at - begin
        if looks < 0:
            return None
        insort(rooms, rooms.pop(at) - size * packs)
        left[pack] = list(map(sub, left[pack], more))
        picks.append(pack)
    found = np.empty(len(costs), dtype=np.int64)
    found[order] = picks
    return found


def most_that_fit(costs: Int64Array, capacities: Sequence[int | None], packs: int) -> int:
    """Return a bound on how many of the first samples fit: a pack has one above a half of a room, and so on.

    Example:
        >>> most_that_fit(np.array([[4], [4], [1], [4], [4], [4]]), [10], packs=2)
        5
    """
    limited = [(cost, room) for cost, room in zip(costs.T, capacities, strict=True) if room is not None]
    counts = (
        np.searchsorted(np.cumsum(cost * (number + 1) > room), number * packs, side="right")
        for cost, room in limited
        for number in range(1, _PARTS)
    )
    return int(min(counts, default=len(costs)))


def fill_kinds(
    costs: Int64Array, capacities: Sequence[int | None], packs: int, is_last: bool, *, evenly: bool = False
) -> tuple[int, Int64Array, Int64Array]:
    """Return how many samples some packs take, which of them are used, and the pack of each of these.

    ``evenly`` prefers even packs that are filled to 0.975 to fuller packs.
    """
    used = costs[:, 0] > 0
    rooms = np.array([np.inf if room is None else room * packs for room in capacities])
    parts = costs * used[:, None] / rooms
    # At most as many samples fit as fill one cost; as the largest costs of each fill, about.
    most, least = np.cumsum(parts, axis=0).max(axis=1), np.cumsum(parts.max(axis=1))
    middle, high = (most + least) / 2, (most + 3 * least) / 4
    samples, full = np.cumsum(used), float(most[-1])
    tries = [
        (int(np.searchsorted(shares, share, side="right")), packs)
        for shares, share in (
            (most, 0.98),
            (most, 0.97),
            (middle, 0.98),
            (high, 0.98),
            *((least, s) for s in _FILLS),
        )
    ]
    evenly = evenly and not (is_last and full <= 1)
    if is_last and full <= 1 and samples[-1] > 0:
        room, every = math.ceil(full * packs), min(packs, int(samples[-1]))
        rooms_tried = [*range(room, every, max(1, packs // 64)), every]
        tries = [*((len(costs), number) for number in rooms_tried), *tries]
    fits = int(np.searchsorted(samples, packs, side="right"))  # as many samples as packs
    bound = most_that_fit(costs * used[:, None], capacities, packs) if evenly else len(costs)
    tries = [(count if room < packs else min(max(count, fits), bound), room) for count, room in tries]
    ways: list[tuple[tuple[bool, ...], int, int]]  # none of best fit
    ways = [((False, True), *each) for each in dict.fromkeys([*tries, (fits, packs)])]
    if evenly:
        less = min(max(fits, int(np.searchsorted(most, _EVENLY, side="right"))), bound)
        ways = [((False,), *tries[0]), ((False,), less, packs), ((True,), *tries[0]), *ways[1:]]
        if samples[less - 1] < _FEW * packs:
            counts = [max(fits, int(np.searchsorted(most, share, side="right"))) for share in _OF_FEW]
            ways = [*(((), count, packs) for count in dict.fromkeys(counts)), *ways]
    for way, count, room in ways:
        own = np.flatnonzero(used[:count])
        make = partial(pack_kinds, ways=way) if way else _best_fit
        pack = make(costs[own], capacities, max(1, room))
        if pack is not None:
            return count, own, pack
    raise AssertionError("samples that fit one by one fit as many packs")


def fill_beside_large(
    costs: Int64Array, capacities: Sequence[int | None], packs: int, streams: int
) -> tuple[int, Int64Array, Int64Array, Int64Array] | None:
    """Return packs as :func:`fill_kinds` does, of which equally many for each stream have one full cost.

    A sample that takes most of a room has its own pack, unlike those of small samples. As many packs of
    small ones as fill up the last row are made alike: of those with much of that cost and little of others.
    Last is the group of each sample: 0 of those, 1 of other packs of small ones, 2 of the rest. None where
    all streams have equally many large samples, or fewer than one, or small ones do not suffice.
    """
    used = costs[:, 0] > 0
    totals = costs[used].sum(axis=0)
    rooms = np.array([room or max(1, total) for room, total in zip(capacities, totals, strict=True)])
    parts = costs * used[:, None] / rooms
    kind = int((parts > _LARGE).sum(axis=0).argmax())
    is_large = parts[:, kind] > _LARGE
    score = 2 * parts[:, kind] - parts.sum(axis=1)
    needed = np.cumsum(is_large) + np.cumsum(parts * ~is_large[:, None], axis=0).max(axis=1)
    for share in _BESIDE:
        count = int(np.searchsorted(needed, share * packs, side="right"))
        small = np.flatnonzero(used[:count] & ~is_large[:count])
        large = int(is_large[:count].sum())
        more = -large % streams
        if large < streams or not more or packs - more < large:
            return None
        ranked = small[np.argsort(-score[small], kind="stable")]
        wanted = more * float(parts[:count][is_large[:count], kind].mean()) * _BESIDE[0]
        sums = np.cumsum(parts[ranked, kind])
        alike, others = np.split(ranked, [int(np.searchsorted(sums, wanted, side="right"))])
        if not len(others) or parts[others].sum(axis=0).max() > _BESIDE[0] * (packs - more - large):
            continue
        rest = np.setdiff1d(np.flatnonzero(used[:count]), alike)
        first = pack_kinds(costs[alike], capacities, more)
        last = None if first is None else pack_kinds(costs[rest], capacities, packs - more)
        if first is None or last is None:
            continue
        own, pack = np.concatenate([alike, rest]), np.concatenate([first, last + more])
        sums_of = np.stack([np.bincount(pack, each, minlength=packs) for each in parts[own].T])
        has_large = np.bincount(pack, is_large[own], minlength=packs) > 0
        group = np.where(pack < more, 0, 1 + has_large[pack])
        return (count, own, pack, group) if sums_of.max(axis=0).mean() >= _FULL else None
    return None
