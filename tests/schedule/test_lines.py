"""Even draws along lines: counted by whole numbers from what the page says, batch by batch."""

import bisect
import functools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from repetitions import examples

from energon_stream.config.weight_schedule import parse_schedule, stairs, weight_at
from energon_stream.schedule import (
    BlendPlan,
    CursorCodec,
    LeafPlan,
    Lines,
    OrderSpec,
    RepeatPlan,
    build_schedule,
)
from energon_stream.schedule.lines import Slope, stretch_of
from energon_stream.schedule.weights import BY_SEGMENTS, WeightChange, changes_along
from energon_stream.state import dumps, loads

PARTS = 10**30


def weight_of(told, batch):
    """PARTS times the weight of the line in the middle of a batch.

    ``told`` are batches, weights, and True for a ramp.
    """
    at = bisect.bisect(told, batch, key=lambda each: each[0]) - 1
    begin, first, _ = told[at]
    if at + 1 == len(told) or not told[at + 1][2]:
        return whole(first)
    end, last, _ = told[at + 1]
    return whole(first) + (whole(last) - whole(first)) * (2 * (batch - begin) + 1) // (2 * (end - begin))


@functools.cache
def whole(weight):
    return int(Fraction(weight) * PARTS)


def shares_at(blends, chains, batch):
    """The share of each source in a batch, as whole numbers of PARTS."""
    weights = [[weight_of(told, batch) for told in blend] for blend in blends]
    sums = [sum(each) or 1 for each in weights]
    found = [PARTS] * len(chains)
    for source, chain in enumerate(chains):
        for blend, child in chain:
            found[source] = found[source] * weights[blend][child] // sums[blend]
    total = sum(found)
    return [share * PARTS // total for share in found]


def lines_of(blends, chains):
    def document(told):
        return {begin: {"to": weight, "ramp": "linear"} if ramp else weight for begin, weight, ramp in told}

    return Lines(
        tuple(tuple(parse_schedule(document(told), "here") for told in blend) for blend in blends), chains
    )


def plan_along(lines, per_batch, samples=900, order=OrderSpec()):  # noqa: B008
    weights = stretch_of(lines, 0).weights(np.zeros(1))[:, 0].tolist()
    children = [RepeatPlan(LeafPlan(n, np.array([0, samples]), order)) for n in range(len(weights))]
    return BlendPlan(tuple(children), tuple(weights), (), per_batch, True, None, BY_SEGMENTS, lines=lines)


def furthest(blends, chains, streams, per_batch, rounds):
    """The largest distance of a source from its share, after each round of all streams."""
    plan, drawn = plan_along(lines_of(blends, chains), per_batch), []
    every = [build_schedule(plan, num_streams=streams, stream=each, key=each) for each in range(streams)]
    for schedule in every:  # which draw rounds together
        leaf = schedule.take(schedule.begin(), rounds * per_batch)[0].leaf
        had = np.zeros((rounds, len(chains)), dtype=int)
        np.add.at(had, (np.arange(len(leaf)) // per_batch, leaf), 1)
        drawn.append(had.tolist())
    behind, worst = [0] * len(chains), 0
    for number in range(rounds):
        for stream in range(streams):
            shares = shares_at(blends, chains, number * streams + stream)
            for source, (share, had) in enumerate(zip(shares, drawn[stream][number], strict=True)):
                assert share or not had
                behind[source] += per_batch * share - PARTS * had
        worst = max(worst, *map(abs, behind))
    return worst / PARTS


def single(number):
    return tuple(((0, source),) for source in range(number))


weights = st.one_of(st.sampled_from([0.0, 1.0, 2.0]), st.floats(1e-5, 1.0))
courses = st.lists(st.tuples(st.integers(1, 200), weights, st.booleans()), min_size=1, max_size=4).map(
    lambda steps: [
        (0, steps[-1][1], False),
        *((sum(each[0] for each in steps[: n + 1]), *steps[n][1:]) for n in range(len(steps))),
    ]
)
blends = st.integers(1, 7).flatmap(lambda size: st.lists(courses, min_size=size, max_size=size))


@examples(40)
@example([[(0, 0.0, False), (300, 1.0, True)]], 5, 3, 1)
@example([[(0, 1.0, False), (100, 0.0, True), (170, 1.0, True)]], 64, 1, 1)
@example([[(0, 1e-9, False), (400, 1.0, True)], [(0, 1.0, False), (400, 1e-9, True)]], 8, 16, 1e-6)
@given(blends, st.sampled_from([1, 3, 8, 64]), st.integers(1, 20), st.sampled_from([1e-6, 1.0]))
def test_each_round_of_even_draws_is_within_one_of_the_lines(told, streams, per_batch, beside):
    told = [*told, [(0, beside, False)]]
    rounds = min(512, max(course[-1][0] for course in told) + 100) // streams + 1
    assert furthest([told], single(len(told)), streams, per_batch, rounds) <= 1 + 1e-3


def test_blends_in_blends_follow_their_lines():
    blends = [
        [[(0, 1, False), (150, 3, True)], [(0, 2, False)]],
        [[(0, 1, False), (100, 0.1, True), (300, 2, True)], [(0, 1, False)], [(0, 0.5, False)]],
    ]
    chains = (((0, 0), (1, 0)), ((0, 0), (1, 1)), ((0, 1),), ((0, 0), (1, 2)))
    assert furthest(blends, chains, 8, 3, 45) <= 1


@pytest.mark.parametrize(
    ("told", "streams", "per_batch", "rounds"),
    [
        ([[(0, 0, False), (16_384, 1, True)], [(0, 1, False)]], 64, 4, 256),  # 65,536 samples
        ([[(0, 1, False), (4096, 1000, True)], [(0, 1, False)], [(0, 5, False), (4096, 0, True)]], 64, 1, 64),
        pytest.param(
            [[(0, 0, False), (312_512, 1, True)], [(0, 1, False)]], 64, 32, 4883, marks=pytest.mark.slow
        ),
    ],
)
def test_long_lines_are_followed_to_the_sample(told, streams, per_batch, rounds):
    """64 stairs are off the first line by two samples, and off the last, of ten million, by 300."""
    assert furthest([told], single(len(told)), streams, per_batch, rounds) <= 1 + 1e-6


@examples(30)
@given(st.integers(0, 700), st.data())
def test_draws_along_lines_go_on_from_any_place(begin, data):
    told = [
        [(0, 1, False), (200, 0, True), (280, 2, True)],
        [(0, 0, False), (150, 1, True)],
        [(0, 0.3, False)],
    ]
    plan = plan_along(lines_of([told], single(3)), 3, order=OrderSpec(4, 8, 2, 1))
    schedule = build_schedule(plan, num_streams=2, stream=1, key=3)
    everything, end = schedule.take(schedule.begin(), 800)
    codec, cursor, got = CursorCodec(schedule), schedule.advance(schedule.begin(), begin), begin
    while got < 800:
        count = data.draw(st.integers(1, 800 - got))
        cursor = codec.unpack(loads(dumps(codec.pack(cursor))))
        again = build_schedule(plan, num_streams=2, stream=1, key=3)
        refs, cursor = again.take(cursor, count)
        assert refs.index.tolist() == everything.index[got : got + count].tolist()
        got += count
    assert cursor == end


@pytest.mark.parametrize(("first", "last"), [(1, 3), (0, 1), (1, 0), (1e-7, 1), (1, 1)])
def test_the_draw_by_which_a_sample_is_due_is_that_of_the_sums(first, last):
    """The inverse of what batches have, added up by fractions."""
    told, batches, per_batch = [[(0, first, False), (1000, last, True)], [(0, 1, False)]], 1000, 7
    lines = lines_of([told], single(2))
    slope, had = Slope(stretch_of(lines, 0), 0, batches * per_batch), [0]
    for batch in range(batches):
        had.append(had[-1] + per_batch * shares_at([told], single(2), batch)[0])
    for begin in range(0, 1000, 90):
        for missing in (1, 40, 2000):
            due, got = slope.end(0, missing << 48, begin * per_batch)
            target = had[begin] + missing * PARTS
            if target > had[-1]:
                assert due is None
                assert got / 2**48 == pytest.approx((had[-1] - had[begin]) / PARTS, abs=1e-3)
            else:
                at = next(n for n, each in enumerate(had) if each >= target)
                assert (at - 1) * per_batch - 1 <= due <= at * per_batch + 1


def test_random_draws_keep_their_stairs():
    course = parse_schedule({0: 1, 640: {"to": 2, "ramp": "linear"}}, "here")
    assert [weight_at(stairs(course), batch) for batch in (0, 9, 10, 639, 640)] == [
        1 + 0.5 / 64,
        1 + 0.5 / 64,
        1 + 1.5 / 64,
        1 + 63.5 / 64,
        2,
    ]


def test_lines_are_plain_values_in_a_description():
    lines = lines_of([[[(0, 1, False), (90, 2, True)], [(0, 1, False)]]], single(2))
    assert Lines.read(lines.describe()) == lines
    assert lines.are_long
    short = lines_of([[[(0, 1, False), (4, 2, True)], [(0, 1, False)]]], single(2))
    assert not short.are_long
    assert list(changes_along(short))[:2] == [
        WeightChange(0, (9 / 17, 8 / 17)),
        WeightChange(1, (11 / 19, 8 / 19)),
    ]
