"""Draws by which sources have their shares of a cost, such as of tokens, and not of samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from energon_stream.schedule.lines import WHOLE, Drawn, Stretch, stretch_of
from energon_stream.schedule.rounds import EvenState
from energon_stream.schedule.weights import EvenDraws, WeightChange, first_reference, shares_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from energon_stream.arrays import Int64Array
    from energon_stream.schedule.schedule import Cursor, Schedule

_PARTS = 1 << 10  # of a unit of cost, to which means are rounded
_WORD = 40  # bits of a number of the state in each of its three columns
_AHEAD = 64  # samples of a source whose costs are looked up together
_KNOWN = 4  # times that these are kept


def mean_parts(costs: npt.NDArray[Any]) -> int:
    """Return a mean cost in parts, which only decides how streams take turns."""
    return max(1, round(float(costs.mean()) * _PARTS)) if len(costs) else 1


class CostDraws:
    """Draws of one stream that follow weights by the cost of the samples themselves.

    Even draws by mean costs say whose turn it is, so that streams do not draw alike. Each draw takes the
    source that is furthest behind its share of the cost, counted from there; where all samples of a source
    cost the same, that is the one whose turn it is. The state is that of the even draws, and for each
    source what it is behind. All numbers are integers.
    """

    def __init__(
        self,
        even: EvenDraws,
        weights: Sequence[WeightChange],
        means: Sequence[int],
        costs: Sequence[npt.NDArray[Any]],
        place: tuple[int, int, int],
    ) -> None:
        self._even, self._means, self._costs = even, means, costs
        self._place = place
        self._changes = [
            (
                first_reference(change.begin, *place),
                shares_of(change.weights) if change.along is None else stretch_of(change.along, change.begin),
            )
            for change in weights
        ]
        # Of each source, the costs from some cursors on, and the cursor behind them: for what is taken ahead
        # and what is consumed. Most sources stay where they are from one draw to the next.
        self._known: list[dict[Cursor, tuple[npt.NDArray[Any], Cursor]]] = [{} for _ in costs]

    @property
    def streams(self) -> Sequence[int]:
        return self._even.streams

    def fresh(self, step: int) -> EvenState:
        """Return the state at a reference, counted anew."""
        state = self._even.fresh(step)
        return *state, *[(0,) * len(state[0])] * 3

    def go_on(self, step: int, state: EvenState) -> None:
        """Note where a stream goes on, so that the streams of a process draw together."""
        self._even.go_on(step, state[:-3])

    def is_state(self, state: EvenState) -> bool:
        """Return True if draws may stand there."""
        fits = {len(column) for column in state[-3:]} == {len(self._means)}
        return fits and self._even.is_state(state[:-3]) and not sum(_joined(state[-3:]))

    def take(
        self, step: int, state: EvenState, count: int, children: Sequence[Schedule], cursors: Sequence[Cursor]
    ) -> tuple[Int64Array, EvenState]:
        """Return the sources of the next references, and the state after them."""
        turns, even = self._even.take(step, state[:-3], count)
        behind = _joined(state[-3:])
        present = {source for _, shares in self._changes for source in _sources(shares)}
        ahead = [self._costs_of(*each) for each in zip(range(len(children)), children, cursors, strict=True)]
        due = [next(each) * _PARTS if source in present else 0 for source, each in enumerate(ahead)]
        chosen = np.empty(count, dtype=np.int64)
        later = [change for change in self._changes if change[0] > step]
        now = [change for change in self._changes if change[0] <= step][-1][1]
        num_streams, stream, per_batch = self._place
        shares: Drawn = ()
        for place, turn in enumerate(turns.tolist()):
            while later and later[0][0] <= step + place:
                now, shares = later.pop(0)[1], ()
            if not shares or (isinstance(now, Stretch) and not (step + place) % per_batch):
                batch = (step + place) // per_batch * num_streams + stream
                shares = now.at(batch) if isinstance(now, Stretch) else now
            behind[turn] += self._means[turn] * WHOLE
            missing = -self._means[turn]
            # The one whose share comes first to the middle of its next sample.
            _, source = min(
                ((due[source] * WHOLE - 2 * (behind[source] + share * missing)) // share, source)
                for source, share in shares
            )
            cost, due[source] = due[source], next(ahead[source]) * _PARTS
            missing += cost
            for each, share in shares:
                behind[each] += share * missing
            behind[source] -= cost * WHOLE
            chosen[place] = source
        mask = (1 << _WORD) - 1
        columns = [
            tuple(each >> 2 * _WORD for each in behind),
            tuple(each >> _WORD & mask for each in behind),
            tuple(each & mask for each in behind),
        ]
        return chosen, (*even, *columns)

    def _costs_of(self, source: int, child: Schedule, cursor: Cursor) -> Iterator[int]:
        """Yield the costs of the samples of a source, from a cursor on."""
        known = self._known[source]
        while True:
            if (found := known.get(cursor)) is None:
                refs, after = child.take(cursor, _AHEAD)
                found = known[cursor] = self._costs[source][refs.index], after
                if len(known) > _KNOWN:
                    del known[next(iter(known))]
            costs, cursor = found
            yield from costs.tolist()


def _sources(shares: Drawn | Stretch) -> list[int]:
    return shares.sources if isinstance(shares, Stretch) else [source for source, _ in shares]


def _joined(columns: EvenState) -> list[int]:
    return [(high << 2 * _WORD) + (middle << _WORD) + low for high, middle, low in zip(*columns, strict=True)]
