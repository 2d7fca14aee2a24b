"""Packs of neighbours: small samples are packed with those beside them, so that large requests read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from energon_stream.rng import derive_key, uniform
from energon_stream.schedule.pack_planning import (
    in_units,
    match_rows,
    open_packs,
    pack_lengths,
    pack_loads,
    swap_packs,
    unevenness,
)

if TYPE_CHECKING:
    from energon_stream.arrays import Int64Array
    from energon_stream.schedule.pack_planning import Load

_BLOCKS = (2, 4, 8, 16)
"""Blocks of neighbours of a stream in a window, the fewest first: more are more even, and more requests."""
_EVEN = 1.02  # largest load of a stream over the mean in a step with which packs of neighbours are taken
_LONG = 4  # pieces longer than this part of the capacity are dealt alone: each is a large request
_SLACK = 0.3  # of the room that packs leave, which a stream may have more than the mean
_MOVES = 8  # pieces that change streams, for each stream, at most


def pack_neighbours(
    lengths: Int64Array, capacity: int, packs: int, step: int, streams: int, load: Load, key: int
) -> tuple[Int64Array, list[list[int]]] | None:
    """Pack the pieces of a window that has whole steps, which are in the order of storage.

    Blocks of neighbours of equal length are dealt to streams by load, and each stream packs its own.
    Returns the pack of each piece, and the packs of each stream by steps: none if these are not even. Returns
    None if the packs do not suffice.
    """
    size, steps = packs // streams, packs // step
    is_long = lengths * _LONG > capacity
    short = np.flatnonzero(~is_long)
    middle = np.cumsum(lengths[short]) - lengths[short] // 2
    alone = np.flatnonzero(is_long)[np.argsort(-lengths[is_long], kind="stable")]
    turns = np.arange(len(alone))
    snake = np.where(turns // streams % 2, streams - 1 - turns % streams, turns % streams)
    every = np.arange(packs).reshape(streams, size)
    for count in _BLOCKS:
        block = np.minimum(
            middle * (count * streams) // max(1, int(lengths[short].sum())), count * streams - 1
        )
        # Blocks have no load, but one that grows with the squares is near what any load of packs is.
        units = in_units(pack_loads(lengths[short], block, count * streams, "quadratic")[:, None])
        owner = np.empty(len(lengths), dtype=np.int64)
        owner[alone], owner[short] = snake, _deal_blocks(units, count)[block]
        _level(owner, lengths, streams, size * capacity, short)
        pack = np.empty(len(lengths), dtype=np.int64)
        for stream in range(streams):
            mine = np.flatnonzero(owner == stream)
            own = pack_lengths(lengths[mine], capacity, size)
            if own is None or len(mine) < size:
                return None
            pack[mine] = open_packs(own, size) + stream * size
        units = in_units(pack_loads(lengths, pack, packs, load)[:, None])
        ranked = np.take_along_axis(
            every, np.argsort(-units[every].sum(axis=2), axis=1, kind="stable"), axis=1
        )
        dealt = swap_packs(units, match_rows(units, ranked.reshape(streams, step // streams, steps)))
        dealt = dealt.transpose(1, 0, 2)
        uneven = unevenness(units[dealt].sum(axis=2)).max(axis=1) > _EVEN
        if uneven.any():  # some packs leave their stream
            dealt[uneven] = swap_packs(units, dealt[uneven])
        if unevenness(units[dealt].sum(axis=2)).max() <= _EVEN:
            order = np.argsort(uniform(derive_key(key, "order"), np.arange(steps)), kind="stable")
            mine = np.argsort(uniform(derive_key(key, "streams"), np.arange(streams)), kind="stable")
            return pack, dealt[order][:, mine].transpose(1, 0, 2).reshape(streams, size).tolist()
    return np.zeros(0, dtype=np.int64), []


def _deal_blocks(units: Int64Array, count: int) -> Int64Array:
    """Return the stream of each block: ``count`` of each, of even loads."""
    ranked = np.argsort(-units[:, 0], kind="stable")
    dealt = swap_packs(units, match_rows(units, ranked.reshape(1, count, -1)))[0]
    owner = np.empty(len(units), dtype=np.int64)
    owner[dealt] = np.arange(len(dealt))[:, None]
    return owner


def _level(owner: Int64Array, lengths: Int64Array, streams: int, room: int, short: Int64Array) -> None:
    """Move short pieces from the fullest stream to the emptiest, until all have about the same."""
    sums = np.bincount(owner, weights=lengths, minlength=streams)
    most = sums.mean() + _SLACK * (room - sums.mean())
    for _ in range(_MOVES * streams):
        full, empty = int(np.argmax(sums)), int(np.argmin(sums))
        mine = short[owner[short] == full]
        if sums[full] <= most or not len(mine):
            return
        piece = mine[np.argmin(np.abs(lengths[mine] - (sums[full] - sums[empty]) / 2))]
        owner[piece] = empty
        sums[full] -= lengths[piece]
        sums[empty] += lengths[piece]
