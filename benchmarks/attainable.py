"""Searches for the evenest packs with one pack a rank: ``python benchmarks/attainable.py``.

For each set of ``two_barriers.py``, a search that shares no code with the planner puts the samples of a
window of eight steps into packs anew. It takes minutes, where the planner takes milliseconds. It has the same
samples, packs, steps and capacities, so the fill is the same, and weighs both loads alike, as the planner
does. It begins

* with the planner's packs,
* with the largest samples first, each where packs stay the most even, dealt to steps by vision,
* with samples in the order of vision for their text, so that a step has all of the heaviest,

where these find packs with room, and goes on with packs in random pairs, which swap or give the samples that
lower the norms of the steps' loads most, or change their steps. The norm's exponent rises until it is nearly
the largest load, which counts.

It does so twice: ``times`` is the time of all steps over that of even ranks, ``means`` the mean of steps of
the slowest rank over the mean. They differ where steps have unlike loads. Printed are, for text and vision,
the planner's, what was found from each start, the best of these, and a bound that no packs go below
(``least_time``); then the planner's less the best.
``python benchmarks/attainable.py 20`` takes 20 seconds for each start, not 60.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "packing"))
from test_two_barriers import KINDS, RANKS, made, planned, ratios, rooms
from two_barriers import SAMPLES, least_time, pair

STEPS = 8
PACKS = STEPS * RANKS
EXPONENTS = (8, 16, 32, 64, 128, 256)
TRIED = 10  # samples of a pack that may change places in a round


def times(loads):
    """Return the time of all steps for each load, over that of even ranks, of packs in the order of steps."""
    of_steps = loads.reshape(STEPS, RANKS, -1)
    return of_steps.max(axis=1).sum(axis=0) / of_steps.mean(axis=(0, 1)) / STEPS


def means(loads):
    """Return the mean of steps of the slowest rank over the mean of ranks, for each load."""
    return ratios(loads.reshape(STEPS, RANKS, 1, -1)).mean(axis=0)


def filled(costs, order, most, step=None):
    """Put each sample where packs with room stay the most even; None if one finds none.

    With the ``step`` of each sample, those come first that find room in 0.9 of the packs of their step.
    """
    scale = costs.sum(axis=0) / PACKS
    sums = np.zeros((PACKS, 2), dtype=np.int64)
    pack = np.empty(len(costs), dtype=np.int64)

    def put(sample, own, room):
        after = sums[own] + costs[sample]
        score = np.where((after <= room).all(axis=1), (after / scale).max(axis=1), np.inf)
        pack[sample] = at = own.start + score.argmin()
        sums[at] += costs[sample] if score.min() < np.inf else 0
        return score.min() < np.inf

    if step is not None:
        own = [slice(number * RANKS, (number + 1) * RANKS) for number in step]
        order = [sample for sample in order if not put(sample, own[sample], 0.9 * most)]
    return pack if all(put(sample, slice(0, PACKS), most) for sample in order) else None


def starts(costs, most, plan):
    """Yield the pack of each sample: the planner's, even packs, and steps of unlike samples."""
    yield plan
    order = np.argsort(-(costs / most).max(axis=1), kind="stable")
    ratio = np.argsort(-costs[:, 1] / costs[:, 0], kind="stable")
    step = np.empty(len(costs), dtype=np.int64)
    step[ratio] = np.minimum(np.cumsum(costs[ratio, 0]) * STEPS // costs[:, 0].sum(), STEPS - 1)
    for steps in (None, step):
        pack = filled(costs, order, most, steps)
        if pack is None:
            print(f"no start {'in steps' if steps is step else 'of even packs'}", file=sys.stderr)
            continue
        vision = np.bincount(pack, weights=costs[:, 1], minlength=PACKS)
        yield np.argsort(np.argsort(-vision, kind="stable"))[pack]


class Search:
    def __init__(self, costs, most, pack, score, seed=0):
        self.draw, self.score = np.random.default_rng(seed), score
        self.most, self.mean = most, costs.sum(axis=0) / PACKS
        self.costs = np.concatenate([costs, [[0, 0]]])
        sizes = np.bincount(pack, minlength=PACKS)
        self.held = np.full((PACKS, sizes.max() + 8), len(costs))
        order = np.argsort(pack, kind="stable")
        self.held[pack[order], np.arange(len(pack)) - np.repeat(np.cumsum(sizes) - sizes, sizes)] = order

    def loads(self):
        return self.costs[self.held].sum(axis=1)

    def round(self, exponent, heat):
        """Let packs in random pairs swap samples. ``heat`` is what a swap may be worse by, at most."""
        self.held = self.draw.permuted(self.held, axis=1)
        loads = self.loads()
        scale = np.broadcast_to(self.mean, loads.shape)
        if self.score is means:
            scale = np.repeat(loads.reshape(STEPS, RANKS, 2).mean(axis=1), RANKS, axis=0)
        share = loads / scale
        largest = share.reshape(STEPS, RANKS, 2).max(axis=1)
        norms = ((share.reshape(STEPS, RANKS, 2) / largest[:, None]) ** exponent).sum(axis=1)
        norms = np.repeat(largest * norms ** (1 / exponent), RANKS, axis=0)  # of each pack's step

        def part(packs, sums):
            """Return what packs add to the norm of their step, by its derivative."""
            shape = len(packs), *[1] * (sums.ndim - 2), 2
            of, own = norms[packs].reshape(shape), sums / scale[packs].reshape(shape)
            added = np.minimum(own / of, 4) ** exponent
            if self.score is means:  # what a step has more makes its mean larger, too
                added -= own / RANKS
            return (of * added).sum(axis=-1)

        one, other = self.draw.permutation(PACKS).reshape(2, -1)
        given, taken = self.held[one][:, :TRIED], self.held[other][:, :TRIED]
        more = self.costs[taken][:, None] - self.costs[given][:, :, None]
        first, second = loads[one][:, None, None] + more, loads[other][:, None, None] - more
        change = part(one, first) + part(other, second)
        change -= (part(one, loads[one]) + part(other, loads[other]))[:, None, None]
        change[(first > self.most).any(axis=-1) | (second > self.most).any(axis=-1)] = np.inf
        flat = change.reshape(len(one), -1)
        best = flat.argmin(axis=1)
        pairs = np.flatnonzero(flat[np.arange(len(one)), best] < heat * self.draw.random(len(one)))
        at, to = np.divmod(best[pairs], TRIED)
        self.held[one[pairs], at], self.held[other[pairs], to] = taken[pairs, to], given[pairs, at]
        # Whole packs change their steps.
        loads = self.loads()
        change = part(one, loads[other]) + part(other, loads[one])
        swap = np.flatnonzero(change < part(one, loads[one]) + part(other, loads[other]))[:1]
        self.held[one[swap]], self.held[other[swap]] = self.held[other[swap]], self.held[one[swap]]

    def run(self, seconds):
        best, begin = self.loads(), time.process_time()
        while (gone := (time.process_time() - begin) / seconds) < 1:
            exponent = EXPONENTS[int(gone * len(EXPONENTS))]
            self.round(exponent, 1e-3 * max(0.0, 1 - 1.5 * gone))
            loads = self.loads()
            if self.score(loads).sum() < self.score(best).sum():
                best = loads
        assert (best <= self.most).all()
        return best


def row(kind, seconds):
    costs = made(kind, SAMPLES)
    job = planned(costs, 1)
    window = job.window(0, 0, job.job.begin())
    # Packs are in the order of steps, and a pack of each stream makes a step.
    own = [np.split(stream.refs.index, stream.ends[:-1]) for stream in window.streams]
    packs = [stream[step] for step in range(STEPS) for stream in own]
    pack = np.repeat(np.arange(PACKS), list(map(len, packs)))
    values = np.stack([cost[np.concatenate(packs)] for cost in costs], axis=1)
    most = np.array(rooms(*costs))
    mine = np.stack([np.bincount(pack, cost, minlength=PACKS) for cost in values.T], axis=1)
    bound = [least_time(values, number, most[0], RANKS) for number in range(2)]
    begins = list(starts(values, most, pack))
    for score, least in ((times, bound), (means, (1.0, 1.0))):
        each = [score(Search(values, most, begin, score).run(seconds)) for begin in begins]
        best = min(each, key=sum)
        cells = (
            pair(score(mine)),
            " / ".join(map(pair, each)),
            pair(best),
            pair(least),
            pair(score(mine) - best),
        )
        print(f"| {kind.__name__} | {score.__name__} | {' | '.join(cells)} |", flush=True)


def main():
    seconds = float(sys.argv[1]) if sys.argv[1:] else 60.0
    kinds = [kind for kind in KINDS if kind.__name__ in sys.argv[2:]] or KINDS
    print("| set | of steps | planned | found from each start | best found | bound | planned - best |")
    print("|---|---|--:|--:|--:|--:|--:|")
    for kind in kinds:
        row(kind, seconds)


if __name__ == "__main__":
    main()
