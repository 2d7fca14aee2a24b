"""Planned packing of a reader dataset, and the keys by which elements name their pieces of packs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from energon_stream.schedule import PackPiece, PackSpec

if TYPE_CHECKING:
    import numpy.typing as npt

    from energon_stream.pipeline.node import RestoreKey

PIECE = "Piece"
"""Kind of the keys of samples in planned packs."""


@dataclass(frozen=True, slots=True)
class PackPlan:
    """Planned packing of a reader dataset: the options, and the length of each sample of each leaf."""

    spec: PackSpec
    costs: tuple[npt.NDArray[np.integer[Any]], ...] = field(repr=False, compare=False)
    digest: str  # of the costs
    loads: str | None = None  # hash of what a load function makes of some packs; None for a named load
    more: tuple[tuple[npt.NDArray[np.integer[Any]], ...], ...] = field(default=(), repr=False, compare=False)

    def describe(self) -> dict[str, Any]:
        """Return the options as plain values, with a hash of the lengths."""
        return {**self.spec.describe(), "costs": self.digest}

    def pack_samples(self) -> float:
        """Return about how many samples, or parts of them, a full pack has."""
        found = []
        for kind, costs in zip(self.spec.kinds, (self.costs, *self.more), strict=True):
            if kind.capacity is None:
                continue
            total = pieces = 0
            for values, lengths in zip(costs, self.costs, strict=True):
                kept: Any = values <= kind.capacity if self.spec.overlong == "drop" else slice(None)
                total += int(values[kept].sum(dtype=np.int64))
                pieces += int((-(-lengths[kept] // self.spec.capacity)).sum(dtype=np.int64))
            found.append(kind.capacity * pieces / max(1, total))
        return min(found)


def piece_key(key: RestoreKey, piece: PackPiece) -> RestoreKey:
    """Return the key of a sample in a planned pack; :func:`piece_of` finds the piece in it."""
    return (PIECE, piece.pack, key, piece.place, piece.count, piece.start, piece.stop)


def piece_of(key: Any) -> PackPiece | None:
    """Return the piece that an element was made of; None if it is of no planned pack."""
    # The third entry of an operator's key is the key of the element that it was made of.
    while isinstance(key, (list, tuple)) and len(key) > 2 and isinstance(key[2], (list, tuple)):
        if key[0] == PIECE:
            return PackPiece(key[1], *key[3:7])
        key = key[2]
    return None
