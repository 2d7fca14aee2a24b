"""Warns of datasets of a blend that cannot reach their weight."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from energon_stream.logs import log_once
from energon_stream.schedule import Plan, leaves, reached_shares
from energon_stream.urls import shown_url

if TYPE_CHECKING:
    from energon_stream.pipeline.leaf import Leaf

_log = logging.getLogger(__name__)
_NAMED = 3


def tell_shares(plan: Plan, of: Sequence[Leaf], num_streams: int) -> None:
    """Log a warning with the shares that are reached, if some are below their weights."""
    short = []
    for blend, shares in reached_shares(plan, num_streams):
        for child, weight, share in zip(blend.children, blend.weights, shares, strict=True):
            wanted = weight / sum(blend.weights)
            if share < 0.99 * wanted:
                path = shown_url(of[next(leaves(child)).leaf].index.spec.url)
                short.append(f"{path} gets {share:.3g} of the draws, where its weight says {wanted:.3g}")
    if short:
        log_once(
            _log,
            "%d datasets of a blend have fewer samples than the %d streams (workers of all ranks), so that some "
            "streams cannot draw from them: %s; use fewer ranks and workers, or larger datasets",
            len(short),
            num_streams,
            ", ".join(short[:_NAMED]) + (", …" if len(short) > _NAMED else ""),
        )
