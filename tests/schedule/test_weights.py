"""Weights that change at steps, and even draws: pure functions of positions, for any split of the reading."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from repetitions import examples

from energon_stream.errors import ConfigError, EmptyStreamError
from energon_stream.schedule import (
    BlendPlan,
    CursorCodec,
    LeafPlan,
    OrderSpec,
    RepeatPlan,
    WeightChange,
    build_schedule,
    check_cursor,
    first_batch,
)
from energon_stream.schedule.weights import EvenDraws, first_reference
from energon_stream.state import dumps, loads

weights = (
    st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 1e3)), min_size=3, max_size=3).filter(any).map(tuple)
)
changes = st.dictionaries(st.integers(0, 90), weights, max_size=4).map(
    lambda found: tuple(WeightChange(*each) for each in sorted(found.items()))
)


def plan_of(base, later=(), per_batch=1, even=False, samples=(30, 17, 5)):
    order = OrderSpec(4, 8, 2, 1)
    children = tuple(
        RepeatPlan(LeafPlan(number, np.array([0, size]), order)) for number, size in enumerate(samples)
    )
    return BlendPlan(children, base, tuple(later), per_batch, even)


def pairs(refs):
    return list(zip(refs.leaf.tolist(), refs.index.tolist(), strict=True))


@examples(60)
@given(weights, changes, st.booleans(), st.integers(1, 4), st.data())
def test_cursor_laws_hold_over_changes(base, later, even, per_batch, data):
    schedule = build_schedule(plan_of(base, later, per_batch, even), num_streams=2, stream=1, key=3)
    everything, end = schedule.take(schedule.begin(), 150)
    cursor, got, codec = schedule.begin(), [], CursorCodec(schedule)
    while len(got) < 150:
        count = data.draw(st.integers(1, 150 - len(got)))
        refs, after = schedule.take(cursor, count)
        assert schedule.advance(cursor, count) == after
        got += pairs(refs)
        cursor = codec.unpack(loads(dumps(codec.pack(after))))
        check_cursor(schedule, cursor, 0)
    assert (got, cursor) == (pairs(everything), end)


@examples(60)
@given(
    st.lists(st.one_of(st.just(0.0), st.floats(1e-9, 1e6)), min_size=1, max_size=40).filter(any),
    st.integers(0, 9),
    st.lists(st.integers(1, 60), min_size=1, max_size=6),
)
def test_even_draws_are_within_one_of_every_share_at_every_point(shares, key, takes):
    rule, total = EvenDraws(shares, key), math.fsum(shares)
    counts, drawn, ahead = np.zeros(len(shares), dtype=int), 0, 0
    for take in takes:
        chosen, ahead = rule.take(drawn, ahead, take)
        for source in chosen.tolist():
            counts[source] += 1
            drawn += 1
            assert (np.abs(counts - np.array(shares) / total * drawn) < 1 + 1e-9).all()
        assert rule.counts(drawn, ahead) == counts.tolist()


@examples(100)
@given(st.integers(0, 10**6), st.integers(1, 64), st.data())
def test_a_step_is_one_reference_of_each_stream(step, streams, data):
    stream, per_batch = data.draw(st.integers(0, streams - 1)), data.draw(st.integers(1, 9))
    begin = first_reference(step, streams, stream, per_batch)
    batches = sum(1 for number in range(max(0, step - streams * 2), step) if number % streams == stream)
    assert begin == per_batch * (batches + max(0, (step - streams * 2 - stream + streams - 1) // streams))
    at = data.draw(st.integers(0, 10**6))
    first = first_batch(at, streams, stream, per_batch)
    assert first_reference(first, streams, stream, per_batch) >= at
    assert not first or first_reference(first - 1, streams, stream, per_batch) < at


def test_random_draws_without_changes_are_those_of_before():
    plain = build_schedule(plan_of((3.0, 1.0, 2.0)), num_streams=1, stream=0, key=9)
    changed = build_schedule(
        plan_of((3.0, 1.0, 2.0), [WeightChange(40, (0.0, 1.0, 0.0))]), num_streams=1, stream=0, key=9
    )
    before, after = (pairs(schedule.take(schedule.begin(), 60)[0]) for schedule in (plain, changed))
    assert before[:40] == after[:40]
    assert {leaf for leaf, _ in after[40:]} == {1}
    assert CursorCodec(plain).pack(plain.begin()) == (0, 0, ((0, 0, (0, 0, 0, 0)),) * 3)


@pytest.mark.parametrize("draws", [40_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_a_million_draws_with_twenty_changes_are_even_and_lose_nothing(draws):
    """Whatever the pieces in which a stream is read; see test_live_mixtures for changes of the topology."""
    random, streams, per_batch = np.random.default_rng(4), 4, 8
    steps = np.sort(random.choice(draws // per_batch, 20, replace=False))
    later = [WeightChange(int(step), tuple(random.dirichlet([1, 1, 1]))) for step in steps]
    plan = plan_of((0.5, 0.3, 0.2), later, per_batch, True, (3000, 700, 411))
    passes = [Counter() for _ in range(3)]
    for stream in range(streams):
        schedule = build_schedule(plan, num_streams=streams, stream=stream, key=stream)
        refs, end = schedule.take(schedule.begin(), draws // streams)
        bounds = [first_reference(change.begin, streams, stream, per_batch) for change in later]
        for begin, stop, change in zip(
            [0, *bounds], [*bounds, draws // streams], [WeightChange(0, plan.weights), *later], strict=True
        ):
            drawn = np.arange(1, stop - begin + 1)
            for leaf, weight in enumerate(change.weights):
                off = np.cumsum(refs.leaf[begin:stop] == leaf) - drawn * weight / sum(change.weights)
                assert np.abs(off).max(initial=0) < 1 + 1e-6
        for leaf in range(3):
            passes[leaf].update(refs.index[refs.leaf == leaf].tolist())
            whole = schedule.children[leaf].inner.length
            counts = Counter(refs.index[refs.leaf == leaf].tolist()).values()
            at = end.children[leaf]
            assert max(counts) - min(counts) <= 1
            assert sum(counts) == at.current * whole + at.inner.position


@pytest.mark.parametrize(
    ("base", "later"),
    [
        ((0.0, 0.0, 0.0), ()),
        ((1.0, -1.0, 1.0), ()),
        ((1.0, 1.0, 1.0), [WeightChange(3, (0.0, 0.0, 0.0))]),
        ((1.0, 1.0, 1.0), [WeightChange(3, (1.0, float("nan"), 0.0))]),
    ],
)
def test_impossible_weights_are_named(base, later):
    with pytest.raises(ConfigError, match="weights"):
        build_schedule(plan_of(base, later), num_streams=1, stream=0, key=1)


def test_a_stream_without_samples_of_the_sources_with_weight_is_named():
    def all_streams():
        return [build_schedule(plan_of((0.0, 0.0, 1.0)), num_streams=6, stream=n, key=1) for n in range(6)]

    with pytest.raises(EmptyStreamError, match="from reference 0 on"):
        all_streams()  # five samples
    blend = BlendPlan(tuple(child.child for child in plan_of((1.0, 1.0, 1.0)).children), (1.0, 1.0, 0.0))
    with pytest.raises(ConfigError, match="that end"):
        build_schedule(blend, num_streams=1, stream=0, key=1)
