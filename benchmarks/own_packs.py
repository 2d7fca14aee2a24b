"""Packs that each of 64 streams makes of its own samples: ``python benchmarks/own_packs.py``.

A simulation of a plan that the library does not have. Each stream keeps candidates, as many as it has in a
window of eight steps, or at least some number, and packs the oldest with those whose loads come nearest to
targets that all streams share: what all candidates have in the mean. Streams drift apart in samples, and not
in loads. Samples never end, which is kinder than a pass.
``python benchmarks/own_packs.py finevideo`` prints this for one set.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "packing"))
from test_two_barriers import KINDS, RANKS, made, rooms

SAMPLES, STEPS, TRIES, TRIED, FILL, CLOSE = 400_000, 20, 4, 96, 0.985, 0.004


def nearest_pack(costs, most, wanted, draw):
    """Return the samples of a pack within ``most``: the oldest, others at random, and the best two of all."""
    best, least = [0], np.inf
    for _ in range(TRIES):
        order = np.concatenate([[0], 1 + draw.permutation(len(costs) - 1)])
        fits = (np.cumsum(costs[order], axis=0) <= draw.uniform(0.3, 0.8) * most).all(axis=1)
        base = order[: max(1, int(fits.sum()))].tolist()
        others = order[len(base) :][:TRIED].tolist()
        while True:
            added = np.concatenate([costs[others], [[0, 0]]])  # the last one stands for none
            sums = costs[base].sum(axis=0) + added[:, None] + added[None]
            far = np.maximum(0, wanted[0] - sums[..., 0]) / most[0]
            far += np.abs(sums[..., 1] - wanted[1]) / max(1, wanted[1])
            far[(sums > most).any(axis=2)] = np.inf
            np.fill_diagonal(far[:-1, :-1], np.inf)
            pair = np.unravel_index(far.argmin(), far.shape)
            if far[pair] < least:
                best, least = base + [others[at] for at in pair if at < len(others)], far[pair]
            room = (costs[base].sum(axis=0) + costs[others] <= 0.95 * most).all(axis=1)
            if not room.any():
                break
            base.append(others.pop(int(room.argmax())))
        if least < CLOSE:
            break
    return best


def row(kind, each, candidates):
    costs = np.stack(made(kind, SAMPLES, key=5), axis=1)
    most = np.array(rooms(*costs.T))
    size = max(candidates, int(8 * each * most[0] / costs[:, 0].mean()))
    draw = np.random.default_rng(0)
    waiting = costs[draw.permutation(SAMPLES)].reshape(RANKS, -1, 2)
    sums, fills, consumed = np.zeros((STEPS, RANKS, 2)), [], np.zeros(RANKS, dtype=int)
    own = [each_costs[:size] for each_costs in waiting]
    for step in range(STEPS):
        means = np.concatenate(own).mean(axis=0)
        target = means / means[0] * FILL * most[0] * each
        for rank in range(RANKS):
            for left in range(each, 0, -1):
                chosen = nearest_pack(own[rank], most, (target - sums[step, rank]) / left, draw)
                pack = own[rank][chosen].sum(axis=0)
                sums[step, rank] += pack
                fills.append((pack / most).max())
                first = size + consumed[rank]
                more = waiting[rank, first : first + len(chosen)]
                own[rank] = np.concatenate([np.delete(own[rank], chosen, axis=0), more])
                consumed[rank] += len(chosen)
    slowest = sums.max(axis=1) / sums.mean(axis=1)
    cells = (f"{text:.3f}, {vision:.3f}" for text, vision in (slowest.mean(axis=0), slowest.max(axis=0)))
    print(f"| {kind.__name__} | {each} | {size} | {' | '.join(cells)} | {np.mean(fills):.3f} |", flush=True)


def main():
    print(
        "| set | packs a rank | candidates | mean of steps | worst step | fill |\n|---|--:|--:|--:|--:|--:|"
    )
    kinds = [kind for kind in KINDS if kind.__name__ in sys.argv[1:]] or KINDS
    for each, candidates in ((1, 0), (1, 400), (2, 0), (4, 0), (8, 0)):
        for kind in kinds:
            row(kind, each, candidates)


if __name__ == "__main__":
    main()
