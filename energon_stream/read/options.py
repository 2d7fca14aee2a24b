"""How much to fetch next: pure arithmetic on bytes and places."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from energon_stream.arrays import Int64Array
from energon_stream.errors import ConfigError

__all__ = ["CHUNK", "CONNECTION_BYTES", "LOADING", "ReadOptions", "cut_generation"]


CHUNK = 1024
"""References that a reader locates at a time; bounds the work done between two samples."""

LOADING = 4
"""Chunks whose index entries are asked for at a time: a late answer holds up only what comes after it."""

_LEAST_AHEAD = 512  # references of one of many readers
CONNECTION_BYTES = 1 << 20  # bytes that a request under way takes besides its block, as measured with obstore
_FIRST_SAMPLES = 32
_FAST_LINE = 1.25e9  # bytes a second: ten gigabits


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Limits of the look-ahead of one process.

    Attributes:
        byte_budget: Bytes that reading ahead may take: three quarters for blocks that are requested or not yet
            consumed, the rest for the connections, which hold about a megabyte each besides.
        max_request: Largest coalesced request in bytes; only a larger sample is read by a larger one.
        max_gap: Unwanted bytes between two samples that are read rather than split a request.
        max_in_flight: Requests under way at once; fewer where the budget has no room for their connections.
        max_ahead: References that are requested and not yet consumed, whatever their bytes.
        first_samples: Samples that are fetched as exact ranges before anything else. None: those of the first batch,
            or of the first packing buffer.
        transport: ``"auto"``, ``"fsspec"`` or ``"obstore"``.
    """

    byte_budget: int = 256 << 20
    max_request: int = 6 << 20
    max_gap: int = 32 << 10
    max_in_flight: int = 64
    max_ahead: int = 8192
    first_samples: int | None = None
    transport: str = "auto"

    def __post_init__(self) -> None:
        for name in ("byte_budget", "max_request", "max_in_flight", "max_ahead", "exact_samples"):
            if getattr(self, name) < 1:
                name = name.replace("exact", "first")
                raise ConfigError(f"{name} is {getattr(self, name)}", hint="use a positive number")
        if self.max_gap < 0:
            raise ConfigError(f"max_gap is {self.max_gap}", hint="use 0 or more bytes")

    def share(self, readers: int) -> ReadOptions:
        """The limits of one of several readers that share a process."""
        if readers < 2:
            return self
        return replace(
            self,
            byte_budget=max(1, self.byte_budget // readers),
            max_ahead=max(min(self.max_ahead, _LEAST_AHEAD), self.max_ahead // readers),
        )

    @property
    def exact_samples(self) -> int:
        """``first_samples``, or a usual number where nobody derived it from a batch size."""
        return _FIRST_SAMPLES if self.first_samples is None else self.first_samples

    @property
    def generation(self) -> int:
        """Bytes that are planned together. A quarter of what blocks may hold: a plan may take in as much again
        of what comes after it, and two plans have to fit."""
        return max(1, self.fetch_bytes // 4)

    @property
    def fetch_bytes(self) -> int:
        """Bytes that blocks may hold together."""
        return self.byte_budget * 3 // 4

    @property
    def in_flight(self) -> int:
        """Requests under way at once for which the budget has room."""
        return max(1, min(self.max_in_flight, (self.byte_budget - self.fetch_bytes) // CONNECTION_BYTES))

    @property
    def largest_shared(self) -> int:
        """Bytes of a sample up to which it is fetched beside others; a larger one is read alone."""
        return self.fetch_bytes // 4

    @property
    def second_take(self) -> int:
        """References that are located while the first samples are under way."""
        return min(self.max_ahead, max(CHUNK, self.max_ahead // 4))

    @property
    def most_ahead(self) -> int:
        """References after the last one consumed that are looked at, at most: those of plans, which are made while there
        are fewer than ``max_ahead`` of them and have half as many, and those located after these."""
        located = max(self.exact_samples + self.second_take, self.max_ahead + LOADING * CHUNK)
        return self.max_ahead + self.max_ahead // 2 + located

    @property
    def most_ahead_bytes(self) -> int:
        """Bytes of those of them that blocks may lie between: what blocks hold, a plan, and what it may take in, which
        is as much again and one more reference."""
        return self.fetch_bytes + 2 * self.generation + self.largest_shared

    def slow_start_bytes(self, latency: float) -> int:
        """Bytes that may be under way at first: what a fast line holds, given the seconds of a round trip."""
        return max(16 << 20, int(latency * _FAST_LINE))


def cut_generation(objects: Int64Array, starts: Int64Array, stops: Int64Array, wanted: int) -> int:
    """Decide how many of the next references form a generation.

    Requests are merged within a generation, so a cut that separates neighbours of an object costs
    requests. Among the places where between a quarter and all of the wanted bytes lie before the cut, the one
    is taken that separates the fewest neighbours for its length; shuffled orders have such places where
    one group of slices ends.

    Args:
        objects: ``int64``, object of each reference, in the order in which they are wanted.
        starts: ``int64``, first byte of each.
        stops: ``int64``, one past the last byte of each.
        wanted: Bytes of a generation.

    Returns:
        Number of references, at least 1.
    """
    within = np.cumsum(stops - starts)
    most = int(np.searchsorted(within, wanted, side="right"))
    if most >= len(within) or most < 2:
        return max(1, most)
    # Where passes meet, a range is there twice: its neighbour is then the one of the same pass.
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
    least = max(1, int(np.searchsorted(within, wanted // 4, side="left")) + 1)
    cuts = np.arange(min(least, most), most + 1)
    return int(cuts[np.argmin((separated[cuts] + 1) / cuts)])
