"""Planned packing of a reader dataset, and the keys by which elements name their pieces of packs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from energon_stream.rng import derive_key
from energon_stream.schedule import JobPacks, PackPiece, PackSpec, Plan, build_schedule

if TYPE_CHECKING:
    import numpy.typing as npt

    from energon_stream.pipeline.node import RestoreKey
    from energon_stream.worker import WorkerConfig

PIECE, PLANNED_PACK = "Piece", "PlannedPack"
"""Kinds of the keys of samples in planned packs, and of these packs."""


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

    def of_version(self, version: int | None) -> PackPlan:
        """Return the packing as a version did it; None for the newest way."""
        return replace(self, spec=self.spec.of_version(version))

    def of_job(self, plan: Plan, config: WorkerConfig, path: str) -> JobPacks:
        """Return the packs of all streams, for the node at ``path``."""
        key = derive_key(config.seed_offset, path, "packs")
        mixed = int(self.spec.packs * self.pack_samples())
        job = build_schedule(plan, num_streams=1, stream=0, key=key, mixed=mixed)
        return JobPacks(job, self.spec, self.costs, config.num_streams, key, self.more)

    def loads_in(self, key: Any) -> tuple[int, list[float]]:
        """Return how many packs an element was made of, and their load by the costs of what they have."""
        packs = list(packs_in(key))
        pieces = [piece for pack in packs for piece in pack]
        costs = [[piece[6] - piece[5] for piece in pieces]]
        costs += [
            [int(values[leaf][n]) for _, leaf, n in (piece[2] for piece in pieces)] for values in self.more
        ]
        pack = np.repeat(np.arange(len(packs)), list(map(len, packs)))
        loads = self.spec.loads(np.array(costs, dtype=np.int64).T, pack, len(packs))
        return len(packs), loads.sum(axis=0).tolist()

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


def pieces_in(key: Any) -> Iterator[Any]:
    """Yield the key of each piece in a key."""
    if isinstance(key, (list, tuple)):
        if len(key) == 7 and key[0] == PIECE:
            yield key
        else:
            for part in key:
                yield from pieces_in(part)


def packs_in(key: Any) -> Iterator[list[Any]]:
    """Yield the keys of the pieces of each planned pack in a key."""
    if isinstance(key, (list, tuple)):
        if key and key[0] == PLANNED_PACK:
            if not key[3]:  # number of the element, of a generator's
                yield list(pieces_in(key[2]))
        else:
            for part in key:
                yield from packs_in(part)


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
