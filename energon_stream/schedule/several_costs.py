"""Packs of samples with several costs, such as tokens and patches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from energon_stream.arrays import Int64Array
    from energon_stream.schedule.pack_planning import Load

_BLOCK = 64  # packs that are formed together of samples with several costs
_NO_LIMIT = 1 << 62
_FILLS = (0.98, 0.95, 0.9, 0.8, 0.65, 0.5)
"""Shares of the room that are tried after higher ones, if each sample took the largest of its costs."""

_LARGE = 0.9  # share of a room from which on a sample has a pack of its own kind
_BESIDE = tuple(number / 200 for number in range(196, 180, -1))  # shares of the room beside large samples
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
    costs: Int64Array, capacities: Sequence[int | None], packs: int, *, fullest: bool
) -> Int64Array | None:
    """Put samples with several costs into packs: the largest first, each where all costs stay the most even.

    Packs are made in blocks side by side, each of samples of all sizes. ``costs`` has a column for each kind;
    a kind without a capacity is made even only. ``fullest`` prefers the fullest pack that has room instead.

    Returns the pack of each sample; None if ``packs`` do not suffice.

    Example:
        >>> costs = np.array([[6, 0], [5, 4], [4, 4], [3, 0]])
        >>> pack_kinds(costs, (10, None), 2, fullest=False).tolist()
        [1, 0, 1, 0]
    """
    blocks = next(count for count in range(max(1, packs // _BLOCK), 0, -1) if packs % count == 0)
    rounds = -(-len(costs) // blocks)
    totals = costs.sum(axis=0).tolist()
    limits = np.array([_NO_LIMIT if room is None else room for room in capacities], dtype=np.int64)
    alone = (costs + costs.min(axis=0, initial=_NO_LIMIT) > limits).any(axis=1)  # no other fits beside it
    if (costs[~alone].sum(axis=0) > (packs - int(alone.sum())) * limits.astype(np.float64)).any():
        return None  # as they would not fit after all were tried
    scale = np.array(
        [1 / (room or max(1, total) / packs) for room, total in zip(capacities, totals, strict=True)]
    )
    dealt = np.full(rounds * blocks, len(costs))
    dealt[: len(costs)] = np.argsort(-(costs * scale).max(axis=1), kind="stable")
    padded = np.concatenate([costs.T, np.zeros((costs.shape[1], 1), dtype=np.int64)], axis=1)
    placed = np.empty(len(costs) + 1, dtype=np.int64)
    sums = np.zeros((costs.shape[1], blocks, packs // blocks), dtype=np.int64)
    of_block, every = np.zeros((costs.shape[1], blocks), dtype=np.int64), np.arange(blocks)
    of_each, most = scale[:, None, None], limits[:, None, None]
    for own in dealt.reshape(rounds, blocks):
        kind = int(((of_block.max(axis=1) - of_block.min(axis=1)) * scale).argmax())
        light = of_block[kind].argsort(kind="stable")
        mine = np.empty_like(own)
        mine[light] = own[(-padded[kind, own]).argsort(kind="stable")]
        added = padded[:, mine]
        after = sums + added[:, :, None]
        scaled = after * of_each
        score = -scaled.sum(axis=0) if fullest else reduce(np.maximum, scaled)
        score[reduce(np.logical_or, after > most)] = np.inf
        pick = score.argmin(axis=1)
        if score[every, pick].max() == np.inf:
            return None
        sums[:, every, pick] += added
        of_block += added
        placed[mine] = every * (packs // blocks) + pick
    found: Int64Array = np.unique(placed[:-1], return_inverse=True)[1].astype(np.int64)
    return found


def fill_kinds(
    costs: Int64Array, capacities: Sequence[int | None], packs: int, is_last: bool
) -> tuple[int, Int64Array, Int64Array]:
    """Return how many samples some packs take, which of them are used, and the pack of each of these."""
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
    if is_last and full <= 1 and samples[-1] > 0:
        room, every = math.ceil(full * packs), min(packs, int(samples[-1]))
        rooms_tried = [*range(room, every, max(1, packs // 64)), every]
        tries = [*((len(costs), number) for number in rooms_tried), *tries]
    fits = int(np.searchsorted(samples, packs, side="right"))  # as many samples as packs
    tries = [(count if room < packs else max(count, fits), room) for count, room in tries]
    for count, room in dict.fromkeys([*tries, (fits, packs)]):
        own = np.flatnonzero(used[:count])
        for fullest in (False, True):
            pack = pack_kinds(costs[own], capacities, max(1, room), fullest=fullest)
            if pack is not None:
                return count, own, pack
    raise AssertionError("samples that fit one by one fit as many packs")


def fill_beside_large(
    costs: Int64Array, capacities: Sequence[int | None], packs: int, streams: int
) -> tuple[int, Int64Array, Int64Array] | None:
    """Return packs as :func:`fill_kinds` does, of which equally many for each stream have one full cost.

    A sample that takes most of a room has its own pack, unlike those of small samples. As many packs of
    small ones as fill up the last row are made alike: of those with much of that cost and little of others.
    None where all streams have equally many large samples, or fewer than one, or small ones do not suffice.
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
        first = pack_kinds(costs[alike], capacities, more, fullest=False)
        last = None if first is None else pack_kinds(costs[rest], capacities, packs - more, fullest=False)
        if first is None or last is None:
            continue
        own, pack = np.concatenate([alike, rest]), np.concatenate([first, last + more])
        sums_of = np.stack([np.bincount(pack, each, minlength=packs) for each in parts[own].T])
        return (count, own, pack) if sums_of.max(axis=0).mean() >= _FULL else None
    return None
