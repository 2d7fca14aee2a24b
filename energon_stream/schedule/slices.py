"""Slices: runs of consecutive samples inside one shard, the unit that the shuffle moves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from energon_stream.arrays import Int64Array


@dataclass(frozen=True, slots=True)
class SliceTable:
    """All slices of one stream's share, computed on demand: the table stores one piece per shard.

    A piece longer than 1.5 times the wanted length is cut into ``round(length / wanted)`` slices.
    """

    # ``int64``, first sample of each piece, in the numbering of the whole split part.
    piece_starts: Int64Array
    piece_lengths: Int64Array  # ``int64``, samples of each piece
    piece_slices: Int64Array  # ``int64``, number of slices of each piece
    first_slice: Int64Array  # ``int64``, number of the first slice of each piece, and the total at the end
    # ``int64``, first sample of each shard of the split part, and the total at the end.
    shard_starts: Int64Array
    start: int  # first sample of the share
    stop: int  # one past the last sample of the share
    max_length: int | None  # wanted length of a slice

    @classmethod
    def build(cls, shard_starts: Int64Array, start: int, stop: int, max_length: int | None) -> SliceTable:
        """Cut the samples ``[start, stop)``; ``max_length`` None keeps pieces whole."""
        if stop <= start:
            empty, zero = np.zeros(0, dtype=np.int64), np.zeros(1, dtype=np.int64)
            return cls(empty, empty, empty, zero, shard_starts, start, start, max_length)
        first = int(np.searchsorted(shard_starts, start, side="right")) - 1
        last = int(np.searchsorted(shard_starts, stop, side="left"))
        bounds = shard_starts[first : last + 1].copy()
        bounds[0], bounds[-1] = start, stop
        starts, lengths = bounds[:-1], bounds[1:] - bounds[:-1]
        if not lengths.all():
            starts, lengths = starts[lengths > 0], lengths[lengths > 0]
        slices = np.ones(len(lengths), dtype=np.int64)
        if max_length is not None and (is_cut := lengths > 1.5 * max_length).any():
            slices[is_cut] = np.rint(lengths[is_cut] / max_length)
        first_slice = np.zeros(len(lengths) + 1, dtype=np.int64)
        slices.cumsum(out=first_slice[1:])
        return cls(starts, lengths, slices, first_slice, shard_starts, start, stop, max_length)

    def of(self, start: int, stop: int) -> SliceTable:
        """Return the slices of another share of the same shards."""
        return SliceTable.build(self.shard_starts, start, stop, self.max_length)

    def __len__(self) -> int:
        return int(self.first_slice[-1])

    @property
    def num_samples(self) -> int:
        """Samples of all slices together."""
        return self.stop - self.start

    @property
    def slice_lengths(self) -> tuple[int, int]:
        """Samples of the shortest and of the longest slice; the table must not be empty."""
        whole, rest = np.divmod(self.piece_lengths, self.piece_slices)
        return int(whole.min()), int((whole + (rest > 0)).max())

    def bounds(self, slices: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the first sample, and one past the last, of each slice."""
        piece = np.searchsorted(self.first_slice, slices, side="right") - 1
        place = slices - self.first_slice[piece]  # among the slices of its piece
        length, count, base = self.piece_lengths[piece], self.piece_slices[piece], self.piece_starts[piece]
        return base + place * length // count, base + (place + 1) * length // count
