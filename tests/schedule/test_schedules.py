import time
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from calls import counted
from hypothesis import given
from hypothesis import strategies as st
from repetitions import examples

from energon_stream.errors import ConfigError
from energon_stream.schedule.combine import BlendSchedule, ConcatSchedule, RepeatSchedule
from energon_stream.schedule.leaf_order import LeafSchedule, OrderSpec
from energon_stream.schedule.packed import CursorCodec
from energon_stream.schedule.schedule import LeafCursor
from energon_stream.schedule.slices import SliceTable


def make_leaf(counts, order=None, leaf=0, key=1):
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    order = order or OrderSpec(10, 15, 4, 1)
    return LeafSchedule(
        leaf, SliceTable.build(starts, 0, int(starts[-1]), order.max_samples_per_sequence), order, key
    )


def pairs(refs):
    return list(zip(refs.leaf.tolist(), refs.index.tolist(), strict=True))


orders = st.one_of(
    st.builds(
        OrderSpec,
        st.one_of(st.none(), st.integers(1, 30)),
        st.integers(0, 60),
        st.integers(1, 6),
        st.sampled_from([1, 2, -1]),
    ),
    st.builds(OrderSpec, st.one_of(st.none(), st.integers(1, 30)), st.integers(0, 60)),
)
leaves = st.builds(
    lambda counts, order, key: make_leaf(counts, order, key=key),
    st.lists(st.integers(0, 40), min_size=1, max_size=6),
    orders,
    st.integers(0, 5),
)


def _combine(inner):
    several = st.lists(inner, min_size=1, max_size=3).map(tuple)
    return st.one_of(
        st.builds(RepeatSchedule, inner, st.sampled_from([1, 2, 1.5, 0.3])),
        st.builds(ConcatSchedule, several),
        several.flatmap(
            lambda c: st.builds(
                BlendSchedule,
                st.just(c),
                st.lists(st.floats(0.1, 5), min_size=len(c), max_size=len(c)).map(tuple),
                st.integers(0, 9),
            )
        ),
    )


schedules = st.one_of(leaves, _combine(leaves), _combine(_combine(leaves)))


def test_references_are_looked_up_once():
    """A take stepped over each pass of a repeated leaf three times."""
    leaves = [make_leaf([20], key=key, leaf=key) for key in range(2)]
    blend = BlendSchedule(tuple(map(RepeatSchedule, leaves)), (1.0, 2.0), 3)
    with counted("energon_stream.schedule", "leaf_order.take", "leaf_order.advance") as steps:
        refs, _ = blend.take(blend.begin(), 130)
    assert steps.total() == sum(-(-count // 20) for count in np.bincount(refs.leaf).tolist())


@examples(150)
@given(schedules, st.integers(0, 3), st.data())
def test_cursor_laws(schedule, epoch, data):
    """Taking in pieces, advancing, and a cursor that went through lists all give the same sequence."""
    begin = schedule.begin(epoch)
    everything, end = schedule.take(begin, schedule.length + 7)
    assert len(everything) == schedule.length == schedule.remaining(begin)
    assert schedule.remaining(end) == 0
    assert len(schedule.take(end, 5)[0]) == 0
    cursor, got = begin, []
    while schedule.remaining(cursor):
        count = data.draw(st.integers(1, max(1, schedule.length)))
        assert schedule.remaining(cursor) == schedule.length - len(got)
        refs, after = schedule.take(cursor, count)
        assert schedule.advance(cursor, count) == after
        got += pairs(refs)
        codec = CursorCodec(schedule)
        cursor = codec.unpack([list(p) if isinstance(p, tuple) else p for p in codec.pack(after)])
    assert got == pairs(everything)


@pytest.mark.parametrize(
    "order", [OrderSpec(10, 15, 4, 1), OrderSpec(None, 1000, 16, 1), OrderSpec(7, 0, 1, None)]
)
def test_a_pass_is_a_permutation_and_each_pass_another_one(order):
    leaf = make_leaf([33, 8, 61, 0, 20], order)
    first, second = (leaf.take(leaf.begin(e), leaf.length)[0].index.tolist() for e in (0, 1))
    assert sorted(first) == sorted(second) == list(range(122))
    assert (first != second) == (order.shuffle_over_epochs is not None)


def test_multiplier_permutes_several_copies_and_replacement_draws():
    twice = make_leaf([20, 20], OrderSpec(5, 0, 2, 2))
    assert set(Counter(twice.take(twice.begin(), twice.length)[0].index.tolist()).values()) == {2}
    drawn = make_leaf([50] * 8, OrderSpec(10, 0, 2, -1))
    counts = Counter(drawn.take(drawn.begin(), drawn.length)[0].index.tolist())
    assert max(counts.values()) > 1


def test_a_batch_comes_from_many_shards_and_neighbours_stay_close_together():
    """The window mixes shards (P16) while a slice's samples are wanted at about the same time (P7)."""
    leaf = make_leaf([62] * 64, OrderSpec(100, 100, 16, 1))
    index = leaf.take(leaf.begin(), leaf.length)[0].index
    batches = index[: len(index) // 32 * 32].reshape(-1, 32) // 62
    assert np.mean([len(set(batch)) for batch in batches.tolist()]) >= 0.9 * 16
    wide = make_leaf([62] * 64, OrderSpec(100, 1000, 32, 1))
    batches = wide.take(wide.begin(), 64 * 62 // 32 * 32)[0].index.reshape(-1, 32) // 62
    assert np.mean([len(set(batch)) for batch in batches.tolist()]) >= 0.9 * 32


def test_equal_leaves_of_a_blend_are_not_shuffled_alike():
    first, second = make_leaf([50] * 4, key=1), make_leaf([50] * 4, key=2)
    assert (
        first.take(first.begin(), 50)[0].index.tolist() != second.take(second.begin(), 50)[0].index.tolist()
    )


def test_blend_shares_are_within_three_standard_errors():
    children = tuple(RepeatSchedule(make_leaf([70], leaf=n, key=n)) for n in range(3))
    blend = BlendSchedule(children, (5.0, 2.0, 1.0), key=3)
    draws = 20_000
    counts = np.bincount(blend.take(blend.begin(), draws)[0].leaf, minlength=3)
    for share, weight in zip(counts / draws, (5 / 8, 2 / 8, 1 / 8), strict=True):
        assert abs(share - weight) < 3 * (weight * (1 - weight) / draws) ** 0.5


def test_a_thousand_million_samples_open_and_resume_without_being_listed():
    """P6 in memory: 10^9 samples in 10^5 shards; nothing that grows with the samples is built."""
    starts = np.arange(0, 10**9 + 1, 10**4, dtype=np.int64)
    tracemalloc.start()
    table = SliceTable.build(starts, 0, 10**9, 100)
    leaf = LeafSchedule(0, table, OrderSpec(100, 10_000, 16, 1), 5)
    begin = time.perf_counter()
    number = 90_000  # a group far into the epoch
    refs, after = leaf.take(LeafCursor(3, 950_000_000, number, 17), 32)
    elapsed = time.perf_counter() - begin
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(refs) == 32
    assert after == LeafCursor(3, 950_000_032, number, 49)
    assert peak < 64e6
    assert elapsed < 300  # a hang guard, not a speed claim


@pytest.mark.parametrize(
    "make",
    [
        lambda: OrderSpec(0),
        lambda: OrderSpec(1, -1),
        lambda: OrderSpec(1, 0, 0),
        lambda: OrderSpec(1, 0, 1, 0),
        lambda: OrderSpec(1, 0, 2, None),
        lambda: RepeatSchedule(make_leaf([3]), 0),
        lambda: BlendSchedule((make_leaf([3]),), (0.0,), 1),
        lambda: BlendSchedule((make_leaf([3]),), (float("nan"),), 1),
    ],
)
def test_impossible_options_are_named(make):
    with pytest.raises(ConfigError):
        make()


@examples(50)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 174)), min_size=1, max_size=12), st.integers(1, 699)
)
def test_the_order_does_not_depend_on_what_was_read_before(places, count):
    order = OrderSpec(1, 0, 4, 1)  # 700 slices, of which fewer are permuted at a time
    passes = [make_leaf([700], order).take(LeafCursor(epoch, 0, 0, 0), 700)[0].index for epoch in range(3)]
    leaf = make_leaf([700], order)
    for epoch, group in places:
        found, _ = leaf.take(LeafCursor(epoch, 4 * group, group, 0), count)
        assert found.index.tolist() == passes[epoch][4 * group : 4 * group + count].tolist()
