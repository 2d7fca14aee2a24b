"""Every place that a schedule comes to passes the check, and others are refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from repetitions import examples
from test_packed import blends, orders

from energon_stream.errors import StateError
from energon_stream.schedule import (
    BlendPlan,
    ConcatPlan,
    CursorCodec,
    LeafCursor,
    LeafPlan,
    OrderSpec,
    RepeatPlan,
    build_schedule,
    check_cursor,
)

looked_up_or_by_length = pytest.mark.parametrize("most", [1 << 19, 0], ids=["looked up", "by length"])
"""Also where there are more leaves than the check looks up."""


@st.composite
def small(draw):
    """Concatenations and blends, nested."""
    leaves = [
        LeafPlan(number, np.cumsum([0, *counts]), order)
        for number, (counts, order) in enumerate(
            draw(
                st.lists(
                    st.tuples(st.lists(st.integers(0, 25), min_size=1, max_size=4), orders),
                    min_size=3,
                    max_size=3,
                )
            )
        )
    ]
    inner = draw(st.sampled_from([ConcatPlan, lambda two: BlendPlan(two, (1.0, 2.0))]))(tuple(leaves[:2]))
    times = draw(st.sampled_from([1, 2, 1.5, 0.3]))
    plan = BlendPlan((RepeatPlan(inner, times), leaves[2]), (2.0, 1.0))
    outer = RepeatPlan(plan, draw(st.sampled_from([None, 1, 2.5])))
    return build_schedule(outer, num_streams=draw(st.integers(1, 3)), stream=0, key=draw(st.integers(0, 9)))


@looked_up_or_by_length
@examples(60)
@given(st.one_of(blends(), small()), st.integers(0, 2), st.lists(st.integers(0, 60), min_size=1, max_size=6))
def test_every_place_passes(most, schedule, epoch, steps):
    cursor = schedule.begin(epoch)
    for step in [0, *steps, 400]:
        cursor = schedule.advance(cursor, step)
        check_cursor(schedule, cursor, epoch, most)
        check_cursor(schedule, CursorCodec(schedule).unpack(CursorCodec(schedule).pack(cursor)), epoch, most)
        with pytest.raises(StateError):
            check_cursor(schedule, cursor, epoch + 1, most)


@looked_up_or_by_length
@examples(60)
@given(orders, st.lists(st.integers(0, 25), min_size=1, max_size=4), st.integers(0, 80), st.data())
def test_other_places_are_refused_or_bounded(most, order, counts, steps, data):
    schedule = build_schedule(LeafPlan(0, np.cumsum([0, *counts]), order), num_streams=1, stream=0, key=1)
    place = schedule.advance(schedule.begin(), steps)
    field, by = data.draw(st.integers(1, 3)), data.draw(st.sampled_from([-9, -1, 1, 2, 9, 10**6, 2**40]))
    wrong = [*place]
    wrong[field] = max(0, wrong[field] + by)
    cursor = LeafCursor(*wrong)
    if cursor == place:
        return
    try:
        check_cursor(schedule, cursor, 0, most)
        refs, _ = schedule.take(cursor, 200)
    except StateError:
        return
    assert not most, f"{cursor} was taken for {place}"
    assert len(refs) <= schedule.length
    assert set(refs.index.tolist()) <= set(range(sum(counts)))


@looked_up_or_by_length
def test_shares_that_a_leaf_does_not_have_are_refused(most):
    plan = LeafPlan(0, np.array([0, 40, 90]), OrderSpec(5, 10, 2, 1))
    schedule = build_schedule(plan, num_streams=2, stream=0, key=1)
    check_cursor(schedule, LeafCursor(3, 0, 0, 0, (0, 30)), 3, most)
    for share in [(0, 91), (30, 20), (10**12, 10**13)]:
        with pytest.raises(StateError, match="of dataset 0"):
            check_cursor(schedule, LeafCursor(3, 0, 0, 0, share), 3, most)
