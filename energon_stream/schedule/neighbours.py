"""Packs of neighbours: small samples are packed with those beside them, so that large requests read them."""

from __future__ import annotations

import math

import numpy as np

from energon_stream.arrays import Int64Array
from energon_stream.rng import derive_key, uniform
from energon_stream.schedule.pack_planning import (
    EVEN,
    Load,
    deal_own,
    in_units,
    match_rows,
    open_packs,
    pack_lengths,
    pack_loads,
    swap_packs,
    unevenness,
)

_BLOCKS = (2, 4)
"""Blocks of neighbours of a stream in a window, the fewest first: more are more even, and more requests."""
_CLOSE = 100  # streams exchange runs until they differ by this part of their means
_ROUNDS = 10  # of exchanges
_RUNS = 3  # of a stream that are tried in turn
_CUTS = 32  # places of a run that are tried
_TURNS = 2  # of swaps between the steps of a stream


def pack_neighbours(
    lengths: Int64Array, capacity: int, packs: int, step: int, streams: int, load: Load, key: int
) -> tuple[Int64Array, list[list[int]]] | None:
    """Pack the pieces of a window that has whole steps, which are in the order of storage.

    Blocks of neighbours of equal length are dealt to streams by load. Streams exchange runs of neighbours
    until they have about the same, and each packs its own. Returns the pack of each piece, and the packs of
    each stream by steps, as even as found; None if the packs do not suffice.
    """
    size, steps = packs // streams, packs // step
    middle = np.cumsum(lengths) - lengths // 2
    # Pieces have no load, but one that grows with the squares is near what any load of packs is.
    parts = in_units(np.stack([lengths.astype(np.float64), lengths.astype(np.float64) ** 2], axis=1))
    found, least = None, math.inf
    for count in _BLOCKS:
        block = np.minimum(middle * (count * streams) // int(lengths.sum()), count * streams - 1)
        sums = np.zeros((count * streams, 2), dtype=np.int64)
        np.add.at(sums, block, parts)
        ends = np.searchsorted(block, np.arange(count * streams + 1))
        owned: list[list[tuple[int, int]]] = [[] for _ in range(streams)]
        for number, stream in enumerate(_deal_blocks(sums, count).tolist()):
            owned[stream].append((int(ends[number]), int(ends[number + 1])))
        _exchange(owned, parts)
        pack = _pack_own(lengths, owned, capacity, size)
        if pack is None:
            continue
        units = in_units(pack_loads(lengths, pack, packs, load)[:, None])
        dealt = deal_own(units, np.arange(packs).reshape(streams, size), steps, _TURNS).transpose(1, 0, 2)
        worst = unevenness(units[dealt].sum(axis=2)).max()
        if worst < least:
            order = np.argsort(uniform(derive_key(key, "order"), np.arange(steps)), kind="stable")
            mine = np.argsort(uniform(derive_key(key, "streams"), np.arange(streams)), kind="stable")
            found = pack, dealt[order][:, mine].transpose(1, 0, 2).reshape(streams, size).tolist()
            least = worst
        if worst <= EVEN:
            break
    return found


def _pack_own(
    lengths: Int64Array, owned: list[list[tuple[int, int]]], capacity: int, size: int
) -> Int64Array | None:
    """Let each stream make ``size`` packs of its pieces; return the pack of each, None if some do not fit."""
    pack = np.empty(len(lengths), dtype=np.int64)
    for stream, runs in enumerate(owned):
        mine = np.concatenate([np.arange(*run) for run in runs])
        own = pack_lengths(lengths[mine], capacity, size)
        if own is None or len(mine) < size:
            return None
        pack[mine] = open_packs(own, size) + stream * size
    return pack


def _deal_blocks(units: Int64Array, count: int) -> Int64Array:
    """Return the stream of each block: ``count`` of each, of even loads."""
    ranked = np.argsort(-units[:, 1], kind="stable")
    dealt = swap_packs(units, match_rows(units, ranked.reshape(1, count, -1)))[0]
    owner = np.empty(len(units), dtype=np.int64)
    owner[dealt] = np.arange(len(dealt))[:, None]
    return owner


def _exchange(owned: list[list[tuple[int, int]]], parts: Int64Array) -> None:
    """Let heavier streams exchange runs of neighbours with lighter ones, until all have about the same.

    ``owned`` has the runs of each stream, ``parts`` the length and the load of each piece, which take turns.
    """
    upto = np.concatenate([np.zeros((1, 2), dtype=np.int64), np.cumsum(parts, axis=0)])
    sums = np.array([np.sum([upto[last] - upto[first] for first, last in runs], axis=0) for runs in owned])
    close = upto[-1] // (len(owned) * _CLOSE)
    for turn in range(_ROUNDS):
        order = np.argsort(-sums[:, turn % 2 ^ 1], kind="stable").tolist()
        for one, other in zip(order[: len(owned) // 2], order[::-1], strict=False):
            gap = sums[one] - sums[other]
            if (np.abs(gap) <= close).all():
                continue
            given, taken = _run_of(owned[one], upto, turn, 1), _run_of(owned[other], upto, turn, -1)
            cuts, theirs = _cuts(given), _cuts(taken)
            left, right = upto[cuts] - upto[given[0]], upto[theirs] - upto[taken[0]]
            after = [
                np.subtract.outer(gap[kind] - 2 * left[:, kind], -2 * right[:, kind]) / close[kind]
                for kind in (0, 1)
            ]
            mine, yours = divmod(int((after[0] ** 2 + after[1] ** 2).argmin()), len(right))
            _give(owned[one], owned[other], given, int(cuts[mine]))
            _give(owned[other], owned[one], taken, int(theirs[yours]))
            shift = left[mine] - right[yours]
            sums[one] -= shift
            sums[other] += shift


def _run_of(runs: list[tuple[int, int]], upto: Int64Array, turn: int, sign: int) -> tuple[int, int]:
    """Return one of a stream's longest runs, or of those of most load a length."""

    def score(run: tuple[int, int]) -> int:
        length, load = (upto[run[1]] - upto[run[0]]).tolist()
        return run[0] - run[1] if turn % 2 else sign * (length - load)

    return sorted(runs, key=score)[turn // 2 % _RUNS % len(runs)]


def _cuts(run: tuple[int, int]) -> Int64Array:
    """Return places of a run up to which it may be given away, its beginning first."""
    first, last = run
    return np.arange(first, last + 1, max(1, (last - first) // _CUTS))


def _give(runs: list[tuple[int, int]], others: list[tuple[int, int]], run: tuple[int, int], cut: int) -> None:
    """Give a run up to a place to another stream."""
    if cut > run[0]:
        runs.remove(run)
        runs += [(cut, run[1])] if cut < run[1] else []
        others.append((run[0], cut))
