"""The balance of planned packs: loads of a window's packs by stream and step, and of the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from energon_stream.arrays import Float64Array


def loads_of_steps(job: Any, window: Any) -> Float64Array:
    """Return the loads of the packs of whole steps, ``float64 [streams, steps, packs, costs]``.

    ``window`` is a ``PlannedWindow`` of the ``JobPacks`` ``job``.
    """
    each = job.spec.step // len(window.streams)  # packs of a stream in a step
    found = [_loads(job, own) for own in window.streams]
    whole = min(map(len, found)) // each
    return np.stack([own[: whole * each].reshape(whole, each, own.shape[1]) for own in found])


def loads_of_ranks(loads: Float64Array, ranks: int) -> Float64Array:
    """Return the loads of the ranks in these steps, ``float64 [ranks, steps, costs]``."""
    return np.stack([loads[rank::ranks].sum(axis=(0, 2)) for rank in range(ranks)])


def _loads(job: Any, packs: Any) -> Float64Array:
    """Return the loads of a stream's packs, ``float64 [packs, costs]``."""
    costs = job.lengths(packs.refs)
    costs[:, 0] = packs.stop - packs.start
    pack = np.repeat(np.arange(len(packs.ends)), np.diff([0, *packs.ends]))
    found: Float64Array = job.spec.loads(costs, pack, len(packs.ends))
    return found
