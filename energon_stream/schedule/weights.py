"""Weights of a blend that change at batches of the job, and draws that follow them to the sample.

Batch k of the job, counted over all ranks, is batch ``k // num_streams`` of stream ``k % num_streams``. So
such a number is a reference in each stream, which neither the number of ranks nor that of workers moves. A
stream counts as if each batch took as many references as the batch size says: what is skipped or packed later
does not move the change.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import zip_longest
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from energon_stream.arrays import Int64Array
from energon_stream.errors import ConfigError
from energon_stream.fork import PerProcess
from energon_stream.schedule.foresight import Foresight
from energon_stream.schedule.lines import (
    STAIRS,
    WHOLE,
    Drawn,
    Lines,
    RampRounds,
    Slope,
    stretch_of,
)
from energon_stream.schedule.rounds import EvenState, SharedRounds

UNFORESEEN, IN_STAIRS, ALONG_LINES, BY_SEGMENTS = 0, 1, 2, 3
"""Versions of even draws, which states and records of runs may have: the first one foresees no changes, and
only the last one plans for each change what comes before it."""
_MOST_CUTS = 1 << 13  # changes times sources up to which it is planned what comes before each change
_MOST_LEAD = 1 << 31  # parts of samples that streams are never ahead of others
_SHARED: PerProcess[WeakValueDictionary[Any, SharedRounds]] = PerProcess()
"""Rounds of all even draws that a process has, by what they depend on."""


class WeightChange(NamedTuple):
    """Weights that hold from a place on, one for each source."""

    begin: int  # batch of the job; in the schedule of a stream, one of its references
    weights: tuple[float, ...]
    along: Lines | None = None  # by which weights go on from there; None where they stay

    def of(self, sources: Iterable[int]) -> WeightChange:
        """Return the weights of these sources, in their order."""
        return self._replace(weights=tuple(self.weights[source] for source in sources))

    def scaled(self, factors: Sequence[float]) -> WeightChange:
        """Return weights that are multiplied by one factor each."""
        weights = tuple(weight * factor for weight, factor in zip(self.weights, factors, strict=True))
        return WeightChange(self.begin, weights, self.along and self.along.scaled(factors))


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


@lru_cache(8)
def changes_along(lines: Lines) -> tuple[WeightChange, ...]:
    """Return all weights of some lines: of each batch of a short one, and long ones as what they are."""
    begins, found = lines.begins(), list[WeightChange]()
    for begin, end in zip_longest(begins, begins[1:]):
        is_ramp = lines.is_ramp(begin)
        single = is_ramp and end - begin <= STAIRS
        places = np.arange(end - begin if single else 1, dtype=np.float64) + (begin + 0.5 * single)
        for batch, each in enumerate(stretch_of(lines, begin).weights(places).T.tolist(), begin):
            found.append(WeightChange(batch, tuple(each), lines if is_ramp and not single else None))
    return tuple(found)


def check_weights(weights: Sequence[float], where: str | None = None) -> None:
    """Raise ConfigError unless weights are finite and none is negative, and some are positive."""
    if not all(weight >= 0 and math.isfinite(weight) for weight in weights):
        raise ConfigError(f"weights {list(weights)!r:.200}", where=where, hint="use finite numbers from 0 on")
    if not any(weights):
        raise ConfigError(
            "all weights are 0", where=where, hint="leave some dataset a weight, or end the training"
        )


class EvenDraws:
    """Draws of several streams together, which follow weights to the sample.

    In a *round*, each stream draws a batch. At the end of a round, the draws of all streams are, for each
    source, within one of its share. Of the sources whose share has begun another sample, those come whose
    share ends it first (R. Tijdeman: "The chairman assignment problem", 1980). What a source is behind is
    carried over changes of the weights. ``planned`` changes are foreseen (:class:`Foresight`), those at
    ``knots``, batches at which segments begin, exactly; others, which are set under way, are not.

    Which stream has which of a round's draws: the streams are halved, and each source's draws with them,
    the odd ones to the half that is behind, until a stream is alone. So each stream follows the weights, too.

    The state has a tuple of what each source is behind its share, and for each halving on the stream's way
    one of what the left half is ahead. All are integers, so nothing is rounded.
    """

    def __init__(
        self,
        weights: Sequence[WeightChange],
        streams: Sequence[int],
        stream: int,
        num_streams: int,
        per_batch: int,
        planned: Sequence[WeightChange] = (),
        knots: Sequence[int] | None = None,
    ) -> None:
        self.streams = streams
        self._per_batch, self._own = per_batch, streams.index(stream)
        key = (
            tuple(weights),
            _hashable(streams),
            num_streams,
            per_batch,
            tuple(planned),
            knots and tuple(knots),
        )
        shared = _SHARED.map(None, WeakValueDictionary)
        if (rounds := shared.get(key)) is None:
            draw = _JobDraws(*key).rounds
            rounds = shared[key] = SharedRounds(draw, len(streams), per_batch, len(weights[0].weights))
        self._rounds: SharedRounds = rounds

    def fresh(self, step: int) -> EvenState:
        """Return the state at a reference, counted anew from some round on that streams nearby share."""
        return self._rounds.fresh(self._own, step // self._per_batch)

    def go_on(self, step: int, state: EvenState) -> None:
        """Note where a stream goes on, so that the streams of a process draw together."""
        if self.is_state(state):
            self._rounds.go_on(self._own, step // self._per_batch, state)

    def is_state(self, state: EvenState) -> bool:
        """Return True if draws may stand there."""
        start = self._rounds.start(self._own)
        if [*map(len, state)] != [*map(len, start)] or any(map(sum, state)):
            return False
        behind, *leads = (max(map(abs, column)) for column in state)
        return behind < 64 * WHOLE and max(leads, default=0) < _MOST_LEAD

    def take(self, step: int, state: EvenState, count: int) -> tuple[Int64Array, EvenState]:
        """Return the sources of the next references, and the state before the batch that comes then."""
        size, end = self._per_batch, step + count
        first = step // size
        chosen, after = self._rounds.take(self._own, first, state, -(-end // size), end // size)
        return chosen[step - first * size :][:count], after


class _JobDraws:
    """The draws of all streams of even draws together."""

    def __init__(
        self,
        weights: Sequence[WeightChange],
        streams: Sequence[int],
        num_streams: int,
        per_batch: int,
        planned: Sequence[WeightChange],
        knots: Sequence[int] | None,
    ) -> None:
        self._streams, self._num_streams, self._per_batch = streams, num_streams, per_batch
        self._begins = [change.begin for change in weights]
        self._shares = [
            shares_of(change.weights)
            if change.along is None
            else RampRounds(stretch_of(change.along, change.begin), streams, num_streams)
            for change in weights
        ]
        draws = tuple(per_batch * self._batches(change.begin) for change in planned)
        if knots and planned:
            # Of a long ramp, a part of the streams has some batches only, and many cut samples take seconds.
            is_rough = len(streams) < num_streams and any(change.along for change in planned)
            if is_rough or len(knots) * len(planned[0].weights) > _MOST_CUTS:
                knots = ()
        stops = None if knots is None else frozenset(per_batch * self._batches(each) for each in knots)
        self._foresight = _foresight(draws, tuple(planned), stops) if len(planned) > 1 else None
        pairs = zip_longest(weights, planned, fillvalue=WeightChange(1 << 62, ()))
        unlike = (min(one.begin, other.begin) for one, other in pairs if one != other)
        self._unforeseen = next(unlike, math.inf)

    def rounds(
        self, first: int, count: int, behind: tuple[int, ...]
    ) -> tuple[list[list[tuple[int, int, Drawn]]], list[tuple[int, ...]]]:
        """Return the draws of some rounds, as of :meth:`draw`, and what each source is behind after each."""
        at = bisect_right(self._begins, first * self._num_streams)
        shares, is_same = (
            self._shares[at - 1],
            at == bisect_left(self._begins, (first + count) * self._num_streams),
        )
        is_single = is_same and self._foresight is None and len(self._streams) * self._per_batch == 1
        found, after = list[list[tuple[int, int, Drawn]]](), list[tuple[int, ...]]()
        if is_single and not isinstance(shares, RampRounds):
            for source, then in _draw_singles(behind, shares, count):
                found.append(_single(source))
                after.append(then)
        while len(found) < count:
            parts, then = self.draw(first + len(found), after[-1] if after else behind)
            found.append(parts)
            after.append(then)
        return found, after

    def draw(
        self, number: int, behind: tuple[int, ...]
    ) -> tuple[list[tuple[int, int, Drawn]], tuple[int, ...]]:
        """Return the draws of a round, by the streams that have them, and what each source is behind then."""
        size, found = self._per_batch, []
        for begin, end, shares in self._parts(number):
            foresight, at = self._foresight, (number * len(self._streams) + end) * size
            is_foreseen = number * self._num_streams + self._streams[begin] < self._unforeseen
            if foresight is None or not is_foreseen or not foresight.is_near(at):
                foresight, at = None, 0
            count = (end - begin) * size
            if isinstance(shares, RampRounds):
                sums = shares.sums(number, begin, end)
                drawn, behind = _draw.__wrapped__(behind, sums, size, count, foresight, at)
            else:
                drawn, behind = _draw(behind, shares, count, count, foresight, at)
            found.append((begin, end, drawn))
        return found, behind

    def _batches(self, batch: int) -> int:
        """Return how many batches these streams have before one of the job."""
        number, stream = divmod(batch, self._num_streams)
        return number * len(self._streams) + bisect_left(self._streams, stream)

    def _parts(self, number: int) -> Iterator[tuple[int, int, Drawn | RampRounds]]:
        """Yield places of streams and their shares in a round: weights may change within it."""
        batch, begin = number * self._num_streams, 0
        at = bisect_right(self._begins, batch) - 1
        while begin < len(self._streams):
            end = len(self._streams)
            if at + 1 < len(self._begins):
                end = bisect_left(self._streams, self._begins[at + 1] - batch)
            if end > begin:
                yield begin, end, self._shares[at]
                begin = end
            at += 1


@lru_cache(4096)
def shares_of(weights: tuple[float, ...]) -> Drawn:
    """Return the sources with a weight, and the share of each in parts of ``WHOLE``."""
    ratios = {source: Fraction(weight) for source, weight in enumerate(weights) if weight}
    total = sum(ratios.values())
    shares = {source: max(1, int(ratio * WHOLE / total)) for source, ratio in ratios.items()}
    if shares:
        shares[max(shares, key=shares.__getitem__)] += WHOLE - sum(shares.values())
    return tuple(shares.items())


@lru_cache(16)
def _foresight(
    draws: tuple[int, ...], planned: tuple[WeightChange, ...], knots: frozenset[int] | None
) -> Foresight:
    if knots is not None:  # of several changes at one draw, the last one holds
        by_draw = dict(zip(draws, planned, strict=True))
        draws, planned = tuple(by_draw), tuple(by_draw.values())
    shares, slopes = list[Drawn](), dict[int, Slope]()
    for at, change in enumerate(planned):
        if change.along is None or draws[at] == draws[at + 1]:
            shares.append(shares_of(change.weights))
        else:
            slopes[at] = slope = Slope(stretch_of(change.along, change.begin), draws[at], draws[at + 1])
            shares.append(tuple((source, 0) for source in slope.sources))
    return Foresight(draws, shares, slopes, knots)


def _hashable(streams: Sequence[int]) -> Sequence[int]:
    return streams if isinstance(streams, range) else tuple(streams)


@lru_cache(4096)
def _single(source: int) -> list[tuple[int, int, Drawn]]:
    return [(0, 1, ((source, 1),))]


def _draw_singles(
    behind: tuple[int, ...], shares: Drawn, count: int
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield the source of some draws, and what each source is behind then, as :func:`_draw` does for each.

    It ends early where two samples are due at once.
    """
    now = list(behind)
    for _ in range(count):
        chosen, least, most = -1, 0, 0
        for source, share in shares:
            rest = now[source] = now[source] + share
            if rest >= WHOLE:
                chosen, least, most = source, -1, most + 1
            elif rest > 0 and least >= 0 and (chosen < 0 or (rest - WHOLE) // -share < least):
                chosen, least = source, (rest - WHOLE) // -share
        if chosen < 0 or most > 1:
            return
        now[chosen] -= WHOLE
        yield chosen, tuple(now)


@lru_cache(4096)
def _draw(
    behind: tuple[int, ...], shares: Drawn, times: int, count: int, foresight: Foresight | None, at: int
) -> tuple[Drawn, tuple[int, ...]]:
    """Return how many of some draws, up to the one ``at``, each source has, and what each is behind then.

    The ``shares`` of all sources, ``times`` over, make ``count`` draws.
    """
    drawn, left, waiting, after = {}, count, [], list(behind)
    for source, share in shares:
        whole, rest = divmod(behind[source] + times * share, WHOLE)
        if whole < 0:
            whole, rest = 0, rest + whole * WHOLE
        drawn[source], after[source], left = whole, rest, left - whole
        # Of those whose share has begun a sample, the one comes first that ends it first.
        is_late, due = (
            foresight.end(source, WHOLE - rest, at)
            if foresight
            else (False, (rest - WHOLE) * count // -(share * times))
        )
        waiting.append((rest <= 0 or is_late, due, source))
    more = 1 if left > 0 else -1
    waiting.sort(reverse=left < 0)
    while left:  # mostly once
        for _, _, source in waiting:
            if left and drawn[source] + more >= 0:
                drawn[source] += more
                after[source] -= more * WHOLE
                left -= more
    return tuple(each for each in drawn.items() if each[1]), tuple(after)
