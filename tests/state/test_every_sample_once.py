"""Samples, as integers, through changes of ranks: none is missing, none comes twice.

``make test`` takes a fortieth of them, ``make test-all`` a million as well. The plan, the cursors, the
states and the dealing are the library's; only the bytes are left out.
"""

import random
from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
from repetitions import is_nightly

from energon_stream import WorkerConfig, get_savable_loader
from energon_stream.pipeline import EpochizeDataset, RepeatDataset
from energon_stream.pipeline.dataset import SavableDataset
from energon_stream.pipeline.node import END, Item
from energon_stream.rng import derive_key
from energon_stream.schedule import (
    BlendPlan,
    CursorCodec,
    LeafPlan,
    OrderSpec,
    RepeatPlan,
    build_schedule,
    stream_shares,
)
from energon_stream.state import dumps, loads, redistribute

STREAMS = 24
WORLDS = (1, 2, 3, 4, 6, 8, 12, 24)
REPEATS = [1, 2, 1, 1.5, 3, 1, 1, 2, 1, 1, 1.25, 1, 2, 1, 1, 1, 1, 1]


class Sources:
    """The plan of a ``blend_epochized`` of eighteen datasets, and the numbers of their first samples."""

    def __init__(self, share):
        starts = [self.shards(leaf, share) for leaf in range(len(REPEATS))]
        self.offsets = np.cumsum([0, *(int(some[-1]) for some in starts)])
        order = OrderSpec(
            max_samples_per_sequence=100,
            parallel_slices=8,
            shuffle_over_epochs=1,
            shuffle_window=1000 // share,
        )
        leaves = [LeafPlan(leaf, some, order) for leaf, some in enumerate(starts)]
        self.plan = BlendPlan(
            tuple(RepeatPlan(leaf, repeats) for leaf, repeats in zip(leaves, REPEATS, strict=True)),
            tuple(leaf.num_samples * repeats for leaf, repeats in zip(leaves, REPEATS, strict=True)),
        )
        self.batch = 4000 // share
        self.runs = (25, 60) if share == 1 else (8, 20)  # batches from one topology to the next
        self.worlds = WORLDS if share == 1 else WORLDS[:6]

    @staticmethod
    def shards(leaf, share):
        """Of 40 to 7,500 samples; every source has other sizes."""
        most = 750 * (1 + leaf % 10) // share
        count = 20 + leaf if share == 1 else 4 + leaf // 3
        sizes = np.random.default_rng(leaf).integers(40, most, size=count)
        return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


@pytest.fixture(params=[16, pytest.param(1, marks=pytest.mark.slow)], ids=["few", "million"])
def sources(request):
    return Sources(request.param)


class _Node:
    def __init__(self, dataset, context, state):
        self._sources = dataset.sources
        key = derive_key(context.config.seed_offset, context.stream, "source")
        self._schedule = build_schedule(
            dataset.sources.plan, num_streams=STREAMS, stream=context.stream, key=key
        )
        self._codec = CursorCodec(self._schedule)
        self._epoch = 0 if state is None else state["epoch"]
        self._at = self._schedule.begin() if state is None else self._codec.unpack(state["at"])

    def next(self):
        refs, self._at = self._schedule.take(self._at, self._sources.batch)
        if not len(refs):
            self._epoch += 1
            self._at = self._schedule.begin(self._epoch)
            return END
        return Item(self._sources.offsets[refs.leaf] + refs.index, ("Refs",))

    def state(self):
        return {"epoch": self._epoch, "at": self._codec.pack(self._at)}

    def close(self):
        pass


class Numbers(SavableDataset):
    """Batches of the numbers of samples, in the plan's order."""

    def __init__(self, sources, worker_config):
        self.sources, self.worker_config = sources, worker_config

    def make_node(self, context, state):
        return _Node(self, context, state)

    def len_stream(self, stream):
        return None

    def restore_many(self, keys: Sequence, context):
        raise NotImplementedError

    def config(self):
        return {"type": "Numbers"}


def expected(sources):
    """How often each sample comes in a pass: of a fraction, each stream gives the beginning of a pass of its
    own.
    """
    offsets, plan = sources.offsets, sources.plan
    least, most = np.zeros(offsets[-1], dtype=int), np.zeros(offsets[-1], dtype=int)
    for leaf, repeats in enumerate(REPEATS):
        part = slice(offsets[leaf], offsets[leaf + 1])
        least[part], most[part] = np.floor(repeats), np.ceil(repeats)
    total = 0
    for stream in range(STREAMS):
        for (_, first, last), repeats in zip(stream_shares(plan, STREAMS, stream), REPEATS, strict=True):
            total += (last - first) * int(repeats) + int((last - first) * (repeats % 1))
    return least, most, total


class Job:
    """Ranks that go from pass to pass and from topology to topology."""

    def __init__(self, make):
        self.make = make
        self.states = None
        self.given = 0

    def start(self, world):
        loaders = [
            get_savable_loader(self.make(WorkerConfig(rank, world, 0, num_streams=STREAMS)))
            for rank in range(world)
        ]
        for loader in loaders:
            loader.restore_state_global(self.states)
        return loaders

    def run(self, world, steps):
        """Some batches of all ranks in turn, from within a pass."""
        loaders = self.start(world)
        ranks = [iter(loader) for loader in loaders]
        found = [next(ranks[number % world]) for number in range(self.given, self.given + steps)]
        self.given += steps
        self.save(loaders)
        return np.concatenate(found)

    def finish(self, world):
        """All batches that are left of a pass."""
        loaders = self.start(world)
        found = [batch for loader in loaders for batch in loader]
        self.given = 0
        self.save(loaders)
        return np.concatenate(found)

    def save(self, loaders):
        self.states = [loads(dumps(loader.save_state_rank())) for loader in loaders]
        random.Random(self.given).shuffle(self.states)  # files come in any order


def test_each_sample_comes_as_often_as_the_plan_says(sources):
    least, most, total = expected(sources)
    assert len(least) > 3 * sources.runs[1] * sources.batch
    draw = random.Random(1)
    job = Job(partial(Numbers, sources))
    for _ in range(2):  # the second pass has another order, and begins on another number of ranks
        found = [job.run(draw.choice(sources.worlds), draw.randrange(*sources.runs)) for _ in range(3)]
        job.states = redistribute(job.states, draw.choice(sources.worlds))
        found.append(job.finish(job.states[0]["topology"]["world_size"]))
        counts = np.bincount(np.concatenate(found), minlength=len(least))
        assert counts.sum() == total
        assert (counts >= least).all()
        assert (counts <= most).all()


def test_virtual_epochs_leave_nothing_out(sources):
    """Epochs of 60 batches, no multiple of the streams, cut the sequence that has no epochs."""
    epoch, epochs = 156 if is_nightly() else 60, 3
    count = epoch * epochs
    whole = get_savable_loader(RepeatDataset(Numbers(sources, WorkerConfig(0, 1, 0, num_streams=STREAMS))))
    batches = iter(whole)
    sequence = np.concatenate([next(batches) for _ in range(count)])
    job = Job(lambda config: EpochizeDataset(Numbers(sources, config), epoch // config.world_size))
    draw, found = random.Random(3), []
    while len(found) < epochs:
        world = draw.choice([1, 2, 3, 4, 6, 12])
        loaders = job.start(world)
        for _ in range(min(draw.randrange(1, 4), epochs - len(found))):
            ranks = [list(loader) for loader in loaders]
            assert {len(some) for some in ranks} == {epoch // world}
            found.append([batch for step in zip(*ranks, strict=True) for batch in step])
        job.save(loaders)
    assert np.array_equal(np.concatenate([batch for some in found for batch in some]), sequence)
