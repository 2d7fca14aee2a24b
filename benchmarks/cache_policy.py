"""P9: which share of the reads a cache serves that holds the share c of the data, by simulation.

    python benchmarks/cache_policy.py

The order of samples is that of the library's own schedules, reshuffled every epoch; what stays and what goes
is decided by the cache's own policies (``energon_stream/cache/eviction.py``). There is no disk and no
network: a block is a count of bytes and a set of samples.
"""

from __future__ import annotations

import argparse
import math

import numpy as np

from energon_stream.cache.eviction import EvictableBlock, candidates, plan_shares
from energon_stream.rng import derive_key
from energon_stream.schedule import BlendPlan, LeafPlan, OrderSpec, RepeatPlan, build_schedule

SHARDS, PER_SHARD, SAMPLE, BLOCK = 40, 500, 40_000, 1_000_000
SHARES = (0.1, 0.25, 0.5, 0.9)
SPARE = 64  # as the cache: evicting gains a 64th of the quota more than is needed
ORDER = OrderSpec(
    max_samples_per_sequence=100, shuffle_window=1000, parallel_slices=16, shuffle_over_epochs=1
)
STARTS = np.arange(0, SHARDS * PER_SHARD + 1, PER_SHARD, dtype=np.int64)


class SimulatedCache:
    """Blocks as byte counts; a range of a block is there or not, as in the cache."""

    def __init__(self, policy, quota, shares=None):
        self.policy, self.quota, self.shares = policy, quota, shares or {}
        self.blocks = {}  # key -> [bytes, last use, samples]
        self.used, self.used_by, self.clock, self.full = 0, {}, 0, False
        self.hits = self.reads = 0

    def read(self, dataset, sample):
        start = sample * SAMPLE
        self.clock += 1
        while start < (sample + 1) * SAMPLE:  # by blocks; shards are cut alike
            number = start // BLOCK
            stop = min((sample + 1) * SAMPLE, (number + 1) * BLOCK)
            self.read_part((dataset, number), sample, stop - start)
            start = stop

    def read_part(self, key, sample, size):
        self.reads += size
        block = self.blocks.get(key)
        if block is not None and sample in block[2]:
            block[1] = self.clock
            self.hits += size
            return
        dataset = key[0]
        if self.used_by.get(dataset, 0) + size > self.shares.get(dataset, math.inf):
            return
        if self.used + size > self.quota and (self.full or not self.make_room(self.used + size - self.quota)):
            self.full = True  # where nothing falls out of use, it stays so
            return
        block = self.blocks.setdefault(key, [0, 0, set()])
        block[0], block[1] = block[0] + size, self.clock
        block[2].add(sample)
        self.used += size
        self.used_by[dataset] = self.used_by.get(dataset, 0) + size

    def make_room(self, need):
        entries = [
            EvictableBlock(key, key[0], key[0], size, last_use, in_use=True)
            for key, (size, last_use, _) in self.blocks.items()
        ]
        chosen = candidates(self.policy, entries, self.shares)
        if sum(entry.bytes for entry in chosen) < need:
            return False
        for entry in chosen:
            if need + self.quota // SPARE <= 0:
                break
            need -= entry.bytes
            self.used -= entry.bytes
            self.used_by[entry.root] -= entry.bytes
            del self.blocks[entry.key]
        return need <= 0


def orders(plan, epochs, per_epoch):
    """References of each epoch, over all streams of a node."""
    streams = [
        build_schedule(plan, num_streams=4, stream=stream, key=derive_key("key", stream))
        for stream in range(4)
    ]
    cursors = [schedule.begin() for schedule in streams]
    for _ in range(epochs):
        parts = []
        for number, schedule in enumerate(streams):
            refs, cursors[number] = schedule.take(cursors[number], per_epoch // 4)
            parts.append(np.stack([refs.leaf, refs.index]))
        yield np.stack(parts, axis=2).reshape(2, -1).T.tolist()  # the streams take turns


def steady(plan, datasets, epochs, **cache):
    """Share of the bytes that are hits, in the second half of the epochs: a dataset that is drawn seldom
    fills slowly.
    """
    simulated = SimulatedCache(**cache)
    for epoch, references in enumerate(orders(plan, epochs, datasets * SHARDS * PER_SHARD)):
        if epoch == epochs // 2:
            simulated.hits = simulated.reads = 0
        for dataset, sample in references:
            simulated.read(dataset, sample)
    return simulated.hits / simulated.reads


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=40)
    epochs = parser.parse_args().epochs
    size = SHARDS * PER_SHARD * SAMPLE
    print(f"{SHARDS * PER_SHARD:,} samples of {SAMPLE / 1e3:.0f} kB, {epochs} epochs, hits / (c x reads)\n")
    print("| c | pin | LRU | LRU by theory, 1 + (1 - c) ln(1 - c) / c |")
    print("|--:|--:|--:|--:|")
    good = True
    for c in SHARES:
        plan = RepeatPlan(LeafPlan(0, STARTS, ORDER))
        pin, lru = (steady(plan, 1, epochs, policy=name, quota=int(c * size)) / c for name in ("pin", "lru"))
        good = good and pin >= 0.98
        print(f"| {c} | {pin:.3f} | {lru:.3f} | {1 + (1 - c) * math.log(1 - c) / c:.3f} |")
    weights = (8, 1, 1)
    print(f"\nThree datasets of that size, drawn {':'.join(map(str, weights))}, hits / reads\n")
    print("| c | pin with planned shares | pin, first come | LRU | most that is possible |")
    print("|--:|--:|--:|--:|--:|")
    children = tuple(RepeatPlan(LeafPlan(number, STARTS, ORDER)) for number in range(3))
    plan = BlendPlan(children, tuple(weight / 10 for weight in weights))
    for c in SHARES:
        quota = int(c * 3 * size)
        planned = plan_shares([size] * 3, weights, quota)
        possible = sum(weight / 10 * share / size for weight, share in zip(weights, planned, strict=True))
        found = [
            steady(plan, 3, max(2, epochs // 4), policy="pin", quota=quota, shares=dict(enumerate(planned))),
            steady(plan, 3, max(2, epochs // 4), policy="pin", quota=quota),
            steady(plan, 3, max(2, epochs // 4), policy="lru", quota=quota),
        ]
        good = good and found[0] >= 0.98 * c
        print(f"| {c} | {' | '.join(f'{share:.3f}' for share in found)} | {possible:.3f} |")
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
