"""The pure core of planned packing: lengths become packs, and packs become even global steps."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from energon_stream.errors import ConfigError
from energon_stream.rng import derive_key, uniform

if TYPE_CHECKING:
    import numpy.typing as npt

    from energon_stream.arrays import Float64Array, Int64Array

LoadName: TypeAlias = Literal["linear", "quadratic"]
Load: TypeAlias = LoadName | Callable[["Int64Array"], float]
"""Work of a pack: the sum of its lengths, the sum of their squares, or a function of the lengths."""

EVEN = 1.02
"""Largest load over the mean with which steps are dealt at once; else others are tried."""
_EVEN_ENOUGH = 1.04  # the same that is preferred to steps that take less time in all
_WORST = 0.03  # weight of the largest load over the mean beside the time of all steps
_UNIT = 1 << 16  # of loads: their mean. Plans are made of integers, which all machines add up alike
_MOST = 1 << 28  # of a load
_TURNS = 12  # rounds of swaps between the streams of a step
_TOGETHER = 1 << 14  # packs of ways to deal that are tried at once, after the first way
_CHOICE = 8  # packs of a stream that may change places in a round


def pack_lengths(lengths: Int64Array, capacity: int, packs: int | None = None) -> Int64Array | None:
    """Put pieces into packs: the longest first, each into the fullest pack that has room (best fit).

    Returns the pack of each piece; None if ``packs`` do not suffice.

    Example:
        >>> pack_lengths(np.array([2, 3, 4, 7]), capacity=9).tolist()
        [0, 1, 1, 0]
    """
    most = len(lengths) if packs is None else packs
    order = np.argsort(-lengths, kind="stable")
    # A pack is one integer, its room and its number: bisection of a sorted list finds the fullest.
    step = len(lengths) + 1
    rooms: list[int] = []
    opened = 0
    found, times = list[int](), list[int]()
    sizes, counts = np.unique(-lengths, return_counts=True)
    for length, left in zip((-sizes).tolist(), counts.tolist(), strict=True):
        while left:  # the fullest pack that has room has it for as many as fit
            at = bisect_left(rooms, length * step)
            if at < len(rooms):
                room = rooms.pop(at)
            elif opened < most:
                room = capacity * step + opened
                opened += 1
            else:
                return None
            fit = min(left, room // step // length) if length else left
            left -= fit
            room -= fit * length * step
            found.append(room % step)
            times.append(fit)
            if room >= step:  # a full pack is not looked at again
                insort(rooms, room)
    placed = np.empty(len(lengths), dtype=np.int64)
    placed[order] = np.repeat(np.array(found, dtype=np.int64), times)
    return placed


def open_packs(pack: Int64Array, packs: int) -> Int64Array:
    """Open more packs, so that there are ``packs``: each takes the last piece of the pack that has most.

    Returns the pack of each piece.

    Example:
        >>> open_packs(np.array([0, 0, 0, 1]), 3).tolist()
        [0, 0, 2, 1]
    """
    pack = pack.copy()
    for empty in range(int(pack.max()) + 1, packs):
        pack[np.flatnonzero(pack == np.argmax(np.bincount(pack)))[-1]] = empty
    return pack


@dataclass(frozen=True, slots=True)
class PackPiece:
    """A sample in a pack, or a part of one."""

    pack: int  # number of the pack among those of the stream's pass
    place: int  # place in the pack
    count: int  # pieces of the pack
    start: int  # first unit of the sample's length that belongs to the pack
    stop: int  # one past the last


class PieceColumns(NamedTuple):
    """Samples, or parts of them, that go into packs."""

    ref: Int64Array  # number of the reference
    start: Int64Array
    stop: Int64Array


def cut_pieces(lengths: Int64Array, capacity: int) -> PieceColumns:
    """Cut lengths above the capacity into pieces; leave out lengths of 0.

    Example:
        >>> ref, start, stop = cut_pieces(np.array([3, 0, 10]), 4)
        >>> ref.tolist(), start.tolist(), stop.tolist()
        ([0, 2, 2, 2], [0, 0, 4, 8], [3, 4, 8, 10])
    """
    counts = -(-lengths // capacity)
    ref = np.repeat(np.arange(len(lengths), dtype=np.int64), counts)
    start = (np.arange(len(ref)) - np.repeat(np.cumsum(counts) - counts, counts)) * capacity
    return PieceColumns(ref, start, np.minimum(start + capacity, lengths[ref]))


def spread_pieces(
    pieces: PieceColumns, pack: Int64Array, packs: int, cuts: bool
) -> tuple[PieceColumns, Int64Array]:
    """Open more packs, so that there are ``packs``: the last piece of a pack of several gets its own.

    Where no pack has several, ``cuts`` allows to halve the longest piece.
    """
    pack = open_packs(pack, min(packs, len(pack)))
    for used in range(len(pack), packs):
        lengths = pieces.stop - pieces.start
        longest = int(np.argmax(lengths))
        if not cuts or lengths[longest] < 2:
            break
        middle = int(pieces.start[longest] + lengths[longest] // 2)
        pieces = PieceColumns(
            np.insert(pieces.ref, longest, pieces.ref[longest]),
            np.insert(pieces.start, longest + 1, middle),
            np.insert(pieces.stop, longest, middle),
        )
        pack = np.insert(pack, longest + 1, used)
    return pieces, pack


def pack_loads(lengths: Int64Array, pack: Int64Array, packs: int, load: Load) -> Float64Array:
    """Return the load of each pack, given the pack of each piece.

    Example:
        >>> pack_loads(np.array([2, 3, 4, 7]), np.array([0, 1, 1, 0]), 2, "quadratic").tolist()
        [53.0, 25.0]
    """
    if load == "linear":
        return np.bincount(pack, weights=lengths, minlength=packs).astype(np.float64)
    if load == "quadratic":
        return np.bincount(pack, weights=lengths.astype(np.float64) ** 2, minlength=packs).astype(np.float64)
    order = np.argsort(pack, kind="stable")
    ends = np.cumsum(np.bincount(pack, minlength=packs))
    groups = np.split(lengths[order], ends[:-1])
    return np.array([_load_of(group, load) for group in groups], dtype=np.float64)


def _load_of(lengths: Int64Array, load: Callable[[Int64Array], Any]) -> float:
    """Return what a function makes of a pack. Raises ConfigError if that is no number from 0 on."""
    cause: Exception | None = None
    try:
        value = load(lengths)
        if not isinstance(value, str) and 0 <= (number := float(value)) < np.inf:
            return number
        what = f"is {value!r:.80}"
    except Exception as error:
        what, cause = f"cannot be computed: {error!r:.200}", error
    raise ConfigError(
        f"the load of a pack {what}",
        where=f"{getattr(load, '__name__', load)!s:.80} of the lengths {str(lengths.tolist())[:80]}",
        hint="let the function return a finite number from 0 on",
    ) from cause


def in_units(loads: Float64Array) -> Int64Array:
    """Return loads of shape (packs, kinds) in units of a part of the mean of each kind."""
    means = np.array([math.fsum(kind) / max(1, len(loads)) or 1.0 for kind in loads.T])
    scaled: Int64Array = np.minimum(np.rint(loads / means * _UNIT), _MOST).astype(np.int64)
    return scaled


def unevenness(sums: npt.NDArray[Any]) -> Float64Array:
    """Return the largest load over the mean; ``sums`` has ranks in the last axis but one, kinds in the last.

    Example:
        >>> unevenness(np.array([[3, 1], [1, 1]])).tolist()
        [1.5, 1.0]
    """
    total = sums.sum(axis=-2)
    found: Float64Array = np.where(total, sums.max(axis=-2) * sums.shape[-2] / np.maximum(total, 1), 1.0)
    return found


def cost_of(sums: Int64Array) -> tuple[bool, float, float]:
    """Return what tells better steps from worse ones, of loads by step and stream. Last is the worst step."""
    worst = float(unevenness(sums).max())
    time = float(sums.max(axis=1).sum()) * sums.shape[1] / max(1, float(sums.sum() / sums.shape[2]))
    return worst > _EVEN_ENOUGH, time + _WORST * worst, worst


def cost_of_streams(loads: Float64Array, dealt: list[list[int]], step: int) -> tuple[bool, float, float]:
    """Return the cost of the whole steps of ``step`` packs, as of :func:`cost_of`."""
    streams, steps = len(dealt), len(loads) // step
    whole = np.array([own[: steps * step // streams] for own in dealt]).reshape(
        streams, steps, step // streams
    )
    return cost_of(in_units(loads)[whole].sum(axis=2).transpose(1, 0, 2))


def match_rows(loads: Int64Array, rows: Int64Array) -> Int64Array:
    """Give each stream of a step one pack of each row: the heaviest of a row to the lightest stream so far.

    ``rows`` has packs in the shape (steps, rows, streams); returned are packs of (steps, streams, rows).
    """
    found = np.empty((len(rows), rows.shape[2], rows.shape[1]), dtype=np.int64)
    sums = np.zeros((len(rows), rows.shape[2], loads.shape[1]), dtype=np.int64)
    for number in range(rows.shape[1]):
        row = rows[:, number]
        heavy = np.argsort(-loads[row].sum(axis=2), axis=1, kind="stable")
        light = np.argsort(sums.sum(axis=2), axis=1, kind="stable")
        np.put_along_axis(found[:, :, number], light, np.take_along_axis(row, heavy, axis=1), axis=1)
        sums += loads[found[:, :, number]]
    return found


def swap_packs(loads: Int64Array, bins: Int64Array, more: Int64Array | int = 0) -> Int64Array:
    """Let packs of the heavier streams of a step change places with packs of the lighter ones.

    ``bins`` has packs in the shape (steps, streams, packs). Streams go in pairs, and a pair swaps the packs
    that leave the smallest difference. ``more`` is what is added to the loads of each stream in a step.
    """
    steps, streams, size = bins.shape
    half, kinds, begin = streams // 2, loads.shape[1], np.arange(steps)[:, None] * streams
    sums = (loads[bins].sum(axis=2) + more).reshape(-1, kinds).T.copy()
    # Pairs are the last axis, which is long: NumPy's loops over short ones are slow.
    columns, packs = loads.T.copy(), bins.reshape(-1, size).T.copy()
    for turn in range(_TURNS * kinds if half and size > 1 else 0):
        kind = turn % (kinds + 1)
        by = (sums[kind] if kind < kinds else sums.sum(axis=0)).reshape(steps, streams)
        # A stream's number tells it from those of equal loads, and comes out of the sort with them.
        order = np.sort(by * streams + np.arange(streams), axis=1) % streams + begin
        heavy = order[:, ::-1][:, :half].ravel()
        light = order[:, (np.arange(half) - turn // (kinds + 1)) % half].ravel()
        places = (np.arange(min(size, _CHOICE)) + turn * _CHOICE) % size
        given, taken = packs[places[:, None], heavy], packs[places[:, None], light]
        squares = np.zeros((len(places), len(places), len(heavy)), dtype=np.int64)
        before = np.zeros(len(heavy), dtype=np.int64)
        for total, load in zip(sums, columns, strict=True):
            gap = total[heavy] - total[light]
            after = (gap - 2 * load[given])[:, None] + 2 * load[taken]
            squares += np.multiply(after, after, out=after)
            before += gap**2
        pair = np.flatnonzero(squares.min(axis=(0, 1)) < before)
        best = squares.reshape(-1, len(heavy))[:, pair].argmin(axis=0)
        mine, yours = np.divmod(best, len(places))
        one, other, first, second = heavy[pair], light[pair], given[mine, pair], taken[yours, pair]
        packs[places[mine], one], packs[places[yours], other] = second, first
        for total, load in zip(sums, columns, strict=True):
            shift = load[first] - load[second]
            total[one] -= shift
            total[other] += shift
    return packs.T.reshape(bins.shape)


def deal_own(units: Int64Array, every: Int64Array, steps: int, rounds: int) -> Int64Array:
    """Deal the packs of each stream to steps. Where one must have a heavier step, that of all is as heavy.

    ``every`` has packs in the shape (streams, packs); returned are packs of (streams, steps, packs).
    """
    ranked = np.take_along_axis(every, np.argsort(-units[every, 0], axis=1, kind="stable"), axis=1)
    dealt = swap_packs(units, match_rows(units, ranked.reshape(len(every), -1, steps)))
    for _ in range(rounds):
        sums = units[dealt].sum(axis=(2, 3))
        heavy = np.argsort(-sums, axis=1, kind="stable")
        dealt = np.take_along_axis(dealt, heavy[:, :, None], axis=1)
        most = np.take_along_axis(sums, heavy, axis=1).max(axis=0)
        dealt = swap_packs(units, dealt, (most[0] - most)[:, None])
    return dealt


def rows_of_steps(ranked: Int64Array, steps: int, streams: int, key: int) -> Iterator[Int64Array]:
    """Yield ways to deal ranked packs to steps, as arrays of shape (steps, rows, streams).

    A band of neighbours is dealt to some steps at random. With bands for all steps, each has packs of all
    loads. Narrower ones make the packs of a row more alike: these go to steps in turn, or those of similar
    loads come together in a step. Last, some steps have the heaviest packs.
    """
    rows, draws = len(ranked) // (steps * streams), uniform(derive_key(key, "bands"), ranked)
    for share in (number for number in range(steps, 0, -1) if steps % number == 0):
        places = np.argsort(draws.reshape(-1, streams, share), axis=2, kind="stable")
        bands = np.take_along_axis(ranked.reshape(-1, streams, share), places, axis=2)
        together = bands.reshape(steps // share, rows, streams, share)
        yield together.transpose(0, 3, 1, 2).reshape(steps, rows, streams)
        if share < steps and rows > 1:
            in_turn = bands.reshape(rows, steps // share, streams, share)
            yield in_turn.transpose(1, 3, 0, 2).reshape(steps, rows, streams)
    for heavy in range(1, steps if rows > 1 else 1):
        parts = np.split(ranked, [heavy * rows * streams])
        counts = heavy, steps - heavy
        each = zip(parts, counts, strict=True)
        yield np.concatenate([next(rows_of_steps(own, count, streams, key)) for own, count in each])


def _swapped(loads: Int64Array, ways: Iterator[Int64Array]) -> Iterator[Int64Array]:
    """Yield the packs of steps and streams of each way, after swaps: many ways at once if packs are few."""
    size = 1
    while some := list(islice(ways, size)):
        steps = len(some[0])
        bins = swap_packs(loads, match_rows(loads, np.concatenate(some)))
        yield from (bins[at : at + steps] for at in range(0, len(bins), steps))
        size = max(1, _TOGETHER // some[0].size)


def order_streams(sums: Int64Array, key: int) -> Int64Array:
    """Return which of a step's shares each stream gets: even for fewer ranks, too, and none the heaviest.

    Shares become pairs (or more, by the factors of their number), heavy ones with light ones, and pairs
    become pairs, until one is left; places in a pair are drawn. ``sums`` has the shape (steps, streams).
    """
    steps, streams = sums.shape
    every, factors, left = np.arange(steps)[:, None], list[int](), streams
    members = np.broadcast_to(np.arange(streams)[:, None], (steps, streams, 1))
    while left > 1:
        factor = next(number for number in range(2, left + 1) if left % number == 0)
        left //= factor
        ranked = np.argsort(sums, axis=1, kind="stable").reshape(steps, factor, left)
        ranked[:, 1::2] = ranked[:, 1::2, ::-1].copy()
        draws = uniform(derive_key(key, "places", left), np.arange(ranked.size)).reshape(ranked.shape)
        ranked = np.take_along_axis(ranked, np.argsort(draws, axis=1, kind="stable"), axis=1)
        groups = ranked.transpose(0, 2, 1).reshape(steps, left * factor)
        members = members[every, groups].reshape(steps, left, streams // left)
        sums = sums[every, groups].reshape(steps, left, factor).sum(axis=2)
        factors.insert(0, factor)
    # Rank r of R has the streams s with s % R == r: the first groups differ in the lowest digit of s.
    digits = members.reshape(steps, *factors)
    return digits.transpose(0, *range(len(factors), 0, -1)).reshape(steps, streams)


def rankings(
    units: Int64Array, packs: Int64Array, key: int, *, each: bool, drawn: bool
) -> Iterator[Int64Array]:
    """Yield packs, the heaviest first: by all kinds of load together, and by each.

    Of equal ones, that comes first which is heavier in all kinds, or one is ``drawn``.
    """
    ties = uniform(derive_key(key, "ties"), packs)
    kinds = units[packs].T
    every = kinds.sum(axis=0)
    for by in [every, *(kinds if each and len(kinds) > 1 else ())]:
        yield packs[np.lexsort((ties, -by if drawn else -every, -by))]


def deal_packs(
    loads: Float64Array, step: int, streams: int, key: int, *, drawn: bool = True
) -> list[list[int]]:
    """Deal packs to global steps and streams, so that the streams' loads of each kind are even in each step.

    Steps have packs of all loads if they can be dealt evenly so. Few packs of a stream, or a pack that is
    heavier than the mean of a stream, make that impossible; then steps have packs of fewer loads, down to
    packs that are next to each other in load. Where nothing is even, the largest loads of all steps together
    are as small as can be. ``step``, the packs of a step, is a multiple of the streams; the rest of the
    division comes last. ``loads`` has a column for each kind. Packs of equal loads come in the order of
    :func:`rankings`.
    """
    units, steps = in_units(loads), len(loads) // step
    order = np.argsort(uniform(derive_key(key, "rest"), np.arange(len(loads))), kind="stable")
    last, whole = np.sort(order[steps * step :]), np.sort(order[: steps * step])
    dealt = np.zeros((0, streams, step // streams), dtype=np.int64)
    least = (True, math.inf, math.inf)
    for ranked in rankings(units, whole, key, each=step == streams, drawn=drawn) if steps else ():
        for bins in _swapped(units, rows_of_steps(ranked, steps, streams, key)):
            cost = cost_of(units[bins].sum(axis=2))
            if cost < least:
                dealt, least = bins, cost
            if cost[2] <= EVEN:
                break
        if not least[0]:
            break
    dealt = np.take_along_axis(dealt, order_streams(units[dealt].sum(axis=(2, 3)), key)[:, :, None], axis=1)
    dealt = dealt[np.argsort(uniform(derive_key(key, "order"), np.arange(steps)), kind="stable")]
    draws = uniform(derive_key(key, "rows"), dealt)
    dealt = np.take_along_axis(dealt, np.argsort(draws, axis=2, kind="stable"), axis=2)
    # Of the rest, the first streams may have a pack more, which is a light one.
    rest = last[np.argsort(-units[last].sum(axis=1), kind="stable")]
    whole_rows = len(rest) // streams
    more = match_rows(units, rest[: whole_rows * streams].reshape(1, whole_rows, streams))[0]
    found = np.concatenate(
        [dealt.transpose(1, 0, 2).reshape(streams, steps * (step // streams)), more], axis=1
    )
    extra = rest[whole_rows * streams :].tolist()
    return [[*own, *extra[number : number + 1]] for number, own in enumerate(found.tolist())]
