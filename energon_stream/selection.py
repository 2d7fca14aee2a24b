"""Selections: which samples of a dataset a view leaves, numbered anew without gaps.

A selection is a bit for each sample, and the number of selected samples before each block of bits. That is 13
MB for 10⁸ samples, and both directions are a few array operations: from a sample to its number among the
selected ones (:meth:`Selection.rank`), and back (:meth:`Selection.samples`). It is pure: no I/O, no
randomness of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import xxhash

from energon_stream.arrays import Float64Array, Int64Array

_BLOCK_BITS = 512
_BLOCK_BYTES = _BLOCK_BITS // 8
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
_COUNTS = _BITS.sum(axis=1).astype(np.uint8)  # bits of each byte
_PLACES = np.argsort(1 - _BITS, axis=1, kind="stable")  # place of the n-th bit of each byte
_AT_A_TIME = 1 << 14  # samples that are looked up at a time, in a few megabytes
_GOLDEN = 0.6180339887498949

Bits = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """Some of the samples of a dataset, in order. A picklable value.

    With weights, a pass has as many places as there are selected samples, and a sample of weight ``w`` takes
    ``w`` divided by the mean weight of them: rounded up or down in one pass, exactly over many.

    Example:
        >>> import numpy as np
        >>> some = Selection.of([np.array([True, False, False, True, True])])
        >>> some.num_samples, some.samples(np.array([0, 1, 2])).tolist()
        (3, [0, 3, 4])
        >>> some.rank(np.array([0, 3, 5])).tolist()
        [0, 1, 3]
    """

    bits: Bits  # a bit for each sample, the lowest of a byte first; whole blocks of 64 bytes
    rows: int  # number of samples to select from
    weights: Float64Array | None = None  # sum of the weights up to each selected sample; None: one place each
    _before: Int64Array = field(init=False, repr=False)  # selected samples before each block, and all

    def __post_init__(self) -> None:
        counts = np.zeros(len(self.bits) // _BLOCK_BYTES + 1, dtype=np.int64)
        for first in range(0, len(counts) - 1, _AT_A_TIME):
            part = self.bits[first * _BLOCK_BYTES : (first + _AT_A_TIME) * _BLOCK_BYTES]
            sums = _COUNTS[part].reshape(-1, _BLOCK_BYTES).sum(axis=1)
            counts[first + 1 : first + 1 + len(sums)] = sums
        object.__setattr__(self, "_before", np.cumsum(counts))

    @classmethod
    def of(cls, masks: Iterable[Mask], weights: Float64Array | None = None) -> Selection:
        """Make a selection of truth values, in pieces of any length, and weights of the selected samples."""
        parts, rest, rows = list[Bits](), np.zeros(0, dtype=np.bool_), 0
        for mask in masks:
            rows += len(mask)
            joined = np.concatenate([rest, mask]) if len(rest) else mask
            whole = len(joined) // 8 * 8
            parts.append(np.packbits(joined[:whole], bitorder="little"))
            rest = joined[whole:].copy()
        parts.append(np.packbits(rest, bitorder="little"))
        size = sum(map(len, parts))
        parts.append(np.zeros(-size % _BLOCK_BYTES, dtype=np.uint8))
        return cls(np.concatenate(parts), rows, None if weights is None else np.cumsum(weights))

    @property
    def num_samples(self) -> int:
        """Number of places in one pass."""
        return int(self._before[-1])

    def mask(self, first: int, last: int) -> Mask:
        """Return whether each of the samples ``[first, last)`` is selected."""
        begin = first // 8
        found = np.unpackbits(self.bits[begin : (last + 7) // 8], bitorder="little")
        return found[first - 8 * begin : last - 8 * begin].astype(np.bool_)

    def rank(self, samples: Int64Array) -> Int64Array:
        """Count the selected samples before each of some samples; ``rows`` counts as one."""
        if len(samples) > _AT_A_TIME:
            parts = range(0, len(samples), _AT_A_TIME)
            return np.concatenate([self.rank(samples[at : at + _AT_A_TIME]) for at in parts])
        block, place = np.divmod(samples, _BLOCK_BITS)
        inside = np.minimum(block, len(self._before) - 2)
        data = self._blocks(inside)
        lowest = (np.uint16(1) << np.arange(8, dtype=np.uint16)) - np.uint16(1)
        sums = np.cumsum(_COUNTS[data], axis=1, dtype=np.int64)
        row, byte = np.arange(len(samples)), np.minimum(place // 8, _BLOCK_BYTES - 1)
        whole = np.where(byte > 0, sums[row, byte - 1], 0)
        partial = _COUNTS[data[row, byte] & lowest[place % 8].astype(np.uint8)]
        counted: Int64Array = self._before[inside] + whole + partial
        found: Int64Array = np.where(block == inside, counted, self._before[-1])
        return found

    def shard_starts(self, starts: Int64Array) -> Int64Array:
        """Return the number of the first place of each shard, and the total, given those of the samples."""
        ranks = self.rank(starts)
        if self.weights is None:
            return ranks
        sums = np.concatenate([np.zeros(1), self.weights])
        found: Int64Array = np.rint(sums[ranks] * (self.num_samples / sums[-1])).astype(np.int64)
        return found

    def samples(self, places: Int64Array, epoch: int = 0) -> Int64Array:
        """Return the samples at some places of a pass. Without weights, all passes are equal."""
        if len(places) > _AT_A_TIME:
            parts = range(0, len(places), _AT_A_TIME)
            return np.concatenate([self.samples(places[at : at + _AT_A_TIME], epoch) for at in parts])
        if self.weights is not None:
            # Equal steps through the sum of the weights. Multiples of the golden ratio spread the first
            # steps of passes evenly, whichever passes these are.
            total = float(self.weights[-1])
            at = (places + epoch * _GOLDEN % 1.0) * (total / self.num_samples)
            places = np.searchsorted(self.weights, np.minimum(at, np.nextafter(total, 0)), side="right")
        block = np.searchsorted(self._before, places, side="right") - 1
        data = self._blocks(block)
        wanted = places - self._before[block]
        sums = np.cumsum(_COUNTS[data], axis=1, dtype=np.int64)
        byte = (sums <= wanted[:, None]).sum(axis=1)
        row = np.arange(len(places))
        left = wanted - np.where(byte > 0, sums[row, byte - 1], 0)
        found: Int64Array = block * _BLOCK_BITS + byte * 8 + _PLACES[data[row, byte], left]
        return found

    def places(self, sample: int) -> range:
        """Return the range of places that a sample may have in a pass; an empty one if it is not selected.

        Example:
            >>> import numpy as np
            >>> some = Selection.of([np.array([True, False, True, True])])
            >>> some.places(2), some.places(1)
            (range(1, 2), range(0, 0))
        """
        if not self.mask(sample, sample + 1)[0]:
            return range(0)
        number = int(self.rank(np.array([sample], dtype=np.int64))[0])
        if self.weights is None:
            return range(number, number + 1)
        step = float(self.weights[-1]) / self.num_samples
        before = float(self.weights[number - 1]) if number else 0.0
        # The steps of a pass begin with a place of their own within the first one.
        first, last = int(before / step) - 2, int(float(self.weights[number]) / step) + 2
        return range(max(0, first), min(self.num_samples, last))

    def _blocks(self, numbers: Int64Array) -> Bits:
        return self.bits.reshape(-1, _BLOCK_BYTES)[numbers]

    def digest(self, rows: int) -> str:
        """Hash the selection of the first samples. Samples that are added later do not change it."""
        hasher = xxhash.xxh3_64(self.bits[: rows // 8].tobytes())
        hasher.update(np.packbits(self.mask(rows // 8 * 8, rows), bitorder="little").tobytes())
        if self.weights is not None:
            count = int(self.rank(np.array([rows], dtype=np.int64))[0])
            hasher.update(np.ascontiguousarray(self.weights[:count]).tobytes())
        return hasher.hexdigest()
