"""How samples are dealt to streams: Megatron-Energon's split arithmetic with one part per stream."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

__all__ = ["bit_reversal", "stream_bounds"]


def bit_reversal(size: int) -> list[int]:
    """Generalised bit reversal of ``range(size)``: halve, recurse into both halves, interleave."""

    def reorder(items: list[int]) -> list[int]:
        if len(items) <= 2:
            return items
        middle = len(items) // 2
        left, right = reorder(items[:middle]), reorder(items[middle:])
        result = [value for pair in zip(left, right, strict=False) for value in pair]
        return result + right[len(left) :]

    return reorder(list(range(size)))


@lru_cache(maxsize=64)
def stream_bounds(num_samples: int, num_streams: int, rotation: int = 0) -> tuple[int, ...]:
    """Cut ``range(num_samples)`` into one contiguous range per stream.

    The first ``num_samples % num_streams`` streams after ``rotation`` get one sample more; the counts
    are then spread by :func:`bit_reversal`, so that streams with one more lie far apart.

    Args:
        num_samples: Samples to split, after whole-shard excludes and subsets.
        num_streams: Number of streams of the job.
        rotation: Which stream gets the first of the remainders.

    Returns:
        ``num_streams + 1`` ascending bounds; stream ``s`` owns ``[bounds[s], bounds[s + 1])``.
    """
    base, remainder = divmod(num_samples, num_streams)
    counts = np.zeros(num_streams, dtype=np.int64)
    order = bit_reversal(num_streams)
    for old in range(num_streams):
        counts[order[old]] = base + (1 if (old - rotation + num_streams) % num_streams < remainder else 0)
    return (0, *(int(bound) for bound in np.cumsum(counts)))
