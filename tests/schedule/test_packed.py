"""Cursors of large blends: whatever a blend comes to is written in a few bytes a source, and read again."""

import io
import marshal
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from repetitions import examples

from energon_stream.errors import StateError
from energon_stream.schedule import (
    BlendCursor,
    BlendPlan,
    ConcatPlan,
    CursorCodec,
    LeafCursor,
    LeafPlan,
    OrderSpec,
    RepeatCursor,
    RepeatPlan,
    build_schedule,
)
from energon_stream.schedule.packed import pack_columns, unpack_columns
from energon_stream.state import dumps, loads

orders = st.one_of(
    st.builds(
        OrderSpec,
        st.one_of(st.none(), st.integers(1, 9)),
        st.integers(0, 20),
        st.integers(1, 4),
        st.sampled_from([1, 2, -1]),
    ),
    st.builds(OrderSpec, st.one_of(st.none(), st.integers(1, 9))),
)
sources = st.tuples(st.lists(st.integers(0, 25), min_size=1, max_size=4), orders)
repeats = st.sampled_from([None, 1, 2, 1.5, 0.3])


def plan_of(described, times, weights, outer):
    leaves = [
        LeafPlan(number, np.cumsum([0, *counts]), order) for number, (counts, order) in enumerate(described)
    ]
    children = [leaf if n == 1 else RepeatPlan(leaf, n) for leaf, n in zip(leaves, times, strict=True)]
    blend = BlendPlan(tuple(children), tuple(weights))
    return RepeatPlan(blend) if outer else blend


@st.composite
def blends(draw, least=16):
    described = draw(st.lists(sources, min_size=least, max_size=least + 4))
    size = len(described)
    outer = draw(st.booleans())  # only a finite blend can be repeated
    chosen = repeats.filter(lambda n: n is not None) if outer else repeats
    times = draw(st.lists(chosen, min_size=size, max_size=size))
    weights = draw(st.lists(st.floats(0.1, 5), min_size=size, max_size=size))
    plan = plan_of(described, times, weights, outer)
    return build_schedule(plan, num_streams=draw(st.integers(1, 3)), stream=0, key=draw(st.integers(0, 9)))


def grown(schedule, cursor, keep):
    """The cursor with marks of smaller shares on some sources, with places that are in these."""

    def mark(child, at, number):
        if not keep[number % len(keep)]:
            return at
        leaf = getattr(child, "inner", child)
        first, stop = leaf.table.start, leaf.table.start + (leaf.table.stop - leaf.table.start) // 2
        inner = at if leaf is child else at.inner
        marked = leaf.advance(LeafCursor(inner.epoch, 0, 0, 0, (first, stop)), keep[number % len(keep)])
        if stop == first or stop == leaf.table.stop or not marked.position:
            return at
        return marked if leaf is child else at._replace(inner=marked)

    blend, inside = (schedule.inner, cursor.inner) if hasattr(schedule, "inner") else (schedule, cursor)
    children = tuple(
        mark(child, at, n) for n, (child, at) in enumerate(zip(blend.children, inside.children, strict=True))
    )
    inside = inside._replace(children=children)
    return cursor._replace(inner=inside) if hasattr(schedule, "inner") else inside


def plain(cursor):
    """The cursor as nested lists, as states of small blends have it."""
    if isinstance(cursor, LeafCursor):
        return [*cursor[:4], *(cursor.share or ())]
    if isinstance(cursor, BlendCursor):
        return [*cursor[:2], [plain(child) for child in cursor.children], *cursor.even]
    return [plain(field) if isinstance(field, tuple) else field for field in cursor]


@examples(60)
@given(blends(), st.lists(st.integers(0, 60), min_size=1, max_size=5), st.data())
def test_every_cursor_comes_back(schedule, steps, data):
    codec, cursor = CursorCodec(schedule), schedule.begin(data.draw(st.integers(0, 2)))
    for step in [0, *steps]:
        cursor = schedule.advance(cursor, step)
        for place in (
            cursor,
            grown(schedule, cursor, data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=7))),
        ):
            packed = codec.pack(place)
            assert isinstance((packed[2] if hasattr(schedule, "inner") else packed)[2], bytes)
            for reader in (codec, CursorCodec(schedule)):
                assert reader.unpack(packed) == place
                assert reader.unpack(loads(dumps(packed))) == place
                assert reader.unpack(loads(dumps(plain(place)))) == place


@examples(100)
@given(st.integers(1, 40), st.data())
def test_columns_come_back(length, data):
    numbers = st.one_of(st.just(0), st.integers(-300, 300), st.integers(-(2**63), 2**63 - 1))
    columns = data.draw(st.lists(st.lists(numbers, min_size=length, max_size=length), min_size=1, max_size=5))
    packed = pack_columns([np.array(column, dtype=np.int64) for column in columns])
    assert [column.tolist() for column in unpack_columns(packed, length)] == columns


def unequal(sources, streams=1, mean=3000):
    """A blend of sources of 0.1 to 10 times as many samples in as many shards, with weights as unequal."""
    random = np.random.default_rng(5)
    plans = []
    for number, size in enumerate(random.lognormal(np.log(mean), 1, sources).astype(int) + 50):
        shards = max(1, size // 1000)
        counts = random.integers(700, 1300, shards) if shards > 1 else [size]
        leaf = LeafPlan(number, np.cumsum([0, *counts]), OrderSpec(100, 100, 4, 1))
        plans.append(RepeatPlan(leaf))
    plan = BlendPlan(tuple(plans), tuple(random.lognormal(0, 1, sources).tolist()))
    return build_schedule(plan, num_streams=streams, stream=streams // 2, key=1)


def test_a_thousand_sources_take_two_to_three_bytes_each():
    schedule = unequal(1000)
    codec, cursor = CursorCodec(schedule), schedule.begin()
    sizes = []
    for step in (10_000, 90_000, 400_000):
        cursor = schedule.advance(cursor, step)
        packed = codec.pack(cursor)
        assert codec.unpack(packed) == cursor
        sizes.append(len(dumps(packed)))
    assert max(passes for _, passes, _ in cursor[2]) > 5
    assert sizes[0] < 900
    assert sizes[1] < 1450
    assert sizes[2] < 2200
    assert len(dumps(cursor)) > 8 * 1000


def test_packed_cursors_are_plain_values():
    schedule = unequal(20)
    packed = CursorCodec(schedule).pack(schedule.advance(schedule.begin(), 5000))
    file = io.BytesIO()
    torch.save(packed, file)
    file.seek(0)
    assert torch.load(file, weights_only=True) == packed == marshal.loads(marshal.dumps(packed))


def test_small_and_other_blends_are_left_as_they_are():
    small = unequal(15)
    cursor = small.advance(small.begin(), 777)
    packed = CursorCodec(small).pack(cursor)
    assert loads(dumps(packed)) == plain(cursor)
    assert CursorCodec(small).unpack(packed) == cursor
    leaf = LeafPlan(0, np.array([0, 40]), OrderSpec(5, 0, 1, 1))
    inner = BlendPlan((leaf,) * 16, (1.0,) * 16)
    nested = BlendPlan((inner, ConcatPlan((leaf, inner)), leaf), (1.0, 2.0, 1.0))
    schedule = build_schedule(nested, num_streams=1, stream=0, key=1)
    codec, cursor = CursorCodec(schedule), schedule.advance(schedule.begin(), 300)
    packed = codec.pack(cursor)
    assert isinstance(packed[2][0][2], bytes)
    assert isinstance(packed[2][1][1][2], bytes)
    assert codec.unpack(loads(dumps(packed))) == cursor


def test_a_cursor_that_no_blend_comes_to_is_not_packed():
    schedule = unequal(16)
    epoch, step, children, *_ = schedule.advance(schedule.begin(), 500)
    elsewhere = RepeatCursor(3, 3, LeafCursor(3, 1, 0, 1))  # its passes began elsewhere
    odd = BlendCursor(epoch, step, (elsewhere, *children[1:]))
    codec = CursorCodec(schedule)
    assert not isinstance(codec.pack(odd)[2], bytes)
    assert codec.unpack(codec.pack(odd)) == odd


@pytest.mark.parametrize(
    "damage",
    [
        lambda packed: (*packed[:2], packed[2][:-9]),
        lambda packed: (*packed[:2], b""),
        lambda packed: (*packed[:2], b"\3\1\1\1" + packed[2][4:]),
        lambda packed: (*packed[:2], zlib.compress(zlib.decompress(packed[2]) + bytes(8 * 16))),
        lambda packed: (*packed[:2], zlib.compress(bytes(10**7))),
        lambda packed: (*packed[:2], b"\3\1\1\1" + zlib.compress(bytes(10**7), wbits=-15)),
        lambda packed: packed[:2],
        lambda packed: "at the start",
        lambda packed: (*packed[:2], [[0, 0, [0, 0, 0]]] * 16),
        lambda packed: (*packed[:2], [[0, 0, [0, 0, 0, 0]]] * 15),
    ],
)
def test_damaged_cursors_are_named(damage):
    schedule = unequal(16)
    packed = CursorCodec(schedule).pack(schedule.advance(schedule.begin(), 5000))
    with pytest.raises(StateError, match="damaged"):
        CursorCodec(schedule).unpack(damage(packed))
