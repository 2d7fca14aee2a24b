"""Rounds of draws, dealt to streams by halves, for all streams of a process at once. No I/O."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from operator import sub
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from energon_stream.schedule.lines import Drawn

if TYPE_CHECKING:
    from energon_stream.arrays import Int16Array, Int32Array, Int64Array

_TOGETHER, _DRAWS = 64, 1 << 16
"""Rounds that are drawn together, or as many as have so many draws."""
_MOST, _MOST_NUMBERS = 512, 1 << 22
"""Rounds that are drawn together at most, and numbers of members in them."""
_KEPT, _KEPT_BYTES = 1 << 15, 64 << 20
"""Rounds that are kept, and their bytes: what is taken ahead is counted again when it is consumed."""
_NUMBER_BYTES = 48  # of an integer in a tuple
_FEW = 100  # leads of halves that are sooner dealt to one by one
_STATES = 4  # states of a stream that are kept: of what looks ahead, and of what is consumed
_NEAR = 64  # rounds between streams that draw together
_ANEW = 1024  # rounds that are drawn again where draws are counted anew

EvenState: TypeAlias = tuple[tuple[int, ...], ...]
"""Where even draws of a stream stand; see ``EvenDraws``."""
DrawRounds: TypeAlias = (
    "Callable[[int, int, tuple[int, ...]], tuple[list[list[tuple[int, int, Drawn]]], list[tuple[int, ...]]]]"
)
"""Given the number of a round, how many are wanted, and what each source is behind, returns for each of them
what places of streams draw, and what each source is behind then."""


class _Halves:
    """Halves of the streams, down to each member alone. Halves without a member are left out."""

    def __init__(self, streams: int, members: Sequence[int]) -> None:
        self.members = members
        self.paths: list[list[int]] = [[] for _ in members]
        bounds, depths = list[tuple[int, int, int]](), list[int]()
        # Both sides of each half: another one, a member behind all halves, or nobody, behind all members.
        sides, alone = list[list[int]](), dict[int, list[int]]()
        todo = [(0, streams, -1, 0)]
        for begin, end, parent, side in todo:
            first, last = self.within(begin, end)
            if first == last:
                continue
            depth = depths[parent] + 1 if parent >= 0 else 0
            if end - begin == 1:
                alone.setdefault(depth, []).append(first)
            if parent >= 0:
                sides[parent][side] = len(bounds) if end - begin > 1 else streams + first
            if end - begin > 1:
                for path in self.paths[first:last]:
                    path.append(len(bounds))
                middle = (begin + end) // 2
                todo += [(begin, middle, len(bounds), 0), (middle, end, len(bounds), 1)]
                depths.append(depth)
                bounds.append((begin, middle, end))
                sides.append([streams + len(members)] * 2)
        self._bounds = np.array(bounds, dtype=np.int64).reshape(-1, 3).T
        found = np.array(sides, dtype=np.int64).reshape(-1, 2).T
        self._sides = found - (streams - len(bounds)) * (found >= streams)
        self._depths = np.array(depths, dtype=np.int64)
        self._alone = [(depth, np.array(each)) for depth, each in alone.items()]

    def __len__(self) -> int:
        return len(self._depths)

    def within(self, begin: int, end: int) -> tuple[int, int]:
        """Return the number of the first member of some streams, and one past that of the last."""
        return bisect_left(self.members, begin), bisect_left(self.members, end)

    def deal(
        self, dealt: Int64Array, begin: int, end: int, size: int, leads: Int64Array, history: Int32Array
    ) -> Int32Array:
        """Return how many draws members have of each source, ``int32 [rounds, members, sources]``.

        ``dealt``, ``[rounds, sources]``, are the draws of the streams from ``begin`` to ``end``, ``size`` of
        each. ``leads`` say for each half what its left side is ahead in each source, in parts of its
        streams; they are brought up to the last round, and ``history`` has them after each.
        """
        rounds, halves = len(dealt), len(self)
        found = np.zeros((rounds, len(self.members), dealt.shape[1]), dtype=np.int32)
        if not halves:
            found[:, 0] = dealt
            return found
        first, middle, last = np.clip(self._bounds, begin, end)
        left, of = (middle - first)[:, None], np.maximum(last - first, 1)[:, None]
        if leads.size < _FEW:
            self._deal_to_few(dealt, left[:, 0].tolist(), of[:, 0].tolist(), size, leads, history, found)
            return found
        counts = np.zeros((halves + len(self.members) + 1, dealt.shape[1]), dtype=np.int64)
        # A half deals a round while the half above it deals the next one.
        for wave in range(rounds + int(self._depths[-1])):
            counts[0] = dealt[min(wave, rounds - 1)]
            begin, end = np.searchsorted(self._depths, (wave - rounds + 1, wave + 1)).tolist()
            own = slice(begin, end)
            whole = _to_the_left(counts[own], left[own], of[own], size, leads[own])
            others = counts[own] - whole
            counts[self._sides[0, own]], counts[self._sides[1, own]] = whole, others
            history[wave - self._depths[own], np.arange(begin, end)] = leads[own]
            for depth, members in self._alone:
                if depth <= wave + 1 < depth + rounds:
                    found[wave + 1 - depth, members] = counts[halves + members]
        return found

    def _deal_to_few(
        self,
        dealt: Int64Array,
        left: list[int],
        of: list[int],
        size: int,
        leads: Int64Array,
        history: Int32Array,
        found: Int32Array,
    ) -> None:
        """Deal as :meth:`deal` does, sooner for few halves."""
        own, sides = list(map(tuple, leads.tolist())), self._sides.T.tolist()
        for number, drawn in enumerate(map(tuple, dealt.tolist())):
            counts = [drawn] * (len(self) + len(self.members) + 1)
            for half, (one, other) in enumerate(sides):
                counts[one], counts[other], own[half] = _halve(
                    counts[half], left[half], of[half], size, own[half]
                )
            history[number], found[number] = own, counts[len(self) : -1]
        leads[:] = own


@lru_cache(1 << 14)  # halves of few draws are alike in many rounds
def _halve(
    counts: tuple[int, ...], left: int, of: int, size: int, leads: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return what both sides of a half have of its draws, and its leads then, as of :func:`_to_the_left`."""
    due = [count * left - lead for count, lead in zip(counts, leads, strict=True)]
    whole = [min(max(each // of, 0), count) for each, count in zip(due, counts, strict=True)]
    missing = left * size - sum(whole)
    if missing:
        more, sources = (1 if missing > 0 else -1), range(len(counts))
        order = sorted(sources, key=lambda source: (whole[source] * of - due[source], source))[::more]
        while missing:  # mostly once
            for source in order:
                if missing and 0 <= whole[source] + more <= counts[source]:
                    whole[source] += more
                    missing -= more
    after = tuple([each * of - was for each, was in zip(whole, due, strict=True)])
    return tuple(whole), tuple(map(sub, counts, whole)), after


def _to_the_left(
    counts: Int64Array, left: Int64Array, of: Int64Array, size: int, leads: Int64Array
) -> Int64Array:
    """Return how many of the draws of halves go to the left side, and bring ``leads`` up to these.

    ``left`` of a half's ``of`` streams are on its left side, and each has ``size`` draws.
    """
    due = counts * left - leads
    whole: Int64Array = np.minimum(np.maximum(due // of, 0), counts)
    leads[:] = whole * of - due
    missing = left[:, 0] * size - whole.sum(axis=1)
    rows = np.flatnonzero(missing)
    if len(rows):
        # The sources whose share comes first have one more, or those whose share comes last one less.
        sources, more, missing = counts.shape[1], np.sign(missing[rows])[:, None], np.abs(missing[rows])
        order = np.argsort((leads[rows] * sources + np.arange(sources)) * more, axis=1)
        at = order + rows[:, None] * sources
        most, before = counts.reshape(-1)[at], whole.reshape(-1)[at]
        after = before.copy()
        while missing.any():  # mostly once
            able = (after + more >= 0) & (after + more <= most)
            able &= np.cumsum(able, axis=1) <= missing[:, None]
            after += able * more
            missing -= able.sum(axis=1)
        whole.reshape(-1)[at] = after
        leads.reshape(-1)[at] += (after - before) * of[rows]
    return whole


def _small(numbers: Int32Array) -> Int16Array | Int32Array:
    """Return numbers in half of the bytes, if they fit."""
    fits = not numbers.size or -(1 << 15) <= numbers.min() <= numbers.max() < 1 << 15
    return numbers.astype(np.int16) if fits else numbers


class _Chunk(NamedTuple):
    """Some rounds, for the members of some halves."""

    first: int
    halves: _Halves
    sources: Int16Array | Int32Array  # of the draws, [rounds, members, draws]
    behind: list[tuple[int, ...]]  # what each source is behind before each round, and at the end
    leads: Int16Array | Int32Array  # of the halves then, [rounds + 1, halves, sources]

    def state(self, stream: int, number: int) -> EvenState | None:
        """Return where a stream stands before a round; None if it is no member."""
        for member in range(*self.halves.within(stream, stream + 1)):
            leads = self.leads[number - self.first, self.halves.paths[member]].tolist()
            return self.behind[number - self.first], *map(tuple, leads)
        return None


class Rounds:
    """The rounds of some streams from one on, which are drawn when they are wanted.

    ``size`` draws of a round are each stream's. Streams :meth:`join` before theirs are taken.
    """

    def __init__(self, draw: DrawRounds, streams: int, size: int, first: int) -> None:
        self._draw, self._streams, self._size = draw, streams, size
        self._stride = next(n for n in range(size * 5 // 8 + 1, 0, -1) if math.gcd(n, size) == 1)
        self.first: int = first  # number of the first round, which may not be kept
        self.end: int = first  # number of the next round
        self._chunks: list[_Chunk] = []
        self._known: dict[tuple[int, int], EvenState] = {}  # states that were asked for

    def join(self, states: Mapping[int, EvenState]) -> None:
        """Let more streams take part from the end on, but for those whose states do not fit there."""
        last = self._chunks[-1] if self._chunks else None
        behind = next(iter(states.values()))[0] if last is None else last.behind[-1]
        before = () if last is None else last.halves.members
        own = {stream: state for stream in before if (state := self.state(stream, self.end))}
        new = {stream: state for stream, state in states.items() if state[0] == behind}
        halves, leads = _Halves(self._streams, sorted({*own, *new})), dict[int, tuple[int, ...]]()
        for stream, state in (*own.items(), *new.items()):  # of two for a half, the first one holds
            path = halves.paths[halves.within(stream, stream)[0]]
            for half, lead in zip(path, state[1:], strict=True):
                leads.setdefault(half, lead)
        every = [leads[half] for half in range(len(halves))]
        found = np.array(every, dtype=np.int32).reshape(1, len(halves), len(behind))
        none = np.zeros((0, len(halves.members), self._size), dtype=np.int32)
        self._chunks.append(_Chunk(self.end, halves, none, [behind], found))

    def state(self, stream: int, number: int) -> EvenState | None:
        """Return where a stream stands before a round; None if that is not known."""
        if not self._chunks[0].first <= number <= self.end:
            return None
        known = self._known.get((stream, number))
        if known is None and (known := self._chunk(number).state(stream, number)):
            if len(self._known) > _STATES * self._streams:
                del self._known[next(iter(self._known))]
            self._known[stream, number] = known
        return known

    def reach(self, number: int) -> None:
        """Draw the rounds before one."""
        while self.end < number:
            self.draw(number - self.end)

    def take(self, stream: int, first: int, last: int) -> Int64Array:
        """Return the sources of a member's draws in some rounds."""
        found = [np.zeros((0, self._size), dtype=np.int64)]
        while first < last:
            if first == self.end:
                draws = self._size * len(self._chunks[-1].halves.members)  # of a round
                self.draw(max(last - first, min(_TOGETHER, _DRAWS // draws)))
            chunk = self._chunk(first)
            member, _ = chunk.halves.within(stream, stream)
            part = chunk.sources[first - chunk.first : last - chunk.first, member]
            found.append(part.astype(np.int64))
            first += len(part)
        return np.concatenate(found).reshape(-1)

    def draw(self, count: int) -> None:
        """Draw the next rounds; of many, the first ones."""
        last, size = self._chunks[-1], self._size
        halves, first = last.halves, self.end
        in_round = len(halves.members) * max(size, len(last.behind[-1]))
        count = min(count, _MOST, max(1, _MOST_NUMBERS // in_round))
        behind, dealt = last.behind[-1:], list[tuple[int, int, int, list[Drawn]]]()
        every, after = self._draw(first, count, behind[-1])
        behind += after
        for at, parts in enumerate(every):
            for begin, end, drawn in parts:
                if dealt and dealt[-1][1:3] == (begin, end) == (0, self._streams):
                    dealt[-1][3].append(drawn)
                else:
                    dealt.append((at, begin, end, [drawn]))
        leads = last.leads[-1].astype(np.int64)
        history = np.empty((count + 1, *leads.shape), dtype=np.int32)
        history[0], numbers = leads, np.arange(len(behind[0]))
        sources = np.empty((count, len(halves.members), size), dtype=np.int32)
        for at, begin, end, rounds in dealt:
            counts = np.zeros((len(rounds), len(numbers)), dtype=np.int64)
            drawn_by = np.array([pair for each in rounds for pair in each], dtype=np.int64).reshape(-1, 2)
            counts[np.repeat(range(len(rounds)), [*map(len, rounds)]), drawn_by[:, 0]] = drawn_by[:, 1]
            upto, own = at + len(rounds), slice(*halves.within(begin, end))
            found = halves.deal(counts, begin, end, size, leads, history[at + 1 : upto + 1])[:, own]
            each = np.repeat(np.broadcast_to(numbers, found.shape).reshape(-1), found.reshape(-1))
            sources[at:upto, own] = each.reshape(*found.shape[:2], size)
        # Neighbours in a batch are of several sources, and no source comes first in all batches.
        places = np.arange(size) * self._stride + np.arange(first, first + count)[:, None]
        own_sources: Int16Array | Int32Array = _small(
            np.take_along_axis(sources, (places % size)[:, None], axis=2)
        )
        chunk = _Chunk(first, halves, own_sources, behind, _small(history))
        self._chunks = [*(each for each in self._chunks if len(each.sources)), chunk]
        self.end += count
        arrays = chunk.sources.nbytes + chunk.leads.nbytes
        kept = min(_KEPT, _KEPT_BYTES * count // (arrays + _NUMBER_BYTES * count * len(numbers)))
        while len(self._chunks) > 1 and self._chunks[1].first < self.end - kept:
            del self._chunks[0]

    def _chunk(self, number: int) -> _Chunk:
        return self._chunks[bisect_right(self._chunks, number, key=lambda chunk: chunk.first) - 1]


class SharedRounds:
    """The rounds of streams that draw together, for those of them that a process has."""

    def __init__(self, draw: DrawRounds, streams: int, size: int, sources: int) -> None:
        self._of = draw, streams, size
        self._sources = sources
        self._lock = Lock()
        self._going_on: dict[int, tuple[int, EvenState]] = {}  # where streams are that have not drawn yet
        self._rounds: dict[int, Rounds] = {}  # of streams that have
        self._again: dict[int, Rounds] = {}  # of streams that count rounds again which are not kept
        self._anew: Rounds | None = None  # of all streams, from a round on where all begin

    def start(self, stream: int) -> EvenState:
        """Return where a stream begins."""
        begin, end, columns = 0, self._of[1], 1
        while end - begin > 1:
            middle, columns = (begin + end) // 2, columns + 1
            begin, end = (begin, middle) if stream < middle else (middle, end)
        return ((0,) * self._sources,) * columns

    def fresh(self, stream: int, number: int) -> EvenState:
        """Return where a stream stands before a round, counted anew from some round on."""
        begin, state = number - number % _ANEW, self.start(stream)
        with self._lock:
            if number > begin:
                rounds = self._anew
                is_kept = rounds is not None and rounds.first == begin
                if (
                    rounds is None
                    or not is_kept
                    or (rounds.end > number and not rounds.state(stream, number))
                ):
                    self._anew = rounds = Rounds(*self._of, begin)
                    rounds.join({each: self.start(each) for each in range(self._of[1])})
                rounds.reach(number)
                state = rounds.state(stream, number) or state
            self._going_on[stream] = number, state
        return state

    def go_on(self, stream: int, number: int, state: EvenState) -> None:
        """Note where a stream goes on, so that it draws together with others."""
        with self._lock:
            self._going_on[stream] = number, state

    def take(
        self, stream: int, first: int, state: EvenState, last: int, upto: int
    ) -> tuple[Int64Array, EvenState]:
        """Return the sources of a stream's draws in some rounds, and where it stands before ``upto``."""
        with self._lock:
            rounds = self._rounds_of(stream, first, state, last - first)
            sources = rounds.take(stream, first, last)
            return sources, state if upto <= first else rounds.state(stream, upto) or state

    def _rounds_of(self, stream: int, first: int, state: EvenState, count: int) -> Rounds:
        found = self._rounds.get(stream)
        for known in (found, self._again.get(stream)):
            if known is not None and known.state(stream, first) == state:
                return known
        alone = Rounds(*self._of, first)
        alone.join({stream: state})
        is_next = self._going_on.get(stream) == (first, state)
        if count > _KEPT or (found is not None and first < found.end and not is_next):
            self._again[stream] = alone
            return alone
        self._going_on[stream] = first, state
        near = {each: at for each, at in self._going_on.items() if abs(at[0] - first) <= _NEAR}
        begins = sorted({number for number, _ in near.values()})
        rounds = Rounds(*self._of, begins[0])
        for begin in begins:
            rounds.reach(begin)
            rounds.join({each: own for each, (number, own) in near.items() if number == begin})
        for each, (number, own) in near.items():
            if rounds.state(each, number) == own:
                self._rounds[each], _ = rounds, self._going_on.pop(each)
        if self._going_on.pop(stream, None) is not None:  # other draws than the others have
            self._rounds[stream] = alone
        return self._rounds[stream]
