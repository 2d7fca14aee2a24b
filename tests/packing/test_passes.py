"""Packs of endless runs keep to passes: few have a sample twice, and a pass comes before the next one."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energon_stream.schedule import (
    BlendPlan,
    JobPacks,
    LeafPlan,
    OrderSpec,
    PackSpec,
    RepeatPlan,
    build_schedule,
)
from energon_stream.schedule.copies import part_copies
from energon_stream.schedule.several_costs import PackKind

ROOM = 2048


def lengths_of(samples, seed=1):
    return np.clip(np.random.default_rng(seed).lognormal(5, 0.8, samples), 5, ROOM).astype(np.int64)


def job_of(sizes, streams, window=8, more=(), weights=None):
    """The packs of a job over leaves of some sizes, four packs a stream in a step."""
    leaves = [
        RepeatPlan(LeafPlan(n, np.array([0, size]), OrderSpec(20, 100, 16, 1)))
        for n, size in enumerate(sizes)
    ]
    plan = leaves[0] if weights is None else BlendPlan(tuple(leaves), weights)
    costs = tuple(lengths_of(size, 1 + n) for n, size in enumerate(sizes))
    others = tuple(tuple(np.arange(size) * 7919 % 9 for size in sizes) for _ in more)
    each = ROOM / np.concatenate(costs).mean()
    spec = PackSpec(ROOM, 4 * streams, window, "quadratic", "error", more=more).in_chapters(each, streams)
    mixed = int(spec.packs * each)
    job = build_schedule(plan, num_streams=1, stream=0, key=3, mixed=mixed)
    return JobPacks(job, spec, costs, streams, 3, others)


def packs_of(job, count):
    """Samples of the first packs, as ranks of one stream get them, step by step."""
    found = []
    for window in job.windows():
        packs = []
        for own in window.streams:
            pairs = list(zip(own.refs.leaf.tolist(), own.refs.index.tolist(), strict=True))
            packs.append([pairs[a:b] for a, b in zip([0, *own.ends], own.ends, strict=False)])
        found += [pack for row in zip(*packs, strict=True) for pack in row]
        if len(found) >= count:
            return found[:count]
    raise AssertionError("the run is not endless")


@pytest.mark.parametrize(
    ("streams", "window", "more"),
    [(8, 8, ()), (1, 8, ()), (8, 1, ()), (16, 3, ()), (8, 8, (PackKind("vision", 100, "linear"),))],
)
@pytest.mark.parametrize("samples", [6000, 3500])
def test_few_packs_have_a_sample_twice_and_passes_follow_each_other(samples, streams, window, more):
    """One pass of 6,000 samples once had 801 of them left, and 97 of 603 packs one of them twice."""
    job = job_of([samples], streams, window, more)
    step = 4 * streams * ROOM / lengths_of(samples).mean()  # samples
    seen, twice = Counter(), 0
    for pack in packs_of(job, int(3.2 * samples * lengths_of(samples).mean() / ROOM)):
        twice += len(set(pack)) < len(pack)
        seen.update(pack)
        # Each pass leaves up to a step to the next one, and each window is a little less full than its packs.
        if sum(seen.values()) % 50 < len(pack):
            passes = sum(seen.values()) // samples
            late = sum(passes - seen[0, number] for number in range(samples) if seen[0, number] < passes)
            assert late <= 2 * step + samples // 50
    assert max(seen.values()) <= min(seen[0, number] for number in range(samples)) + 2
    assert (
        twice <= 0.01 * sum(seen.values()) * lengths_of(samples).mean() / ROOM
    )  # few have nothing to exchange


def test_sources_that_come_often_have_few_samples_twice_in_a_pack():
    """A source of 300 samples gives a fourth of them, so that each comes ten times in a window."""
    job = job_of([6000, 300], 8, weights=(3.0, 1.0))
    packs = packs_of(job, 1500)
    assert sum(len(set(pack)) < len(pack) for pack in packs) <= 15
    share = np.mean([leaf for pack in packs for leaf, _ in pack])
    assert share == pytest.approx(1 / 4, abs=0.02)


def test_a_pass_shorter_than_a_step_is_packed_too():
    job = job_of([200], 8)
    seen = Counter(sample for pack in packs_of(job, 640) for sample in pack)
    assert len(seen) == 200
    assert max(seen.values()) <= 2 * min(seen.values())


@given(st.data(), st.integers(2, 8), st.integers(1, 40))
def test_exchanges_keep_pieces_and_rooms(data, packs, pieces):
    sample = np.array(data.draw(st.lists(st.integers(0, 12), min_size=pieces, max_size=pieces)))
    costs = np.array(
        data.draw(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 5)), min_size=pieces, max_size=pieces))
    )
    pack = np.array(data.draw(st.lists(st.integers(0, packs - 1), min_size=pieces, max_size=pieces)))
    rooms = [max(int(costs[pack == n, 0].sum()) for n in range(packs)), None]
    found = part_copies(sample, costs, rooms, pack)
    assert np.bincount(found, minlength=packs).tolist() == np.bincount(pack, minlength=packs).tolist()
    assert all(costs[found == n, 0].sum() <= rooms[0] for n in range(packs))

    def copies(of):
        return len(sample) - len(set(zip(of.tolist(), sample.tolist(), strict=True)))

    assert copies(found) <= copies(pack)
