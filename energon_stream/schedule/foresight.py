"""When the shares of sources end their samples, while planned changes of the weights are ahead. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TypeAlias

WHOLE = 1 << 48  # parts of a draw: shares are rounded to these, so a billion draws are right to 1e-5 of one
_NEVER = 1 << 62

Drawn: TypeAlias = tuple[tuple[int, int], ...]
"""How many of some draws each source has; or each source's share, in parts of ``WHOLE``."""


class Foresight:
    """Shares that change at draws, each in parts of ``WHOLE``; ``begins`` ascend from 0.

    Where a change takes the weight of sources, they keep a part of a sample for good, or until they come
    back. Those with the largest parts get the whole sample by then: as many as the parts of all sources
    without weight make together, so that what the others have is right, too.
    """

    def __init__(self, begins: Sequence[int], shares: Sequence[Drawn]) -> None:
        self._begins = [*begins, _NEVER]
        self._shares = [dict(each) for each in shares]
        self._reach = [WHOLE // min(each.values()) + 2 if each else 0 for each in self._shares]
        self._whole = {*self._completed()}

    def is_near(self, draw: int) -> bool:
        """Return True if a sample that is begun at a draw may end behind a change."""
        at = bisect_left(self._begins, draw)
        return self._begins[at] - draw < self._reach[at - 1]

    def end(self, source: int, missing: int, draw: int) -> int:
        """Return the draw by which a source's sample is due, of which parts are missing at a draw."""
        for at in range(bisect_left(self._begins, draw) - 1, len(self._shares)):
            share, stop = self._shares[at].get(source, 0), self._begins[at + 1]
            got = (stop - draw) * share
            if got >= missing:
                return draw - missing // -share
            missing, draw = missing - got, stop
            if (at + 1, source) in self._whole:
                break
        return draw

    def _completed(self) -> list[tuple[int, int]]:
        """Return the changes that take a weight, with each source that gets a whole sample by then."""
        found, due, got = list[tuple[int, int]](), dict[int, int](), dict[int, int]()
        for at in range(1, len(self._shares)):
            before, now = self._shares[at - 1], self._shares[at]
            for source, share in before.items():
                due[source] = due.get(source, 0) + (self._begins[at] - self._begins[at - 1]) * share
            ending = before.keys() - now.keys()
            for source in ending:
                got[source] = max(got.get(source, 0), due[source] // WHOLE * WHOLE)
            parts = sum(due[source] - got[source] for source in due.keys() - now.keys())
            ranked = sorted((got[source] - due[source], source) for source in ending)
            for _, source in ranked[: max(0, parts + WHOLE // 2) // WHOLE]:
                got[source] += WHOLE
            found += [(at, source) for source in ending if got[source] >= due[source]]
        return found
