"""Samples that come several times in a window of planned packs. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from energon_stream.arrays import Int64Array

_NEAR = 64  # pieces, on each side by length, that a copy is exchanged for first
_ALIKE = 16  # share of the longest piece by which lengths may differ, so that loads stay even
_TRIES = 2  # exchanges that are looked at, for each piece of a window


def sample_numbers(leaf: npt.NDArray[np.integer[Any]], index: Int64Array) -> Int64Array:
    """Return a number for each reference, the same for those of one sample.

    Example:
        >>> sample_numbers(np.array([0, 0, 1, 0]), np.array([5, 6, 5, 5])).tolist()
        [0, 1, 2, 0]
    """
    order = np.lexsort((index, leaf))
    found = np.zeros(len(order), dtype=np.int64)
    found[order[1:]] = np.cumsum((np.diff(index[order]) != 0) | (np.diff(leaf[order]) != 0))
    return found


def times_before(leaf: npt.NDArray[np.integer[Any]], index: Int64Array) -> Int64Array:
    """Return how often each sample came before.

    Example:
        >>> times_before(np.array([0, 0, 1, 0]), np.array([5, 6, 5, 5])).tolist()
        [0, 0, 0, 1]
    """
    numbers = sample_numbers(leaf, index)
    order, counts = np.argsort(numbers, kind="stable"), np.bincount(numbers)
    found = np.empty(len(order), dtype=np.int64)
    found[order] = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    return found


def part_copies(
    sample: Int64Array, costs: Int64Array, rooms: Sequence[int | None], pack: Int64Array
) -> Int64Array:
    """Exchange pieces, of nearly the same length, until no pack has two of one sample, if that can be.

    Args:
        sample: Number of the sample of each piece.
        costs: What each piece takes of each room, ``int64 [pieces, rooms]``, the length first.
        rooms: What the pieces of a pack may take together; None for no limit.
        pack: Number of the pack of each piece.

    Returns:
        The pack of each piece.

    Example:
        >>> pack = np.array([0, 0, 1, 1])
        >>> part_copies(np.array([7, 7, 8, 9]), np.array([[3], [2], [2], [3]]), [5], pack).tolist()
        [0, 1, 0, 1]
    """
    order = np.lexsort((sample, pack))
    is_copy = (np.diff(pack[order]) == 0) & (np.diff(sample[order]) == 0)
    if not is_copy.any():
        return pack
    copies = [*order[1:][is_copy].tolist(), *order[:-1][is_copy].tolist()]
    packs, samples, sizes = pack.tolist(), sample.tolist(), costs.tolist()
    has = Counter(zip(packs, samples, strict=True))
    taken = [np.bincount(pack, weights=own).astype(np.int64).tolist() for own in costs.T]
    by_size, left = np.argsort(costs[:, 0], kind="stable"), _TRIES * len(packs)
    place, most = np.argsort(by_size).tolist(), int(costs[:, 0].max(initial=0)) // _ALIKE
    for piece, reach in product(copies, (_NEAR, 16 * _NEAR)):
        here, own = packs[piece], samples[piece]
        if has[here, own] < 2 or left < 0:
            continue
        near = by_size[max(0, place[piece] - reach) : place[piece] + reach + 1]
        off = np.abs(costs[near, 0] - costs[piece, 0])
        near = near[np.argsort(off, kind="stable")][: np.count_nonzero(off <= most)]
        for other in near.tolist():
            left -= 1
            there, another = packs[other], samples[other]
            if there == here or has[there, own] or has[here, another]:
                continue
            more = [one - two for one, two in zip(sizes[other], sizes[piece], strict=True)]
            if all(
                room is None or (of[here] + each <= room and of[there] - each <= room)
                for of, each, room in zip(taken, more, rooms, strict=True)
            ):
                packs[piece], packs[other] = there, here
                for of, each in zip(taken, more, strict=True):
                    of[here], of[there] = of[here] + each, of[there] - each
                for change in (
                    ((here, own), -1),
                    ((there, another), -1),
                    ((there, own), 1),
                    ((here, another), 1),
                ):
                    has[change[0]] += change[1]
                break
    return np.array(packs, dtype=np.int64)
