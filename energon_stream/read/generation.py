"""Ends of generations: the place that separates the fewest neighbouring byte ranges. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from energon_stream.arrays import Int64Array, distinct

if TYPE_CHECKING:
    from energon_stream.read.located import Located


def cut_generation(
    objects: Int64Array,
    starts: Int64Array,
    stops: Int64Array,
    wanted: int,
    limit: int | None = None,
    sees_all: bool = True,
) -> int:
    """Choose how many of the next references form a generation.

    Requests are merged within a generation, so a cut between neighbours of an object costs requests. Among
    the places with a quarter to all of the wanted bytes before them, this chooses the one that separates the
    fewest neighbours for its length. In a shuffled order that is where a group of slices ends.

    Takes object, first byte, and one past the last byte of each reference, in the order of use, the wanted
    bytes, and the largest number of references if more than those may follow. Unless these are enough to
    see all neighbours, ends that touch none count as separated, too. Returns at least 1.
    """
    within = np.cumsum(stops - starts)
    most = min(int(np.searchsorted(within, wanted, side="right")), len(within) if limit is None else limit)
    if (most >= len(within) and sees_all) or most < 2:
        return max(1, most)
    # Where passes meet, a range occurs twice; its neighbour is the one of the same pass.
    order = np.lexsort((starts, objects))
    again = (objects[order][1:] == objects[order][:-1]) & (starts[order][1:] == starts[order][:-1])
    place = np.arange(len(order))
    new = np.concatenate([[True], ~again])
    order = order[np.lexsort((starts[order], objects[order], place - np.maximum.accumulate(place * new)))]
    touching = (objects[order][1:] == objects[order][:-1]) & (starts[order][1:] == stops[order][:-1])
    one, other = order[1:][touching], order[:-1][touching]
    first, last = np.minimum(one, other), np.maximum(one, other)
    separated = np.cumsum(
        np.bincount(first + 1, minlength=len(within) + 1) - np.bincount(last + 1, minlength=len(within) + 1)
    )
    if not sees_all:
        ends = 2 - np.bincount(one, minlength=len(within)) - np.bincount(other, minlength=len(within))
        separated[1 : len(within) + 1] += np.cumsum(ends)
    least = max(1, int(np.searchsorted(within, min(wanted, within[most - 1]) // 4, side="left")) + 1)
    cuts = np.arange(min(least, most), most + 1)
    return int(cuts[np.argmin((separated[cuts] + 1) / cuts)])


def has_range_near(
    keys: Int64Array, stops: Int64Array, later: Located, max_gap: int
) -> npt.NDArray[np.bool_]:
    """Return, for each end of a request, whether a range begins at most ``max_gap`` bytes after it."""
    if not len(later):
        return np.zeros(len(keys), dtype=np.bool_)
    # One number line for all objects.
    together = np.concatenate([keys, later.keys])
    rank = np.searchsorted(distinct(together), together)
    length = int(max(stops.max(initial=0), later.stops.max())) + max_gap + 1
    ends, begins = rank[: len(keys)] * length + stops, np.sort(rank[len(keys) :] * length + later.starts)
    following = np.searchsorted(begins, ends, side="left")
    found = begins[np.minimum(following, len(begins) - 1)]
    near: npt.NDArray[np.bool_] = (following < len(begins)) & (found <= ends + max_gap)
    return near


def whole_runs(
    keys: Int64Array,
    starts: Int64Array,
    stops: Int64Array,
    required: npt.NDArray[np.bool_],
    max_bytes: int,
) -> npt.NDArray[np.bool_]:
    """Return ``required``, and the neighbours of such ranges where one request can have a whole run.

    A run has ranges of one object that touch: in a gap there may be ranges that are not seen yet.
    """
    if not required.any() or required.all():
        return required
    order = np.lexsort((starts, keys))
    key, first, last = keys[order], starts[order], stops[order]
    begins = np.concatenate([[True], (key[1:] != key[:-1]) | (first[1:] > last[:-1])])
    run = np.cumsum(begins) - 1
    heads = np.flatnonzero(begins)
    ends = np.append(heads[1:], len(order)) - 1
    is_whole = (last[ends] - first[heads] <= max_bytes) & (np.bincount(run, required[order]) > 0)
    whole = required.copy()
    whole[order] |= is_whole[run]
    return whole
