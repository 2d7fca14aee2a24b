"""Samples that changes of the weights cut: the plan of which come before their change. Pure.

A segment is what lies between two changes. Shares cut samples at its ends: these have parts in several
segments, and come in one of them. Each segment has as many as it has draws left. Some order of its draws then
keeps all sources within one sample of their shares at each draw, if this holds: of the samples that were
begun before it, no more of those that end first come in it than their parts make together, rounded up; and of
those that go on behind it, no more of those that begin last. The parts themselves are a flow from segments to
samples that keeps this. So there is a flow of whole samples that does, too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from energon_stream.schedule.lines import WHOLE

_Node: TypeAlias = tuple[int, ...]
"""A segment; a number of the samples in it that come first or last; or a sample, of a source and a number."""
_ROOT: _Node = ()
_HALF = WHOLE // 2
_TRIES = 8


class SourcePart(NamedTuple):
    """The part of a segment that a source has."""

    source: int
    first: int  # parts of samples that it has had at the begin
    last: int  # the same at the end; of the last segment, which never ends, the same as ``first``
    due: int  # draw that ends the sample that was begun before
    begun: int  # draw that begins the sample that goes on behind


Segment: TypeAlias = tuple[int, Sequence[SourcePart]]
"""The number of its draws, and what its sources have of it."""


class _Flow:
    """Samples that come in segments."""

    def __init__(self) -> None:
        self._room: dict[_Node, dict[_Node, int]] = {}  # what more a node can have of another
        self._above: dict[_Node, _Node] = {}

    def join(self, node: _Node, above: _Node, most: int) -> None:
        """Let a node have up to ``most`` samples of the one above."""
        self._room.setdefault(node, {})[above] = most
        self._room.setdefault(above, {})[node] = 0
        self._above[node] = above

    def order(self, sample: _Node, ranks: Mapping[int, tuple[bool, int]]) -> None:
        """Try the segments of a sample by their ranks."""
        self._room[sample] = dict(sorted(self._room[sample].items(), key=lambda each: ranks[each[0][0]]))

    def put(self, sample: _Node) -> bool:
        """Put a sample into the first of its segments that has room, if any."""
        ways = (self._way(sample, node) for node in self._room[sample])
        way = next((way for way in ways if all(self._room[a][b] for a, b in pairwise(way))), None)
        if way is not None:
            self._push(way)
        return way is not None

    def place(self, sample: _Node) -> bool:
        """Put a sample into one of its segments, for which others may move to theirs; False if none can."""
        came, todo = {sample: sample}, [sample]
        for node in todo:
            for other, room in self._room[node].items():
                if room and other not in came:
                    came[other] = node
                    todo.append(other)
            if _ROOT in came:
                way = [_ROOT]
                while way[-1] != sample:
                    way.append(came[way[-1]])
                self._push(way[::-1])
                return True
        return False

    def limit(self, sample: _Node, segments: Collection[int]) -> bool:
        """Let a sample come in these segments alone; False if that cannot be."""
        room, at = self._room[sample], self.node(sample)
        if sample not in self._room[at]:  # it is settled
            return at[0] in segments
        self._room[sample] = {node: more for node, more in room.items() if node[0] in segments}
        if at not in self._room[sample]:
            way = self._way(sample, at)
            self._room[sample] |= {at: 0}
            self._push(way[::-1])
            del self._room[sample][at]
            if not self.place(sample):
                self._room[sample] = room | {at: 1}
                self._push(way)
                return False
        return True

    def settle(self, sample: _Node) -> None:
        """Leave a sample where it is."""
        self._room[self.node(sample)].pop(sample, None)
        self._room[sample] = {self.node(sample): 0}

    def node(self, sample: _Node) -> _Node:
        """Return the node that a sample is put into, whose first number is the segment."""
        return next(node for node, room in self._room[sample].items() if not room)

    def _way(self, sample: _Node, node: _Node) -> list[_Node]:
        way = [sample, node]
        while way[-1] != _ROOT:
            way.append(self._above[way[-1]])
        return way

    def _push(self, way: Sequence[_Node]) -> None:
        for node, other in pairwise(way):
            self._room[node][other] -= 1
            self._room[other][node] += 1


def samples_before(segments: Sequence[Segment]) -> list[set[int]]:
    """Return, for the end of each segment, the sources whose samples that are cut there come before.

    The last segment never ends, and is left out. What a source has of a segment is within one of its share,
    too, if it is not ahead at one end and behind at the other by more than that. No flow says that, so some
    tries look for it.
    """
    wishes, best = dict[tuple[int, int], bool](), (1 << 62, list[set[int]]())
    for _ in range(_TRIES):
        found, missed, more = _choose(segments, wishes)
        best = min(best, (missed, found), key=itemgetter(0))
        if not missed or more.items() <= wishes.items():
            break
        wishes |= more
    return best[1]


def _choose(
    segments: Sequence[Segment], wishes: Mapping[tuple[int, int], bool]
) -> tuple[list[set[int]], int, dict[tuple[int, int], bool]]:
    """Return the sources, how many parts of segments are missed by more than one, and what else to wish.

    A wish says for a segment and a source whether the sample that is cut at its end comes before.
    """
    flow, cut = _flow_of(segments)
    found, missed, more = list[set[int]](), 0, dict[tuple[int, int], bool]()
    for number, (_, parts) in enumerate(segments[:-1]):
        late = range(number + 1, len(segments))
        for sample in cut[number]:
            wish = wishes.get((number, sample[0]))
            if wish is not None and not flow.limit(sample, range(number + 1) if wish else late):
                more[_end_before(segments, number, sample[0]), sample[0]] = wish
        for source, first, last, _, _ in parts if number else ():
            sample, gain, was_ahead = (
                (source, last // WHOLE),
                last % WHOLE - first % WHOLE,
                source in found[-1],
            )
            is_cut_twice = first % WHOLE and last % WHOLE and sample[1] > first // WHOLE
            if not is_cut_twice or (gain < 0 if was_ahead else gain > 0):
                continue
            if not flow.limit(sample, {number} if was_ahead else late) and gain:
                missed, more[_end_before(segments, number, source), source] = missed + 1, not was_ahead
        found.append({sample[0] for sample in cut[number] if flow.node(sample)[0] <= number})
        for sample in cut[number]:
            if sample[0] in found[-1]:
                flow.settle(sample)
            else:
                flow.limit(sample, late)
    return found, missed, more


def _end_before(segments: Sequence[Segment], number: int, source: int) -> int:
    """Return the last segment of a source before one: it waits from the end of that on."""
    number -= 1
    while number > 0 and all(part.source != source for part in segments[number][1]):
        number -= 1
    return number


def _flow_of(segments: Sequence[Segment]) -> tuple[_Flow, list[list[_Node]]]:
    """Return a flow with all cut samples, and the samples that the end of each segment cuts."""
    flow, had, cut, placed = _Flow(), dict[int, int](), list[list[_Node]](), 0
    at_ends = dict[_Node, dict[int, int]]()  # parts of a sample that a source has at the end of segments
    for number, (left, parts) in enumerate(segments):
        is_last, sources = number + 1 == len(segments), {part.source for part in parts}
        ending, going = list[tuple[int, int, _Node]](), list[tuple[int, int, _Node]]()
        for source, first, last, due, begun in parts:
            before, now, had[source] = (source, first // WHOLE), (source, last // WHOLE), last
            if last % WHOLE and not is_last:
                at_ends.setdefault(now, {})[number] = last % WHOLE
            if before == now and first % WHOLE and not is_last:
                flow.join(now, (number,), 1)
                continue
            left -= now[1] + (-first // WHOLE)
            if first % WHOLE:
                at_ends[before][number] = WHOLE
                ending.append((due, -first % WHOLE, before))
            if last % WHOLE and not is_last:
                going.append((-begun, last % WHOLE, now))
        # Samples of sources that have no weight in the end may never come.
        for sample in cut[-1] if is_last else ():
            if sample[0] not in sources:
                at_ends[sample][number] = WHOLE
                going.append((0, -had[sample[0]] % WHOLE, sample))
        for kind, samples in enumerate((sorted(ending), sorted(going))):
            total = 0
            for place, (_, some, sample) in enumerate(samples):
                total += some
                flow.join(sample, (number, kind, place), 1)
                above = (number, kind, place + 1) if place + 1 < len(samples) else (number,)
                flow.join((number, kind, place), above, -(-total // WHOLE))
        flow.join((number,), _ROOT, len(at_ends) - placed if is_last else left)
        placed += left
        cut.append([(source, have // WHOLE) for source, have in had.items() if have % WHOLE])
    # A sample comes before a cut, if that can be, where its larger part is.
    for sample, of in at_ends.items():
        flow.order(sample, {end: (part < _HALF, abs(part - _HALF)) for end, part in of.items()})
    clear = sorted(
        at_ends, key=lambda sample: -max(abs(part - _HALF) for part in [*at_ends[sample].values()][:-1])
    )
    for sample in [each for each in clear if not flow.put(each)]:
        flow.place(sample)
    return flow, cut
