"""When the shares of sources end their samples, while planned changes of the weights are ahead. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from energon_stream.schedule.lines import WHOLE, Drawn, Slope

_NEVER = 1 << 62


class Foresight:
    """Shares that change at draws, each in parts of ``WHOLE``; ``begins`` ascend from 0.

    From some of them on, shares go along ``slopes``.

    Where a change takes the weight of sources, they keep a part of a sample for good, or until they come
    back. Those with the largest parts get the whole sample by then: as many as the parts of all sources
    without weight make together, so that what the others have is right, too.
    """

    def __init__(
        self, begins: Sequence[int], shares: Sequence[Drawn], slopes: Mapping[int, Slope] | None = None
    ) -> None:
        self._begins, self._slopes = [*begins, _NEVER], slopes or {}
        self._shares = [dict(each) for each in shares]
        self._reach = [
            _NEVER if at in self._slopes else WHOLE // min(each.values()) + 2 if each else 0
            for at, each in enumerate(self._shares)
        ]
        self._whole = {*self._completed()}

    def is_near(self, draw: int) -> bool:
        """Return True if a sample that is begun at a draw may end behind a change."""
        at = bisect_left(self._begins, draw)
        return self._begins[at] - draw < self._reach[at - 1]

    def end(self, source: int, missing: int, draw: int) -> int:
        """Return the draw by which a source's sample is due, of which parts are missing at a draw."""
        for at in range(bisect_left(self._begins, draw) - 1, len(self._shares)):
            share, stop, slope = self._shares[at].get(source, 0), self._begins[at + 1], self._slopes.get(at)
            got = (stop - draw) * share
            if slope is not None:
                due, got = slope.end(source, missing, draw)
                if due is not None:
                    return due
            elif got >= missing:
                return draw - missing // -share
            missing, draw = missing - got, stop
            if (at + 1, source) in self._whole:
                break
        return draw

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
