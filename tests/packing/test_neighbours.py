"""Windows of small samples: few runs of neighbours a stream, even steps, and each sample once."""

import itertools

import numpy as np
import pytest

from energon_stream.schedule import JobPacks, LeafPlan, OrderSpec, PackSpec, RepeatPlan, build_schedule

SAMPLES, SLICE, CAPACITY, WINDOW, EACH = 12_000, 100, 8192, 8, 4


def lengths_of(kind):
    draw = np.random.default_rng(0)
    found = draw.lognormal(np.log(650), 0.7, SAMPLES)
    if kind == "uniform":
        found = draw.uniform(100, 1500, SAMPLES)
    if kind == "clustered":  # shards differ in the lengths of their samples
        found *= np.repeat(draw.lognormal(0, 0.7, SAMPLES // 500), 500)
    return np.clip(found, 1, CAPACITY).astype(np.int64)


def windows_of(lengths, streams, mixed, count):
    plan = RepeatPlan(LeafPlan(0, np.arange(0, SAMPLES + 1, 500), OrderSpec(SLICE, 500, 16, 1)))
    order = build_schedule(plan, num_streams=1, stream=0, key=1, mixed=mixed)
    packs = JobPacks(
        order, PackSpec(CAPACITY, streams * EACH, WINDOW, "quadratic", "error"), (lengths,), streams, 1
    )
    return list(itertools.islice(packs.windows(), count))


@pytest.mark.parametrize("kind", ["uniform", "lognormal", "clustered"])
@pytest.mark.parametrize("streams", [2, 8])
def test_streams_have_few_runs_of_neighbours_and_even_steps(kind, streams):
    lengths = lengths_of(kind)
    mixed = int(streams * EACH * WINDOW * CAPACITY / lengths.mean())
    runs, tokens, samples, packs, uneven = 0, 0, 0, 0, []
    for window in windows_of(lengths, streams, mixed, 3):
        rows = []
        for own in window.streams:
            sizes = own.stop - own.start
            bounds = [0, *own.ends]
            each = [sizes[first:last] for first, last in itertools.pairwise(bounds)]
            assert max(pack.sum() for pack in each) <= CAPACITY
            assert (sizes == lengths[own.refs.index]).all()
            rows.append([float((pack**2.0).sum()) for pack in each])
            runs += 1 + int((np.diff(np.unique(own.refs.index)) > 1).sum())
            tokens, samples, packs = tokens + int(sizes.sum()), samples + len(sizes), packs + len(each)
        loads = np.array(rows).reshape(streams, WINDOW, EACH).sum(axis=2)
        uneven += (loads.max(axis=0) / loads.mean(axis=0)).tolist()
    assert runs <= 4 * samples / SLICE
    assert tokens / packs >= 0.97 * CAPACITY
    assert max(uneven) <= 1.04


@pytest.mark.parametrize("mixed", [1, 40, 700, 1600, 10**6])
@pytest.mark.parametrize(
    "order", [OrderSpec(30, 50, 8, 1), OrderSpec(None, 0, 1, None), OrderSpec(30, 64, 1, None)]
)
def test_a_pass_has_each_sample_once_whatever_is_mixed_later(mixed, order):
    plan = LeafPlan(0, np.array([0, 333, 350, 351, 1000]), order)
    schedule = build_schedule(plan, num_streams=1, stream=0, key=1, mixed=mixed)
    refs, _ = schedule.take(schedule.begin(), 2000)
    assert sorted(refs.index.tolist()) == list(range(1000))
    cursor, parts = schedule.begin(), []
    for count in (1, 7, 500, 2, 490):
        part, cursor = schedule.take(cursor, count)
        parts += part.index.tolist()
    assert parts == refs.index.tolist()


def test_nothing_mixed_later_is_the_order_of_before():
    plan = LeafPlan(0, np.array([0, 333, 1000]), OrderSpec(30, 50, 8, 1))
    one, other = (build_schedule(plan, num_streams=1, stream=0, key=1, mixed=mixed) for mixed in (0, 1))
    assert one.take(one.begin(), 1000)[0].index.tolist() == other.take(other.begin(), 1000)[0].index.tolist()
