"""Weights of a blend that change at batches of the job, and draws that follow them to the sample.

Batch k of the job, counted over all ranks, is batch ``k // num_streams`` of stream ``k % num_streams``. So
such a number is a reference in each stream, which neither the number of ranks nor that of workers moves. A
stream counts as if each batch took as many references as the batch size says: what is skipped or packed later
does not move the change.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from energon_stream.errors import ConfigError
from energon_stream.rng import hash_uint64

if TYPE_CHECKING:
    from energon_stream.arrays import Int64Array

_WORD = 32  # sources for which a cursor has one integer


class WeightChange(NamedTuple):
    """Weights that hold from a place on, one for each source."""

    begin: int  # batch of the job; in the schedule of a stream, one of its references
    weights: tuple[float, ...]

    def of(self, sources: Iterable[int]) -> WeightChange:
        """Return the weights of these sources, in their order."""
        return self._replace(weights=tuple(self.weights[source] for source in sources))


def first_reference(batch: int, num_streams: int, stream: int, per_batch: int) -> int:
    """Return the first reference of a stream that belongs to a batch of the job or to a later one."""
    return max(0, -(-(batch - stream) // num_streams)) * per_batch


def first_batch(reference: int, num_streams: int, stream: int, per_batch: int) -> int:
    """Return the first batch of the job whose :func:`first_reference` is ``reference`` or a later one."""
    batches = -(-reference // per_batch)
    return 0 if not batches else (batches - 1) * num_streams + stream + 1


def changes_in_stream(
    changes: Iterable[WeightChange], num_streams: int, stream: int, per_batch: int
) -> tuple[WeightChange, ...]:
    """Return changes by the references of one stream; of several at one reference, the last."""
    by_reference = {
        first_reference(change.begin, num_streams, stream, per_batch): change.weights for change in changes
    }
    return tuple(WeightChange(*each) for each in sorted(by_reference.items()))


def check_weights(weights: Sequence[float], where: str | None = None) -> None:
    """Raise ConfigError unless weights are finite and none is negative, and some are positive."""
    if not all(weight >= 0 and math.isfinite(weight) for weight in weights):
        raise ConfigError(f"weights {list(weights)!r:.200}", where=where, hint="use finite numbers from 0 on")
    if not any(weights):
        raise ConfigError(
            "all weights are 0", where=where, hint="leave some dataset a weight, or end the training"
        )


class EvenDraws:
    """Draws that follow weights: after n draws, a source of share w has ``floor(n w)`` or ``ceil(n w)``.

    The m-th draw of a source may come once the source's share has begun its m-th sample, and must come before
    its share ends it. Each draw takes, of all sources that may come, the source that must come first. There
    always is one, and no draw comes late (R. Tijdeman: "The chairman assignment problem", 1980). The numbers
    are integers, so no draw depends on rounding.

    Whether a source has the larger of its two numbers is one bit: that is all the state beside n. ``key``
    decides between sources that must come at the same draw, so that streams do so differently.
    """

    def __init__(self, weights: Sequence[float], key: int) -> None:
        ratios = [float(weight).as_integer_ratio() for weight in weights]
        most = max(below for _, below in ratios)  # powers of two: each divides the largest
        parts = [above * (most // below) for above, below in ratios]
        common = math.gcd(*parts)
        self._parts = [part // common for part in parts]
        self._total = sum(self._parts)
        self._rank = np.argsort(hash_uint64(key, np.arange(len(parts), dtype=np.int64))).argsort().tolist()

    def counts(self, draws: int, ahead: int) -> list[int]:
        """Return the draws of each source; bit i of ``ahead`` adds one to the whole part of i's share."""
        total = self._total
        return [part * draws // total + (ahead >> number & 1) for number, part in enumerate(self._parts)]

    def take(self, draws: int, ahead: int, count: int) -> tuple[Int64Array, int]:
        """Return the sources of the next draws, and ``ahead`` after them."""
        parts, total, rank = self._parts, self._total, self._rank
        counts = self.counts(draws, ahead)
        waiting: list[tuple[int, int]] = []  # (the first draw that may be the source's next one, source)
        ready: list[tuple[int, int, int]] = []  # (one past the last draw that may be it, rank, source)
        for source, part in enumerate(parts):
            if part:
                waiting.append((counts[source] * total // part, source))
        heapify(waiting)
        chosen = np.empty(count, dtype=np.int64)
        for place in range(count):
            while waiting and waiting[0][0] <= draws + place:
                source = heappop(waiting)[1]
                due = -(-(counts[source] + 1) * total // parts[source])
                heappush(ready, (due, rank[source], source))
            source = heappop(ready)[2]
            chosen[place] = source
            counts[source] += 1
            heappush(waiting, (counts[source] * total // parts[source], source))
        after = draws + count
        now = enumerate(zip(counts, parts, strict=True))
        return chosen, sum((number - part * after // total) << source for source, (number, part) in now)


def to_words(ahead: int, sources: int) -> tuple[int, ...]:
    """Return the bits of some sources as integers that any format can hold."""
    return tuple(ahead >> first & (1 << _WORD) - 1 for first in range(0, sources, _WORD))


def from_words(words: Sequence[int]) -> int:
    """Return the bits that :func:`to_words` wrote."""
    return sum(word << _WORD * place for place, word in enumerate(words))
