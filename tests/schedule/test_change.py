"""Datasets that grew: the passes under way end as they would have, the next ones have all samples of now."""

import dataclasses
from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from repetitions import examples

from energon_stream.schedule import (
    BlendPlan,
    CursorCodec,
    LeafPlan,
    OrderSpec,
    RepeatPlan,
    build_schedule,
    carry,
    earlier_plan,
    in_place,
    leaves,
    passes_under_way,
)

orders = st.one_of(
    st.builds(
        OrderSpec,
        st.one_of(st.none(), st.integers(1, 9)),
        st.integers(0, 20),
        st.integers(1, 4),
        st.sampled_from([1, 2]),
    ),
    st.builds(OrderSpec, st.one_of(st.none(), st.integers(1, 9))),
)
counts = st.lists(st.integers(0, 12), min_size=1, max_size=4)
growing = st.tuples(counts, st.lists(st.integers(0, 12), max_size=3), orders)


@st.composite
def grown_plans(draw):
    """A plan, and how many shards its sources had before; some sources may be new."""
    described = draw(st.lists(growing, min_size=1, max_size=4))
    leaves_of = [
        LeafPlan(number, np.cumsum([0, *before, *after]), order)
        for number, (before, after, order) in enumerate(described)
    ]
    shards = [len(before) for before, _, _ in described]
    size = len(described)
    weights = tuple(draw(st.lists(st.floats(0.2, 3), min_size=size, max_size=size)))
    kind = draw(st.sampled_from(["single", "endless", "epochs"]))
    if kind == "single" or size == 1:
        return RepeatPlan(leaves_of[0], draw(st.sampled_from([None, 2, 1.5]))), shards[:1]
    if draw(st.booleans()) and size > 2:
        shards = shards[:-1]
    if kind == "endless":
        return BlendPlan(tuple(RepeatPlan(leaf) for leaf in leaves_of), weights), shards
    times = draw(st.lists(st.sampled_from([1, 2, 1.5]), min_size=size, max_size=size))
    children = [leaf if n == 1 else RepeatPlan(leaf, n) for leaf, n in zip(leaves_of, times, strict=True)]
    return RepeatPlan(BlendPlan(tuple(children), weights)), shards


def sources(schedule, cursor):
    """Each source's schedule, with where it stands."""
    if hasattr(schedule, "inner"):
        yield from sources(schedule.inner, cursor[2])
    elif hasattr(schedule, "weights"):
        for child, inner in zip(schedule.children, cursor[2], strict=True):
            yield from sources(child, inner)
    else:
        yield schedule, cursor


def indices(source, cursor, count):
    return source.take(cursor, count)[0].index.tolist()


ALL = 10**6


@examples(200)
@given(grown_plans(), st.integers(1, 4), st.data())
def test_passes_under_way_end_as_they_were_and_the_next_ones_have_all(planned, streams, data):
    plan, shards = planned
    old_plan = earlier_plan(plan, in_place(shards))
    begun, following = {}, {}
    for stream in range(streams):
        then = build_schedule(old_plan, num_streams=streams, stream=stream, key=7)
        now = build_schedule(plan, num_streams=streams, stream=stream, key=7)
        cursor = then.begin()
        for _ in range(data.draw(st.integers(0, 2))):
            cursor = then.advance(cursor, data.draw(st.integers(0, 90)))
        codec = CursorCodec(now)
        carried = codec.unpack(codec.pack(carry(then, now, cursor)))
        old = {source.leaf: (source, at) for source, at in sources(then, cursor)}
        counted = {found.leaf: found for found in passes_under_way(now, carried)}
        for source, at in sources(now, carried):
            if source.leaf in old:
                earlier, place = old[source.leaf]
                given = indices(earlier, earlier.begin(place[0]), place[1])
                rest = indices(source, at, ALL)
                assert rest == indices(earlier, place, ALL)
                assert source.remaining(at) == len(rest) == source.length_at(at) - place[1]
                assert counted[source.leaf].consumed == place[1]
                assert counted[source.leaf].left <= len(rest)
                begun.setdefault(source.leaf, Counter()).update(given + rest)
            following.setdefault(source.leaf, Counter()).update(indices(source, source.begin(at[0] + 1), ALL))
    described = {leaf.leaf: leaf for leaf in leaves(plan)}
    for leaf, found in begun.items():
        copies = max(1, described[leaf].order.shuffle_over_epochs or 1)
        before = int(described[leaf].shard_starts[shards[leaf]])
        assert found == Counter(dict.fromkeys(range(before), copies))
    for leaf, found in following.items():
        copies = max(1, described[leaf].order.shuffle_over_epochs or 1)
        assert found == Counter(dict.fromkeys(range(described[leaf].num_samples), copies))


@examples(150)
@given(grown_plans(), st.integers(1, 3), st.integers(0, 120), st.data())
def test_cursor_laws_hold_after_a_change(planned, streams, steps, data):
    """As in test_schedules; a second change comes on top of the first."""
    plan, shards = planned
    then = build_schedule(earlier_plan(plan, in_place(shards)), num_streams=streams, stream=0, key=7)
    now = build_schedule(plan, num_streams=streams, stream=0, key=7)
    cursor = carry(then, now, then.advance(then.begin(), steps))
    plan = earlier_plan(
        plan, in_place([leaf.shard_starts.size - 1 for leaf in leaves(plan)])
    )  # equal: nothing moves
    assert carry(now, build_schedule(plan, num_streams=streams, stream=0, key=7), cursor) == cursor
    left = now.remaining(cursor)
    everything, end = now.take(cursor, 300)
    assert len(everything) == (300 if left is None else min(300, left))
    assert left is None or left > 300 or now.remaining(end) == 0
    whole = now.length_at(cursor)
    assert (whole is None) == (left is None)
    got, at = [], cursor
    while len(got) < len(everything):
        if left is not None:
            assert now.remaining(at) == left - len(got)
        count = data.draw(st.integers(1, 100))
        refs, after = now.take(at, min(count, len(everything) - len(got)))
        assert now.advance(at, len(refs)) == after
        got += zip(refs.leaf.tolist(), refs.index.tolist(), strict=True)
        at = after
    assert got == list(zip(everything.leaf.tolist(), everything.index.tolist(), strict=True))


def test_a_pass_that_grows_twice_stays_in_its_first_share():
    order = OrderSpec(5, 10, 2, 1)
    plans = [
        RepeatPlan(LeafPlan(0, np.array(starts), order))
        for starts in ([0, 20, 40], [0, 20, 40, 60], [0, 20, 40, 60, 80])
    ]
    first, second, third = (build_schedule(plan, num_streams=1, stream=0, key=3) for plan in plans)
    cursor = first.advance(first.begin(), 15)
    expected = first.take(cursor, 25)[0].index.tolist()
    cursor = second.advance(carry(first, second, cursor), 5)
    cursor = carry(second, third, cursor)
    assert third.take(cursor, 20)[0].index.tolist() == expected[5:]
    following = third.take(third.advance(cursor, 20), 80)[0].index.tolist()
    assert sorted(following) == list(range(80))


def test_a_share_of_a_last_pass_is_one_of_the_pass_of_then():
    order = OrderSpec(None)
    then, now = (
        build_schedule(RepeatPlan(LeafPlan(0, np.array(s), order), 1.5), num_streams=1, stream=0, key=1)
        for s in ([0, 10], [0, 10, 30])
    )
    in_the_first = carry(then, now, then.advance(then.begin(), 4))
    assert now.remaining(in_the_first) == 6 + 15
    in_the_last = carry(then, now, then.advance(then.begin(), 12))
    assert now.remaining(in_the_last) == 3


def test_subsets_of_then():
    starts = np.array([0, 10, 30, 45])
    leaf = LeafPlan(0, starts, OrderSpec(), 5, 45)
    assert earlier_plan(leaf, in_place([2])).stop == 30
    assert earlier_plan(dataclasses.replace(leaf, stop=20), in_place([2])).stop == 20
    assert earlier_plan(dataclasses.replace(leaf, stop=None), in_place([1])).num_samples == 5
