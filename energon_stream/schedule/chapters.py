"""Packs of small samples: each stream has a part of what several windows read, which few requests fetch.

Windows that are read ahead together are a chapter. Its samples, in the order of storage, are cut into a part
for each stream, and each part, in the order of time, into windows. All parts have equal lengths and loads,
and streams pack their own. Neighbouring parts go to streams that share a rank, on any number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations, product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from energon_stream.arrays import Int64Array
from energon_stream.rng import derive_key, uniform
from energon_stream.schedule.pack_planning import (
    EVEN,
    Load,
    deal_own,
    in_units,
    open_packs,
    pack_lengths,
    pack_loads,
    unevenness,
)
from energon_stream.schedule.plan import bit_reversal

if TYPE_CHECKING:
    import numpy.typing as npt

CHAPTER = 1 << 15
"""Samples of the windows whose packs are dealt together: readers look as far ahead."""
FILLS = (0.99, 0.98), (0.98, 0.98), (0.98, 0.96), (0.975, 0.93)
"""Fills that are tried in the last chapter, and those of the packs after its last whole step over these."""
_CLOSE = 1000  # parts differ by this share of the larger one where they are cut
_FITS = 50  # weight of what parts differ more in length, in which they must fit
_REACHES = (4, 24), (2, 24), (1, 24)
"""Shares of the pieces around a cut that may change sides, with places of these to try; the nearest first."""
_BESIDE = 12  # places on each side of the best that are tried then
_TRIED = 32  # pieces that may be exchanged for a run where no cut makes even parts
_TIGHT = 1.003, 1.006  # rooms over the mean that are tried first where a load is the length
_ROUNDS = 6  # of swaps between the steps of a stream
_TURNS = 3  # in which two steps are dealt anew
_APART = 7  # steps between these, at most
_SPLIT = 4  # packs of a step that are dealt anew at once
_GOALS = np.linspace(0.6, 1.4, 33)  # loads of a step over the mean that are tried then


def order_by_place(
    leaf: npt.NDArray[np.integer[Any]], index: Int64Array, again: Int64Array, lengths: Int64Array, key: int
) -> Int64Array:
    """Order pieces so that each part of the result has its share of each leaf, and few runs of neighbours.

    Of a leaf, that is the order of storage, first of what comes for the first time: ``again`` tells how often
    a sample came before. Runs of several leaves are merged by the share of their leaf that
    comes before them. Where a run is a large share, its place is drawn.

    Example:
        >>> leaf, index = np.array([0, 1, 0, 1]), np.array([7, 8, 1, 2])
        >>> order_by_place(leaf, index, np.zeros(4), np.ones(4, dtype=np.int64), key=1).tolist()
        [2, 3, 0, 1]
    """
    order = np.lexsort((index, again, leaf))
    leaf, index, sizes = leaf[order], index[order], lengths[order]
    begins = np.append(True, (np.diff(leaf) != 0) | (np.diff(index) > 1) | (np.diff(index) < 0))
    first, run = np.flatnonzero(begins), np.cumsum(begins) - 1
    run_sizes, run_leaf = np.add.reduceat(sizes, first), leaf[first]
    leaves = np.bincount(run_leaf, weights=run_sizes)[run_leaf]
    upto = np.cumsum(run_sizes) - run_sizes
    within = upto - upto[np.searchsorted(run_leaf, run_leaf)]
    at = (within + uniform(derive_key(key, "places"), np.arange(len(first))) * run_sizes) / leaves
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.lexsort((run_leaf, at))] = np.arange(len(first))
    found: Int64Array = order[np.argsort(rank[run], kind="stable")]
    return found


def share_evenly(parts: Int64Array, weights: Sequence[int]) -> Int64Array:
    """Cut pieces into a part for each weight, of even sums of all columns; return the part of each piece.

    Pieces are halved, and the halves again. The first half has what comes before a place, and a run behind
    it, so that the sums fit.
    """
    owner = np.empty(len(parts), dtype=np.int64)
    todo = [(np.arange(len(parts)), 0, len(weights))]
    while todo:
        mine, first, last = todo.pop()
        if last - first == 1:
            owner[mine] = first
            continue
        middle = (first + last) // 2
        is_left = _first_part(parts[mine], sum(weights[first:middle]), sum(weights[middle:last]))
        todo += [(mine[is_left], first, middle), (mine[~is_left], middle, last)]
    return owner


def _first_part(parts: Int64Array, left: int, right: int) -> npt.NDArray[np.bool_]:
    """Choose the first of two parts: all pieces before a place, and a run behind it."""
    upto, count = np.concatenate([np.zeros((1, 2), dtype=np.int64), np.cumsum(parts, axis=0)]), len(parts)
    goal = np.array([int(total) * left // (left + right) for total in upto[-1]])
    close = np.maximum(1, np.maximum(goal, upto[-1] - goal) // _CLOSE)
    middle = int(np.searchsorted(upto[:, 0], goal[0]))
    best = (math.inf, 0, 0, 0)

    def look(begins: Int64Array, untils: Int64Array) -> tuple[float, int, int, int]:
        """Return the best of these places, and how far it is off: the narrowest of even ones."""
        begin, until = (each.ravel() for each in np.meshgrid(begins, untils, indexing="ij"))
        begin, until = begin[begin <= until], until[begin <= until]
        wanted = goal[0] - upto[begin, 0] + upto[until, 0]
        end = np.minimum(np.searchsorted(upto[:, 0], wanted), count)
        before = np.maximum(end - 1, 0)
        end = np.maximum(np.where(wanted - upto[before, 0] < upto[end, 0] - wanted, before, end), until)
        off = np.abs(upto[begin] + upto[end] - upto[until] - goal) / close
        off = np.maximum(np.where(off[:, 0] > 1, off[:, 0] * _FITS, 0), off[:, 1])
        at = int(np.lexsort((end - begin, np.maximum(off, 1)))[0])
        return float(off[at]), int(begin[at]), int(until[at]), int(end[at])

    for reach, places in _REACHES:
        low, high = max(0, middle - count // reach), min(count, middle + count // reach)
        step = max(1, (high - low) // places)
        best = min(best, look(*[np.arange(low, high + 1, step)] * 2))
        while best[0] > 1 and step > 1:
            beside, step = np.arange(-step, step + 1, finer := max(1, step // _BESIDE)), finer
            best = min(best, look(*(np.unique(np.clip(at + beside, 0, count)) for at in best[1:3])))
        if best[0] <= 1:
            break
    is_first = np.zeros(count, dtype=np.bool_)
    is_first[: best[1]] = is_first[best[2] : best[3]] = True
    if best[0] > 1 and 0 < is_first.sum() < count:
        _exchange(parts, is_first, int(parts[is_first, 1].sum() - goal[1]))
    return is_first


def _exchange(parts: Int64Array, is_first: npt.NDArray[np.bool_], gap: int) -> None:
    """Exchange a piece of the part that has ``gap`` too much load for a run of as much length."""
    gives = is_first if gap > 0 else ~is_first
    pieces, others, gap = np.flatnonzero(gives), np.flatnonzero(~gives), abs(gap)
    total, upto = parts.sum(axis=0), np.concatenate([[[0, 0]], np.cumsum(parts[others], axis=0)])
    more = parts[pieces, 1] - parts[pieces, 0] * (total[1] / max(1, int(total[0])))
    pieces = pieces[np.argsort(np.abs(more - gap), kind="stable")[:_TRIED]]
    ends = np.searchsorted(upto[:, 0], upto[:-1, 0] + parts[pieces, :1])
    ends = np.minimum(ends, len(others))
    moved = parts[pieces][:, None] - (upto[ends] - upto[:-1])
    off = np.abs(moved[..., 1] - gap) + np.abs(moved[..., 0]) * _FITS
    piece, begin = divmod(int(off.argmin()), len(others))
    if off[piece, begin] < gap:
        run = others[begin : ends[piece, begin]]
        is_first[[*run.tolist(), int(pieces[piece])]] ^= True


def split_anew(loads: Int64Array, steps: Int64Array, rest: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Let each stream deal the packs of two steps anew, until a step has about the same load in all streams.

    Of the ways to deal some packs, a stream takes that which comes nearest to a goal of all. ``rest``
    are packs after the last step, whose loads are free. ``steps`` has packs in the shape (streams, steps,
    packs), ``rest`` of (streams, packs), and so have the results.
    """
    if steps.shape[2] == 1:  # packs would only change places
        return steps, rest
    bins, count = [*steps.transpose(1, 0, 2), rest], steps.shape[1]
    pairs = combinations(range(count + (rest.size > 0)), 2)
    near = [(one, other) for one, other in pairs if other - one <= _APART]
    for turn, (one, other) in product(range(_TURNS), near):
        packs = [np.roll(bins[number], turn * _SPLIT, axis=1) for number in (one, other)]
        sums = np.stack([loads[own].sum(axis=1) for own in packs], axis=1)
        even = 1 if other == count else 2  # of the two that have to be
        worst = unevenness(sums[:, :even]).max()
        if worst <= EVEN:
            continue
        some = [own[:, :_SPLIT] for own in packs]
        both, size = np.concatenate(some, axis=1), some[0].shape[1]
        ways = np.array(list(combinations(range(both.shape[1]), size)))
        first = loads[both][:, ways].sum(axis=2) + (sums[:, 0] - loads[some[0]].sum(axis=1))[:, None]
        total = sums.sum(axis=1)
        goals = _GOALS[:, None] * sums[:, 0].mean() + (total - total.mean()) / 2 * (even - 1)
        best = np.abs(first - goals[:, :, None]).argmin(axis=2)
        after = np.take_along_axis(first, best.T, axis=1).T
        found = unevenness(np.stack([after, total - after], axis=2)[..., :even]).max(axis=1)
        if found.min() < worst:
            way = ways[best[found.argmin()]]
            is_left = (way[:, :, None] != np.arange(both.shape[1])).all(axis=1)
            packs[0][:, :size] = np.take_along_axis(both, way, axis=1)
            packs[1][:, :_SPLIT] = both[is_left].reshape(some[1].shape)
            bins[one], bins[other] = packs
    return np.stack(bins[:-1], axis=1), bins[-1]


class ChapterSteps(NamedTuple):
    """The size of a chapter."""

    steps: int
    window: int  # steps in whose packs samples are mixed
    packs: int  # of a step
    streams: int
    capacity: int
    room: int  # of a pack that is used, in the mean
    rest: float  # the same of a pack after the last whole step, by that room


def pack_chapter(
    lengths: Int64Array, place: Int64Array, made: ChapterSteps, load: Load, key: int, is_last: bool
) -> tuple[Int64Array, list[list[int]]] | None:
    """Pack the pieces of a chapter, which come in the order of time; ``place`` is their order of storage.

    The last chapter of a pass has as many steps as its pieces fill, and the packs of the rest. Returns the
    pack of each piece, and the packs of each stream; None if pieces do not fit.
    """
    steps, left, streams, each = made.steps, 0, made.streams, made.packs // made.streams
    if is_last:
        steps, left = divmod(int(lengths.sum()), made.packs * made.room)
    rest = math.ceil(left / (made.rest * made.room))
    if steps and rest >= made.packs:  # all steps are less full
        steps, left, rest = steps + 1, 0, 0
    if not steps or steps > made.steps:
        return None
    count = max(1, round(steps / made.window))  # few packs could not make even steps
    windows = [each * (steps * (at + 1) // count - steps * at // count) for at in range(count)]
    # Pieces have no load, but one that grows with the squares is near what any load of packs is.
    parts = in_units(np.stack([lengths.astype(np.float64), lengths.astype(np.float64) ** 2], axis=1))
    rests = [rest // streams + (stream < rest % streams) for stream in range(streams)]
    blocks = bit_reversal(streams)
    sizes = [[*windows, own] if own else windows for own in rests]
    whole = [size * made.room for size in windows]
    weights = [[*whole, left * own // rest] if own else whole for own in rests]
    of_blocks = [sum(weights[stream]) for stream in np.argsort(blocks).tolist()]
    owner = np.empty(len(lengths), dtype=np.int64)
    owner[place] = share_evenly(parts[place], of_blocks)
    pack = np.empty(len(lengths), dtype=np.int64)
    first, firsts, tight = 0, list[list[int]](), _TIGHT if load == "linear" else ()
    for stream, counts in enumerate(sizes):
        mine = np.flatnonzero(owner == blocks[stream])
        window = share_evenly(parts[mine], weights[stream])
        firsts.append([])
        for number, size in enumerate(counts):
            some = mine[window == number]
            rooms = [min(made.capacity, int(share * lengths[some].sum() / size)) for share in tight]
            tries = (pack_lengths(lengths[some], room, size) for room in (*rooms, made.capacity))
            found = next((own for own in tries if own is not None), None)
            if found is None or len(some) < size:
                return None
            pack[some] = open_packs(found, size) + first
            firsts[-1].append(first)
            first += size
    units = in_units(pack_loads(lengths, pack, first, load)[:, None])
    dealt: list[list[int]] = [[] for _ in range(streams)]
    free = np.array([starts[-1] for starts in firsts])[:, None] + np.arange(min(rests))
    for number, size in enumerate(windows):
        every = np.array([starts[number] for starts in firsts])[:, None] + np.arange(size)
        steps_of, free = split_anew(units[:, 0], deal_own(units, every, size // each, _ROUNDS), free)
        order = np.argsort(uniform(derive_key(key, "order", number), np.arange(size // each)), kind="stable")
        for stream, some in enumerate(steps_of[:, order].reshape(streams, size).tolist()):
            dealt[stream] += some
    for own, some, starts, count in zip(dealt, free.tolist(), firsts, rests, strict=True):
        own += [*some, *range(starts[-1] + len(some), starts[-1] + count)]
    return pack, dealt
