"""When the shares of sources end their samples, while planned changes of the weights are ahead. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise

from energon_stream.schedule.cut_samples import SourcePart, samples_before
from energon_stream.schedule.lines import WHOLE, Drawn, Slope

_NEVER = 1 << 62


class Foresight:
    """Shares that change at draws, each in parts of ``WHOLE``; ``begins`` ascend from 0.

    From some of them on, shares go along ``slopes``.

    Where a change takes the weight of sources, they keep a part of a sample for good, or until they come
    back. Those with the largest parts get the whole sample by then: as many as the parts of all sources
    without weight make together, so that what the others have is right, too.

    With ``knots``, draws at which segments begin, it is known of each sample that one of them cuts whether it
    comes before, as of :func:`samples_before`. Then each order of draws by what is due is within one.
    """

    def __init__(
        self,
        begins: Sequence[int],
        shares: Sequence[Drawn],
        slopes: Mapping[int, Slope] | None = None,
        knots: Collection[int] | None = None,
    ) -> None:
        self._begins, self._slopes = [*begins, _NEVER], slopes or {}
        self._shares = [dict(each) for each in shares]
        self._reach = [
            _NEVER if at in self._slopes else WHOLE // min(each.values()) + 2 if each else 0
            for at, each in enumerate(self._shares)
        ]
        stops = (at for at in range(1, len(shares)) if knots and begins[at] in knots)
        self._stops = dict.fromkeys(stops if all(self._shares) else ())
        self._whole = set[tuple[int, int]]()
        self._whole.update(self._before() if self._stops else self._completed())

    def is_near(self, draw: int) -> bool:
        """Return True if a sample that is begun at a draw may end behind a change."""
        at = bisect_left(self._begins, draw)
        return self._begins[at] - draw < self._reach[at - 1]

    def end(self, source: int, missing: int, draw: int) -> tuple[bool, int]:
        """Return the draw by which a source's sample is due, of which parts are missing at a draw.

        The first value is True if it comes after a change that is ahead.
        """
        return self._end(source, missing, draw, bisect_left(self._begins, draw) - 1)

    def _end(self, source: int, missing: int, draw: int, first: int) -> tuple[bool, int]:
        for at in range(first, len(self._shares)):
            share, stop, slope = self._shares[at].get(source, 0), self._begins[at + 1], self._slopes.get(at)
            got = (stop - draw) * share
            if slope is not None:
                due, got = slope.end(source, missing, draw)
                if due is not None:
                    return False, due
            elif got >= missing:
                return False, draw - missing // -share
            missing, draw = missing - got, stop
            if at + 1 in self._stops or (at + 1, source) in self._whole:
                return (at + 1, source) not in self._whole, draw
        return False, draw

    def _before(self) -> Iterator[tuple[int, int]]:
        """Yield the changes at which segments begin, with each source whose cut sample comes before."""
        had, segments = dict[int, int](), list[tuple[int, list[SourcePart]]]()
        for at, stop in pairwise([0, *self._stops, len(self._shares)]):
            before = had.copy()
            for each in range(at, min(stop, len(self._shares) - 1)):
                for source, more in self._gains(each).items():
                    had[source] = had.get(source, 0) + more
            parts, begin = list[SourcePart](), self._begins[at]
            for source in self._shares[at]:
                first, last = before.get(source, 0), had.get(source, 0)
                to_end, to_begin = -first % WHOLE, last // WHOLE * WHOLE - first
                due, begun = (self._end(source, each, begin, at)[1] for each in (to_end, to_begin))
                parts.append(SourcePart(source, first, last, due, begun))
            segments.append((self._begins[stop] - begin, parts))
        for stop, sources in zip(self._stops, samples_before(segments), strict=True):
            yield from ((stop, source) for source in sources)

    def _gains(self, at: int) -> dict[int, int]:
        """Return the parts that sources have from one change to the next."""
        draws, slope = self._begins[at + 1] - self._begins[at], self._slopes.get(at)
        if slope is None:
            return {source: draws * share for source, share in self._shares[at].items()}
        found = {source: slope.total(source) for source in slope.sources}
        found[max(found, key=found.__getitem__)] += draws * WHOLE - sum(found.values())
        return found

    def _completed(self) -> list[tuple[int, int]]:
        """Return the changes that take a weight, with each source that gets a whole sample by then."""
        found, due, got = list[tuple[int, int]](), dict[int, int](), dict[int, int]()
        for at in range(1, len(self._shares)):
            before, now, slope = self._shares[at - 1], self._shares[at], self._slopes.get(at - 1)
            for source, share in before.items():
                more = (
                    (self._begins[at] - self._begins[at - 1]) * share
                    if slope is None
                    else slope.total(source)
                )
                due[source] = due.get(source, 0) + more
            ending = before.keys() - now.keys()
            for source in ending:
                got[source] = max(got.get(source, 0), due[source] // WHOLE * WHOLE)
            parts = sum(due[source] - got[source] for source in due.keys() - now.keys())
            ranked = sorted((got[source] - due[source], source) for source in ending)
            for _, source in ranked[: max(0, parts + WHOLE // 2) // WHOLE]:
                got[source] += WHOLE
            found += [(at, source) for source in ending if got[source] >= due[source]]
        return found
