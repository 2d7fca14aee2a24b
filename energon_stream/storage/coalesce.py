"""A pure function that merges byte ranges into fetches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from energon_stream.arrays import Int64Array, distinct
from energon_stream.errors import ConfigError


@dataclass(frozen=True, slots=True, eq=False)
class FetchPlan:
    """Fetches that cover a set of ranges."""

    # Object, first byte, and byte after the last one of each fetch, ordered by (object, start).
    objects: Int64Array
    starts: Int64Array
    stops: Int64Array
    fetch_of: Int64Array  # for each input range the fetch that contains all of it, or -1
    ends_by_size: NDArray[np.bool_]  # whether a fetch ends because of ``max_bytes``, and not at a gap
    ends_by_waste: NDArray[np.bool_]  # whether it ends because of ``max_waste``


def plan_fetches(
    objects: Int64Array,
    starts: Int64Array,
    stops: Int64Array,
    required: NDArray[np.bool_],
    *,
    max_gap: int,
    max_bytes: int,
    sparse: NDArray[np.bool_] | None = None,
    max_waste: float = 0.0,
) -> FetchPlan:
    """Merge neighbouring ranges into fetches.

    Ranges of one object merge while the gap to the next range (required or not) is at most ``max_gap`` and
    the fetch stays within ``max_bytes``; a single larger range gets a fetch of its own. A fetch begins and
    ends with a required range. Other ranges are covered only if they lie inside a fetch: their bytes bridge
    gaps, and are needed soon. Each required range is covered by exactly one fetch.

    Gaps between ``sparse`` ranges are read, the smallest first, while they have at most ``max_waste`` times
    the bytes of required sparse ranges. Raises ConfigError if limits or ranges are negative.

    Example:
        >>> starts, stops = np.array([0, 150, 9000]), np.array([100, 200, 9500])
        >>> plan = plan_fetches(np.zeros(3, int), starts, stops, np.ones(3, bool), max_gap=64, max_bytes=1000)
        >>> plan.starts.tolist(), plan.stops.tolist(), plan.fetch_of.tolist()
        ([0, 9000], [200, 9500], [0, 0, 1])
    """
    if max_gap < 0 or max_bytes < 1 or max_waste < 0 or np.any(starts < 0) or np.any(stops < starts):
        raise ConfigError(
            f"limits (max_gap={max_gap}, max_bytes={max_bytes}, max_waste={max_waste}) or ranges are negative",
            hint="Use max_gap >= 0, max_bytes >= 1, max_waste >= 0 and 0 <= start <= stop.",
        )
    fetch_of = np.full(len(objects), -1, dtype=np.int64)
    if not np.any(required):
        none = np.empty(0, dtype=np.int64)
        empty = np.empty(0, dtype=np.bool_)
        return FetchPlan(none, none, none, fetch_of, empty, empty)

    # One number line for all objects: object after object, far enough apart never to merge.
    names = distinct(objects)
    rank = np.searchsorted(names, objects)
    shift = rank.astype(np.int64) * (int(stops.max()) + max_gap + max_bytes + 1)
    order = np.lexsort((-stops, starts + shift))  # a range comes before the ranges inside it
    first, last = (starts + shift)[order], (stops + shift)[order]
    reach = np.maximum.accumulate(last)  # ranges may overlap or contain each other
    gaps = first[1:] - reach[:-1]
    island = near = np.cumsum(np.append(False, gaps > max_gap))

    # Only required ranges make fetches. following[i] is the required range at which a fetch that begins with
    # i ends.
    needed = np.flatnonzero(required[order])
    first_needed, last_needed = first[needed], last[needed]
    reach_needed = np.maximum.accumulate(last_needed)
    if sparse is not None and sparse.any():
        careful = sparse[order]
        wanted = last_needed - np.maximum(first_needed, np.append(0, reach_needed[:-1]))  # ranges may overlap
        most = max_waste * int(np.maximum(wanted, 0)[careful[needed]].sum())
        # Whether a gap lies between two required ranges of an island, by the number of those before it.
        joins = np.zeros(len(needed) + 1, dtype=np.bool_)
        joins[1:-1] = near[needed[:-1]] == near[needed[1:]]
        inside = careful[1:] & (gaps > 0) & joins[np.cumsum(required[order])[:-1]]
        widest = _widest(gaps[inside], most, max_gap)
        island = np.cumsum(np.append(False, gaps > np.where(careful[1:], widest, max_gap)))
    by_size = np.searchsorted(reach_needed, np.maximum(first_needed + max_bytes, last_needed), side="right")
    by_gap = np.searchsorted(island[needed], island[needed], side="right")
    is_by_size = by_size < by_gap
    is_by_waste = by_gap < np.minimum(by_size, np.searchsorted(near[needed], near[needed], side="right"))
    following = np.minimum(by_size, by_gap).tolist()
    heads = []
    head = 0
    while head < len(following):
        heads.append(head)
        head = following[head]
    tails = np.array([*heads[1:], len(following)]) - 1

    fetch_first, fetch_last = first_needed[heads], reach_needed[tails]
    # A range is served by the last fetch that begins at or before it. A required range belongs to its own
    # run, which is another fetch only if ranges overlap across fetches.
    serving = np.searchsorted(fetch_first, first, side="right") - 1
    serving[needed] = np.repeat(np.arange(len(heads)), np.diff([*heads, len(following)]))
    served = (serving >= 0) & (last <= fetch_last[serving])
    fetch_of[order] = np.where(served, serving, -1)

    origin = order[needed[heads]]
    starts, stops = fetch_first - shift[origin], fetch_last - shift[origin]
    return FetchPlan(names[rank[origin]], starts, stops, fetch_of, is_by_size[heads], is_by_waste[heads])


def _widest(gaps: Int64Array, most: float, max_gap: int) -> int:
    """Return the largest width up to which all gaps are read, for at most ``most`` bytes together."""
    ascending = np.sort(gaps)
    count = int(np.searchsorted(np.cumsum(ascending), most, side="right"))
    return max_gap if count == len(ascending) else int(ascending[count]) - 1
