"""The pure core of planned packing: lengths become packs, and packs become even global steps."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from energon_stream.errors import ConfigError
from energon_stream.rng import derive_key, uniform

if TYPE_CHECKING:
    from energon_stream.arrays import Float64Array, Int64Array

Load: TypeAlias = Literal["linear", "quadratic"] | Callable[["Int64Array"], float]
"""Work of a pack: the sum of its lengths, the sum of their squares, or a function of the lengths."""

_EVEN = 1.02
"""Largest load over the mean of ranks with which a window is dealt at once; else other levels are tried."""
_EVEN_ENOUGH = 1.04  # the same with which no smaller number of ranks is tried
_EVENEST = 1.005  # the same at which swaps end
_MOST_SWAPS = 4  # swaps for each rank that make the loads of a step more even, at most


def pack_lengths(lengths: Int64Array, capacity: int, packs: int | None = None) -> Int64Array | None:
    """Put pieces into packs: the longest first, each into the fullest pack that has room (best fit).

    Returns the pack of each piece; None if ``packs`` do not suffice.

    Example:
        >>> pack_lengths(np.array([2, 3, 4, 7]), capacity=9).tolist()
        [0, 1, 1, 0]
    """
    most = len(lengths) if packs is None else packs
    order = np.argsort(-lengths, kind="stable")
    # A pack is one integer, its room and its number: bisection of a sorted list finds the fullest.
    step = len(lengths) + 1
    rooms: list[int] = []
    opened = 0
    found: list[int] = []
    for length in lengths[order].tolist():
        at = bisect_left(rooms, length * step)
        if at < len(rooms):
            room = rooms.pop(at) - length * step
        elif opened < most:
            room = (capacity - length) * step + opened
            opened += 1
        else:
            return None
        found.append(room % step)
        if room >= step:  # a full pack is not looked at again
            insort(rooms, room)
    placed = np.empty(len(lengths), dtype=np.int64)
    placed[order] = found
    return placed


def pack_loads(lengths: Int64Array, pack: Int64Array, packs: int, load: Load) -> Float64Array:
    """Return the load of each pack, given the pack of each piece.

    Example:
        >>> pack_loads(np.array([2, 3, 4, 7]), np.array([0, 1, 1, 0]), 2, "quadratic").tolist()
        [53.0, 25.0]
    """
    if load == "linear":
        return np.bincount(pack, weights=lengths, minlength=packs).astype(np.float64)
    if load == "quadratic":
        return np.bincount(pack, weights=lengths.astype(np.float64) ** 2, minlength=packs).astype(np.float64)
    order = np.argsort(pack, kind="stable")
    ends = np.cumsum(np.bincount(pack, minlength=packs))
    groups = np.split(lengths[order], ends[:-1])
    return np.array([_load_of(group, load) for group in groups], dtype=np.float64)


def _load_of(lengths: Int64Array, load: Callable[[Int64Array], Any]) -> float:
    """Return what a function makes of a pack. Raises ConfigError if that is no number from 0 on."""
    cause: Exception | None = None
    try:
        value = load(lengths)
        if not isinstance(value, str) and 0 <= (number := float(value)) < np.inf:
            return number
        what = f"is {value!r:.80}"
    except Exception as error:
        what, cause = f"cannot be computed: {error!r:.200}", error
    raise ConfigError(
        f"the load of a pack {what}",
        where=f"{getattr(load, '__name__', load)!s:.80} of the lengths {str(lengths.tolist())[:80]}",
        hint="let the function return a finite number from 0 on",
    ) from cause


def balance(loads: Float64Array, sizes: Sequence[int]) -> Int64Array:
    """Deal packs to bins of given sizes, so that the sums of the bins' loads are even.

    The heaviest first, each to the lightest bin that has room. Then packs of the heaviest bin change places
    with others as long as that makes the largest sum smaller.

    Returns the bin of each pack.

    Example:
        >>> balance(np.array([9.0, 1.0, 5.0, 5.0]), [2, 2]).tolist()
        [0, 0, 1, 1]
    """
    bins = np.zeros(len(loads), dtype=np.int64)
    lightest = [(0.0, number) for number, size in enumerate(sizes) if size]
    room = list(sizes)
    values = loads.tolist()
    for pack in np.argsort(-loads, kind="stable").tolist():
        total, number = heapq.heappop(lightest)
        bins[pack] = number
        room[number] -= 1
        if room[number]:
            heapq.heappush(lightest, (total + values[pack], number))
    sums = np.bincount(bins, weights=loads, minlength=len(sizes))
    # With bins of unequal sizes, the larger ones have more to do anyway.
    target = _EVENEST * sums.mean()
    for _ in range(_MOST_SWAPS * len(sizes)):
        heaviest = int(np.argmax(sums))
        largest = sums[heaviest]
        if largest <= target:
            break
        mine, others = np.flatnonzero(bins == heaviest), np.flatnonzero(bins != heaviest)
        moved = loads[mine][:, None] - loads[others][None, :]
        # The larger of both sums after a swap.
        after = np.where(moved > 0, np.maximum(largest - moved, sums[bins[others]][None, :] + moved), np.inf)
        best = int(np.argmin(after)) if after.size else 0
        if not after.size or not after.flat[best] < largest:
            break
        one, other = mine[best // len(others)], others[best % len(others)]
        shift = loads[one] - loads[other]
        sums[heaviest] -= shift
        sums[bins[other]] += shift
        bins[one], bins[other] = bins[other], bins[one]
    return bins


def deal_to_streams(loads: Float64Array, streams: int, ranks: int) -> tuple[list[list[int]], float]:
    """Deal the packs of one global step to streams, so that the loads of the ranks are even.

    Rank ``r`` of R ranks has the streams ``s`` with ``s % R == r``. Where the loads of R ranks are even, so
    are the loads of any number of ranks that divides R.

    Returns the packs of each stream, of which the first may have one more in the last step of a pass; and the
    largest load of a rank over the mean.

    Example:
        >>> deal_to_streams(np.array([9.0, 1.0, 5.0, 5.0]), 2, 2)
        ([[0, 1], [2, 3]], 1.0)
    """
    whole, rest = divmod(len(loads), streams)
    sizes = [whole + (stream < rest) for stream in range(streams)]
    bins = balance(loads, [sum(sizes[rank::ranks]) for rank in range(ranks)])
    sums = np.bincount(bins, weights=loads, minlength=ranks)
    dealt: list[list[int]] = [[] for _ in range(streams)]
    for rank in range(ranks):
        mine = np.flatnonzero(bins == rank)
        own = range(rank, streams, ranks)
        shares = balance(loads[mine], [sizes[stream] for stream in own])
        for share, stream in enumerate(own):
            dealt[stream] = mine[shares == share].tolist()
    return dealt, float(sums.max() / sums.mean()) if sums.any() else 1.0


def deal_to_steps(loads: Float64Array, levels: Sequence[int], key: int) -> Int64Array:
    """Return the packs of each global step, a row each; steps and rows are in a random order.

    Packs are sorted by load and cut into levels, each of a number of steps, the lightest first. Neighbours
    in a level are dealt to its steps at random. With one level, every step has packs of all loads; with more,
    of fewer.
    """
    packs, steps = np.arange(len(loads), dtype=np.int64), sum(levels)
    size = len(loads) // steps
    # Equal loads are in a random order, too.
    ranked = np.lexsort((uniform(derive_key(key, "ties"), packs), loads))
    draws = uniform(derive_key(key, "steps"), packs)
    rows, begin = [], 0
    for level in levels:
        end = begin + level * size
        places = np.argsort(draws[begin:end].reshape(size, level), axis=1, kind="stable")
        rows.append(np.take_along_axis(ranked[begin:end].reshape(size, level), places, axis=1).T)
        begin = end
    mixed = np.concatenate(rows)
    mixed = mixed[np.argsort(uniform(derive_key(key, "order"), packs[:steps]), kind="stable")]
    order = np.argsort(uniform(derive_key(key, "rows"), packs).reshape(steps, -1), axis=1, kind="stable")
    dealt: Int64Array = np.take_along_axis(mixed, order, axis=1)
    return dealt


def _levels(steps: int) -> list[list[int]]:
    """Return the levels that are tried: one, two of all sizes, and more of equal sizes."""
    halves = sorted(range(1, steps), key=lambda light: (abs(2 * light - steps), light))
    equal = [[steps // number] * number for number in range(3, steps + 1) if steps % number == 0]
    return [[steps], *([light, steps - light] for light in halves), *equal]


def deal_packs(loads: Float64Array, step: int, streams: int, key: int) -> list[list[int]]:
    """Deal packs to global steps and streams, so that the ranks' loads are even in each step.

    Steps have packs of all loads if they can be dealt evenly so. Few packs of a stream, or a pack that is
    heavier than the mean of a rank, make that impossible; then steps have packs of fewer loads, as few as it
    takes. Where no steps are even for as many ranks as streams, they are for as many as possible. ``step``,
    the packs of a step, is a multiple of the streams; the rest of the division comes last.
    """
    steps, rest = divmod(len(loads), step)
    order = np.argsort(uniform(derive_key(key, "rest"), np.arange(len(loads))), kind="stable")
    last, whole = np.sort(order[:rest]), np.sort(order[rest:])
    best: list[list[list[int]]] = []
    least = np.inf
    for ranks in (number for number in range(streams, 0, -1) if steps and streams % number == 0):
        for levels in _levels(steps):
            tried, uneven = [], 1.0
            for row in deal_to_steps(loads[whole], levels, key):
                dealt, largest = deal_to_streams(loads[whole[row]], streams, ranks)
                tried.append([whole[row[own]].tolist() for own in dealt])
                uneven = max(uneven, largest)
                if uneven >= least:
                    break
            if uneven < least:
                best, least = tried, uneven
            if least <= _EVEN:
                break
        if least <= _EVEN_ENOUGH:
            break
    if rest:
        best.append([last[own].tolist() for own in deal_to_streams(loads[last], streams, streams)[0]])
    return [[pack for dealt in best for pack in dealt[stream]] for stream in range(streams)]
