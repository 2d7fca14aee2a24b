"""Packs that exchange samples until all of a step have the same loads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from energon_stream.schedule.pack_planning import in_units

if TYPE_CHECKING:
    from energon_stream.arrays import Float64Array, Int64Array

_ABOVE = 1.03  # level of a step over its heaviest sample, beside which a pack has others
_TURNS = 6  # rounds of exchanges for each sample of a pack, in the mean
_EVEN = 0.01  # of the mean of packs, by which all may differ at the end
_CHECKED = 8  # rounds after which they are looked at
_TRIED = 8  # samples of a pack that may change places in a round
_PLACES = (0.754877, 0.569840)  # parts of all places from one round to the next, which never repeat


def level_steps(loads: Float64Array, steps: int, step: int) -> Float64Array:
    """Return the loads that each pack of a step should have, in the shape (steps, kinds).

    A step takes as long as its heaviest sample, so that its other packs may have as much. The heaviest
    samples come together in steps that have more, and the other steps share what is left.

    Example:
        >>> loads = np.array([[9.0], *[[1.0]] * 30])
        >>> level_steps(loads, steps=4, step=2).round(2).tolist()
        [[9.27], [3.41], [3.41], [3.41]]
    """
    left, found = loads.sum(axis=0) / step, np.empty((steps, loads.shape[1]))
    for number in range(steps):
        found[number:] = mean = left / (steps - number)
        top = loads.max(axis=0, initial=0)
        is_heavy = top > mean * _ABOVE
        if not is_heavy.any():
            break
        found[number] = np.where(is_heavy, np.maximum(mean, np.minimum(top * _ABOVE, left / 2)), mean)
        left -= found[number]
        parts = (loads[:, is_heavy] / mean[is_heavy]).max(axis=1)
        loads = loads[np.argsort(-parts, kind="stable")[step:]]
    return found


def exchange_samples(
    costs: Int64Array, loads: Float64Array, capacities: Sequence[int | None], pack: Int64Array, step: int
) -> Int64Array:
    """Let packs exchange samples until each has about the loads of its step, as of :func:`level_steps`.

    Packs go in pairs, one that has too much and one that has too little, and swap the samples, or give the
    one, that leave the smallest squares. ``costs`` and ``loads`` have a column for each kind; ``step``
    divides the packs. Returns the pack of each sample.
    """
    count, packs, half = len(pack), int(pack.max()) + 1, (int(pack.max()) + 1) // 2
    order, sizes = np.argsort(pack, kind="stable"), np.bincount(pack)
    places = np.arange(count) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    # Samples by place and pack. Places that are left have one more sample, of nothing.
    held = np.full((int(sizes.max()) + 1, packs), count)
    held[places, pack[order]] = order
    # Integers, which all machines add up alike; the mean of packs is that of in_units.
    units = np.rint(in_units(loads) * (packs / count))
    units = np.append(units, np.zeros_like(units[:1]), axis=0).T.copy()
    costs = np.append(costs, np.zeros_like(costs[:1]), axis=0).T.copy()
    levels = level_steps(units[:, :-1].T, packs // step, step)
    sums = np.stack([each[held].sum(axis=0) for each in units])
    heaviest = np.stack([each[held].max(axis=0) for each in units]).T
    fits = levels[:, None] * _ABOVE >= heaviest
    ranked = np.lexsort((-sums.sum(axis=0), fits.all(axis=2).sum(axis=0)))
    sums[:, ranked] += np.repeat(levels.max(axis=0) - levels, step, axis=0).T
    rooms = [
        (each, each[held].sum(axis=0), room, int(number == 0))  # a pack keeps some of the first cost
        for number, (each, room) in enumerate(zip(costs, capacities, strict=True))
        if room is not None
    ]
    tried, close = np.arange(min(_TRIED, len(held))), _EVEN * sums.mean(axis=1)
    for turn in range(_TURNS * count // packs):
        if turn % _CHECKED == 0 and (np.ptp(sums, axis=1) <= close).all():
            break
        kind, around = turn % (len(units) + 1), turn // (len(units) + 1)
        by = np.argsort(sums[kind] if kind < len(units) else sums.sum(axis=0), kind="stable")
        heavy, light = by[::-1][:half], by[(np.arange(half) - around) % half]
        mine, yours = ((tried + int(turn * part * len(held))) % len(held) for part in _PLACES)
        given, taken = held[mine[:, None], heavy], held[yours[:, None], light]
        before, squares = np.zeros(half), np.zeros((len(tried), len(tried), half))
        for load, total in zip(units, sums, strict=True):
            gap = total[heavy] - total[light]
            after = (gap - 2 * load[given])[:, None] + 2 * load[taken]
            squares += np.square(after, out=after)
            before += gap**2
        for cost, total, room, least in rooms:
            more, ours, theirs = cost[taken] - cost[given][:, None], total[heavy], total[light]
            most = np.minimum(room - ours, theirs - least)
            squares[(more > most) | (more < np.maximum(theirs - room, least - ours))] = np.inf
        best = squares.reshape(-1, half).argmin(axis=0)
        pairs = np.flatnonzero(squares.min(axis=(0, 1)) < before)
        at, to = np.divmod(best[pairs], len(tried))
        one, other, first, second = heavy[pairs], light[pairs], given[at, pairs], taken[to, pairs]
        held[mine[at], one], held[yours[to], other] = second, first
        for each, total in (*zip(units, sums, strict=True), *(own[:2] for own in rooms)):
            shift = each[first] - each[second]
            total[one] -= shift
            total[other] += shift
    found = np.empty(count + 1, dtype=np.int64)
    found[held] = np.arange(packs)
    return found[:-1]
