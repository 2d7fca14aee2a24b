"""Weights that change at steps, and even draws: pure functions of positions, for any split of the reading."""

import functools
import zlib
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from calls import counted
from hypothesis import example, given
from hypothesis import strategies as st
from repetitions import examples

from energon_stream.errors import ConfigError, EmptyStreamError
from energon_stream.schedule import (
    ALONG_LINES,
    BY_SEGMENTS,
    BlendPlan,
    CursorCodec,
    Knot,
    LeafPlan,
    Lines,
    OrderSpec,
    RepeatPlan,
    WeightChange,
    build_schedule,
    check_cursor,
    first_batch,
)
from energon_stream.schedule.weights import EvenDraws, changes_along, first_reference
from energon_stream.state import dumps, loads

weights = (
    st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 1e3)), min_size=3, max_size=3).filter(any).map(tuple)
)
changes = st.dictionaries(st.integers(0, 90), weights, max_size=4).map(
    lambda found: tuple(WeightChange(*each) for each in sorted(found.items()))
)


def plan_of(base, later=(), per_batch=1, even=False, samples=(30, 17, 5), foresees=0):
    order = OrderSpec(4, 8, 2, 1)
    children = tuple(
        RepeatPlan(LeafPlan(number, np.array([0, size]), order)) for number, size in enumerate(samples)
    )
    told = [WeightChange(0, base), *later]
    courses = zip(*([Knot(each.begin, weight) for weight in each.weights] for each in told), strict=True)
    lines = Lines((tuple(map(tuple, courses)),), tuple(((0, source),) for source in range(len(base))))
    lines = lines if foresees == BY_SEGMENTS else None
    return BlendPlan(children, base, tuple(later), per_batch, even, foresees=foresees, lines=lines)


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


PARTS = 10**30


def behind(plan, streams, rounds, missing=frozenset()):
    """How far each source is from its share, by whole numbers of PARTS: at the end of each round, and in each
    stream.
    """
    leaves = (child.child for child in plan.children)
    children = tuple(RepeatPlan(replace(leaf, order=OrderSpec())) for leaf in leaves)  # which takes less time
    plan = replace(plan, children=children)
    every = [build_schedule(plan, num_streams=streams, stream=each, key=each) for each in range(streams)]
    drawn = [each.take(each.begin(), rounds * plan.per_batch)[0].leaf.tolist() for each in every]
    weights = [WeightChange(0, plan.weights), *plan.changes]

    @functools.cache
    def shares(change, absent):
        now = [
            Fraction(0 if source in absent else weight)
            for source, weight in enumerate(weights[change].weights)
        ]
        return [int(plan.per_batch * PARTS * weight / sum(now)) for weight in now]

    job = [0] * len(plan.weights)
    of_stream = [list(job) for _ in range(streams)]
    furthest = []
    for batch in range(rounds * streams):
        number, stream = divmod(batch, streams)
        change = max(number for number, each in enumerate(weights) if each.begin <= batch)
        now = shares(change, frozenset(source for source, where in missing if where == stream))
        for source, share in enumerate(now):
            job[source] += share
            of_stream[stream][source] += share
        for source in drawn[stream][number * plan.per_batch : (number + 1) * plan.per_batch]:
            assert now[source]
            job[source] -= PARTS
            of_stream[stream][source] -= PARTS
        if stream + 1 == streams:
            furthest.append(max(map(abs, job)))
    return max(furthest) / PARTS, max(abs(each) for counted in of_stream for each in counted) / PARTS


def ramp(first, last, begin, end, stairs):
    for number in range(stairs):
        middle = (number + 0.5) / stairs
        at = begin + (end - begin) * number // stairs
        yield WeightChange(at, tuple(a + (b - a) * middle for a, b in zip(first, last, strict=True)))


shares = st.integers(2, 20).flatmap(
    lambda size: st.tuples(*2 * [st.lists(st.floats(1e-4, 1.0), min_size=size, max_size=size).map(tuple)])
)


@examples(25)
@given(shares, st.sampled_from([1, 2, 5, 12]), st.integers(1, 8), st.sampled_from(["", "stairs", "ramp"]))
def test_each_round_of_even_draws_is_within_one_of_every_share(weights, streams, per_batch, kind):
    first, last = weights
    stairs = {"": [], "stairs": [WeightChange(7, last), WeightChange(40, first)]}
    changes = stairs.get(kind) or list(ramp(first, last, 5, 80, 16))
    plan = plan_of(first, changes if kind else [], per_batch, True, (90,) * len(first))
    job, stream = behind(plan, streams, 96 // streams)
    assert job <= 1 + 1e-9
    assert stream < 6


@pytest.mark.every(2)
@pytest.mark.parametrize("per_batch", [1, 3])
def test_64_streams_do_not_draw_alike(per_batch):
    """At main, 9 : 1 gave steps of 64 samples of one source, and the ramp 4,060 of the heavier one."""
    plan = plan_of((9.0, 1.0), (), per_batch, True, (900, 900))
    assert max(behind(plan, 64, 24)) <= 1 + 1e-9
    plan = plan_of((1.0, 1.0), ramp((1, 1), (3, 1), 0, 4096, 64), 1, True, (900, 900))
    assert max(behind(plan, 64, 64)) < 2


@examples(30)
@example([(10.0, 5.0, 5.0, 1.0, 1.0), (1e-4, 1e-4, 1e-4, 2.0, 2.0)], [6, 1, 1, 1, 1], 1, 3, False)
@given(
    st.integers(2, 12).flatmap(
        lambda size: st.lists(
            st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 1.0)), min_size=size, max_size=size)
            .filter(any)
            .map(tuple),
            min_size=2,
            max_size=6,
        )
    ),
    st.lists(st.integers(1, 12), min_size=5, max_size=5),
    st.sampled_from([1, 3, 64]),
    st.integers(1, 6),
    st.booleans(),
)
def test_planned_changes_are_foreseen(weights, rounds, streams, per_batch, is_ramp):
    """The first one made a source 1.32 samples late. Counted batch by batch."""
    begins = np.cumsum([0, *rounds])[: len(weights)] * streams + streams // 3
    changes = [WeightChange(int(at), each) for at, each in zip(begins[1:], weights[1:], strict=True)]
    if is_ramp:
        changes = list(ramp(weights[0], weights[-1], int(begins[0]), int(begins[-1]), 16))
        changes = [each for each in changes if any(each.weights)]
    plan = plan_of(weights[0], changes, per_batch, True, (900,) * len(weights[0]), BY_SEGMENTS)
    assert behind(plan, streams, 24)[0] <= 1 + 1e-9


def random_plan(seed):
    random = Random(seed)
    sources, absent, begins = random.randint(2, 8), random.choice([0, 0.3, 0.6]), [0]
    weights = [
        [(random.random() >= absent) * 10 ** -random.random() for _ in range(sources)] for _ in range(6)
    ]
    for _ in range(5):
        begins.append(begins[-1] + random.randint(1, 12))
    told = [
        WeightChange(at, tuple(own) if any(own) else (1.0, *own[1:]))
        for at, own in zip(begins, weights, strict=True)
    ]
    return plan_of(
        told[0].weights, told[1:], random.choice([1, 3]), True, (900,) * sources, BY_SEGMENTS
    ), begins


@pytest.mark.parametrize("streams", [1, 4])
def test_each_segment_has_its_shares(streams):
    """Counted from one change to the next. In plans like these, sources were up to 1.9 off."""
    for seed in range(30):
        plan, begins = random_plan(seed)
        drawn, size = [], plan.per_batch
        for stream in range(streams):
            schedule = build_schedule(plan, num_streams=streams, stream=stream, key=stream)
            drawn.append(schedule.take(schedule.begin(), 70 * size)[0].leaf.reshape(70, size))
        in_order = np.stack(drawn, axis=1).reshape(-1, size)
        for begin, end in pairwise(begins):
            told = [WeightChange(0, plan.weights), *plan.changes]
            weights = [each.weights for each in told if each.begin <= begin][-1]
            counts = np.bincount(in_order[begin:end].ravel(), minlength=len(weights)).tolist()
            for weight, count in zip(map(Fraction, weights), counts, strict=True):
                share = (end - begin) * size * weight / sum(map(Fraction, weights))
                assert abs(count - share) <= 1 + Fraction(1, 10**9)


def test_each_change_of_many_is_weighed_once_for_all_streams():
    """A hundred changes once took a second for 16 streams, and with their square, a thousand a minute."""
    later = [WeightChange(10 * number, (1.0, 2.0 + number % 3, number % 5)) for number in range(1, 100)]
    plan = plan_of((3.0, 1.0, 1.0), later, 2, True, foresees=BY_SEGMENTS)
    with counted("energon_stream.schedule", "lines.__init__") as made:
        for stream in range(16):
            schedule = build_schedule(plan, num_streams=16, stream=stream, key=1)
            schedule.take(schedule.begin(), 10)
    assert made.total() == 100


def test_draws_before_weights_that_are_set_under_way_do_not_know_them():
    planned = plan_of((3.0, 1.0, 1.0), [WeightChange(40, (1.0, 0.0, 2.0))], 2, True, foresees=BY_SEGMENTS)
    told = planned.with_changes([WeightChange(36, (0.0, 1.0, 5.0))])
    before, after = (
        pairs(schedule.take(schedule.begin(), 40)[0])
        for schedule in (build_schedule(each, num_streams=4, stream=1, key=1) for each in (planned, told))
    )
    assert before[:18] == after[:18]
    assert {leaf for leaf, _ in after[18:]} == {1, 2}


def test_streams_without_some_source_follow_the_weights_of_those_they_have():
    """5 samples in 16 streams: the streams with one, and those without, are even on their own."""
    plan = plan_of((2.0, 1.0, 1.0), (), 2, True, (500, 5, 500))
    first = [build_schedule(plan, num_streams=16, stream=n, key=n) for n in range(16)]
    missing = {(1, n) for n, schedule in enumerate(first) if not schedule.children[1].inner.length}
    assert len(missing) == 11
    job, stream = behind(plan, 16, 40, missing)
    assert job < 2
    assert stream < 2


def test_even_draws_are_those_of_before():
    """Draws and states of 64 streams as the code before the streams of a process shared rounds made them."""
    weights = [WeightChange(0, (3.0, 0.7, 1.0, 0.2)), WeightChange(4100, (1.0, 0.0, 2.0, 5.0))]
    found = []
    for stream in (0, 5, 63):
        rule = EvenDraws(weights, range(64), stream, 64, 1)
        chosen, state = rule.take(0, rule.fresh(0), 150)
        found.append((chosen.tolist(), state))
    assert zlib.crc32(repr(found).encode()) == 1352383745


def test_draws_that_plan_no_segments_are_those_of_before():
    """Recorded before segments were planned: along stairs and long ramps, from and to 0."""
    stairs = [WeightChange(0, (3.0, 0.7, 1.0, 0.2)), WeightChange(300, (1.0, 0.0, 2.0, 5.0))]
    stairs += [WeightChange(777, (0.0, 1.0, 0.0, 4.0)), WeightChange(2000, (1.0, 1.0, 1e-3, 1.0))]
    courses = (
        (Knot(0, 0.0), Knot(900, 1.0, True), Knot(1500, 0.0), Knot(1700, 2.0)),
        (Knot(0, 1.0), Knot(1500, 0.3, True)),
        (Knot(0, 0.5), Knot(700, 0.0, True)),
    )
    lines = Lines((courses,), tuple(((0, source),) for source in range(3)))
    found = []
    for planned in (stairs, list(changes_along(lines))):
        for stream in (0, 5, 63):
            rule = EvenDraws(planned, range(64), stream, 64, 3, planned)
            chosen, state = rule.take(0, rule.fresh(0), 150)
            found.append((chosen.tolist(), state))
    assert zlib.crc32(repr(found).encode()) == 1368332434


def test_single_draws_of_one_stream_are_those_of_before():
    """As planned packs draw; recorded before such draws were made together."""
    weights = [WeightChange(0, (3.0, 0.7, 1.0, 0.2)), WeightChange(700, (1.0, 0.0, 2.0, 5.0))]
    rule = EvenDraws([*weights, WeightChange(1900, (0.0, 1e-3, 0.0, 1.0))], range(1), 0, 1, 1)
    chosen, state = rule.take(0, rule.fresh(0), 5000)
    assert zlib.crc32(repr((chosen.tolist(), state)).encode()) == 1286927837


@pytest.mark.parametrize("begin", [0, 7])
def test_streams_of_a_process_draw_rounds_together(begin):
    """The same draws and states as recorded, each round drawn once; 64 streams once drew each 64 times."""
    weights = [WeightChange(0, (3.0, 0.7, 1.0, 0.2)), WeightChange(4100, (1.0, 0.0, 2.0, 5.0))]
    alone = [EvenDraws(weights, range(64), stream, 64, 1) for stream in range(64)]
    # Some streams are a batch further than others, as in the middle of a turn; then they go on elsewhere.
    at = [begin + (begin > 0 and stream < 20) for stream in range(64)]
    first = [rule.take(0, rule.fresh(0), at[stream]) for stream, rule in enumerate(alone)]
    del alone
    rules = [EvenDraws(weights, range(64), stream, 64, 1) for stream in range(64)]
    chosen, states = [each.tolist() for each, _ in first], [state for _, state in first]
    with counted("energon_stream.schedule", "weights.draw") as drawn:
        for rule, step, (_, state) in zip(rules, at, first, strict=True):
            rule.go_on(step, state) if begin else rule.fresh(0)
        for end in (64, 110, 150):
            for stream, rule in enumerate(rules):
                got, states[stream] = rule.take(at[stream], states[stream], end - at[stream])
                chosen[stream] += got.tolist()
            at = [end] * 64
    found = [(chosen[stream], states[stream]) for stream in (0, 5, 63)]
    assert zlib.crc32(repr(found).encode()) == 1352383745
    assert 0 < drawn.total() < 150 + 64 + 2


def test_draws_that_are_counted_anew_are_counted_once_for_all_streams():
    """Where a dataset changed, each of 64 streams drew the same rounds: 32,000 instead of 500."""
    weights = [WeightChange(0, (3.0, 0.7, 1.0))]
    alone = EvenDraws(weights, range(64), 9, 64, 2)
    expected = alone.take(0, alone.fresh(0), 1000)[1]
    del alone
    rules = [EvenDraws(weights, range(64), stream, 64, 2) for stream in range(64)]
    with counted("energon_stream.schedule", "weights.draw") as drawn:
        assert [rule.fresh(1000) for rule in rules][9] == expected
    assert drawn.total() == 500


def test_even_draws_do_not_drift():
    """A million draws of a source of a 10,000th, one of a third, and the rest."""
    weights = (1 / 3, 1e-4, 1 - 1 / 3 - 1e-4)
    rule, size = EvenDraws([WeightChange(0, weights)], range(2), 1, 2, 500), 500_000
    chosen, _ = rule.take(0, rule.fresh(0), size)
    for source, weight in enumerate(weights):
        assert abs(np.bincount(chosen)[source] - Fraction(weight) / sum(map(Fraction, weights)) * size) < 2


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
def test_a_million_draws_with_twenty_changes_lose_nothing(draws):
    """See test_live_mixtures for changes of the topology."""
    random, streams, per_batch = np.random.default_rng(4), 4, 8
    steps = np.sort(random.choice(draws // per_batch, 20, replace=False))
    later = [WeightChange(int(step), tuple(random.dirichlet([1, 1, 1]))) for step in steps]
    plan = plan_of((0.5, 0.3, 0.2), later, per_batch, True, (3000, 700, 411))
    passes = [Counter() for _ in range(3)]
    for stream in range(streams):
        schedule = build_schedule(plan, num_streams=streams, stream=stream, key=stream)
        refs, end = schedule.take(schedule.begin(), draws // streams)
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


def test_weights_that_a_ramp_begins_with_can_be_set():
    """Lines were compared with None. Of 400 draws each source has its share."""
    courses = (Knot(0, 0.75), Knot(1000, 0.25, True)), (Knot(0, 0.25), Knot(1000, 0.75, True))
    lines = Lines((courses,), (((0, 0),), ((0, 1),)))
    leaves = tuple(RepeatPlan(LeafPlan(each, np.array([0, 900]), OrderSpec(4, 8, 2, 1))) for each in range(2))
    ramp = BlendPlan(leaves, (0.75, 0.25), (), 8, even=True, foresees=ALONG_LINES, lines=lines)
    schedule = build_schedule(
        ramp.with_changes([WeightChange(0, (0.75, 0.25))]), num_streams=1, stream=0, key=1
    )
    assert np.bincount(schedule.take(schedule.begin(), 400)[0].leaf).tolist() == [300, 100]


@pytest.mark.parametrize("course", [[[1, 1.0]], [[0, 1.0], [0, 2.0]], [[0, -1.0]], [["x", 2.0]], []])
def test_damaged_lines_are_refused(course):
    with pytest.raises((ValueError, TypeError, IndexError)):
        Lines.read([[[course]], [[[0, 0]]]])
