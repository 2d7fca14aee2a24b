"""The planner against a naive model, and against its documentation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from repetitions import examples

from energon_stream.errors import ConfigError
from energon_stream.storage import plan_fetches

RANGES = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 200), st.integers(0, 60), st.booleans()), max_size=40
)


def plan(ranges, max_gap, max_bytes, sparse=None, max_waste=0.0):
    objects, starts, lengths, required = (np.array(column) for column in zip(*ranges, strict=True))
    return plan_fetches(
        objects.astype(np.int64) * 7,
        starts.astype(np.int64),
        (starts + lengths).astype(np.int64),
        required.astype(bool),
        max_gap=max_gap,
        max_bytes=max_bytes,
        sparse=None if sparse is None else np.isin(objects, sparse),
        max_waste=max_waste,
    )


def naive(ranges, max_gap, max_bytes):
    """Plan fetches as (object, start, stop), one range at a time."""
    fetches = []
    current = reach = None  # fetch as object, start, stop, limit; the object and its furthest byte so far
    for obj, start, length, required in sorted(ranges, key=lambda r: (r[0], r[1], -r[2])):
        stop = start + length
        gap = None if reach is None or reach[0] != obj else start - reach[1]
        if current and (gap is None or gap > max_gap):
            fetches.append(current[:3])
            current = None
        if required:
            if current and stop > current[3]:
                fetches.append(current[:3])
                current = None
            if current is None:
                current = [obj, start, stop, max(start + max_bytes, stop)]
            current[2] = max(current[2], stop)
        reach = (obj, stop if gap is None else max(reach[1], stop))
    if current:
        fetches.append(current[:3])
    return [tuple(fetch) for fetch in fetches]


@examples(400)
@given(RANGES, st.integers(0, 30), st.integers(1, 120))
def test_agrees_with_the_naive_model_and_covers_every_required_range(ranges, max_gap, max_bytes):
    if not ranges:
        return
    result = plan(ranges, max_gap, max_bytes)
    fetches = list(zip(result.objects // 7, result.starts, result.stops, strict=True))
    assert fetches == naive(ranges, max_gap, max_bytes)
    largest = max([r[2] for r in ranges if r[3]], default=0)
    assert all(stop - start <= max(max_bytes, largest) for _, start, stop in fetches)
    for (obj, start, length, required), serving in zip(ranges, result.fetch_of, strict=True):
        assert serving >= 0 or not required
        if serving >= 0:
            fetch = fetches[serving]
            assert fetch[0] == obj
            assert fetch[1] <= start
            assert start + length <= fetch[2]
    for index, (obj, start, stop) in enumerate(fetches):
        own = [r for r, serving in zip(ranges, result.fetch_of, strict=True) if serving == index and r[3]]
        assert min(r[1] for r in own) == start
        assert max(r[1] + r[2] for r in own) == stop
        assert {r[0] for r in own} == {obj}


def test_optional_ranges_bridge_but_never_extend():
    ranges = [(0, 0, 10, False), (0, 10, 10, True), (0, 20, 10, False), (0, 30, 10, True), (0, 40, 10, False)]
    result = plan(ranges, 0, 1000)
    assert (result.starts.tolist(), result.stops.tolist()) == ([10], [40])
    assert result.fetch_of.tolist() == [-1, 0, 0, 0, -1]


def test_without_required_ranges_nothing_is_fetched():
    result = plan([(0, 0, 10, False)], 0, 10)
    assert len(result.starts) == 0
    assert result.fetch_of.tolist() == [-1]


@pytest.mark.parametrize("change", [{"max_gap": -1}, {"max_bytes": 0}, {"starts": -1}, {"starts": 11}])
def test_impossible_numbers_are_refused(change):
    arguments = {"max_gap": 0, "max_bytes": 1, "starts": 0} | change
    starts = np.array([arguments.pop("starts")])
    with pytest.raises(ConfigError):
        plan_fetches(np.array([0]), starts, np.array([10]), np.array([True]), **arguments)


def spans(result):
    return list(
        zip((result.objects // 7).tolist(), result.starts.tolist(), result.stops.tolist(), strict=True)
    )


def bytes_of(ranges):
    return {(number, at) for number, start, length, _ in ranges for at in range(start, start + length)}


@examples(400)
@given(RANGES, st.integers(0, 30), st.integers(1, 120), st.sampled_from([0.0, 0.1, 0.3, 1.0, 3.0]))
def test_gaps_between_sparse_ranges_are_a_share_of_their_bytes(ranges, max_gap, max_bytes, waste):
    if not ranges:
        return
    sparse, whole = [1, 2], plan(ranges, max_gap, max_bytes)
    result = plan(ranges, max_gap, max_bytes, sparse, waste)
    found = spans(result)
    # Others are as they are without; each required range is in one request.
    assert [each for each in found if each[0] not in sparse] == [
        each for each in spans(whole) if each[0] not in sparse
    ]
    for (number, start, length, required), at in zip(ranges, result.fetch_of.tolist(), strict=True):
        if required:
            assert found[at][0] == number
            assert found[at][1] <= start <= start + length <= found[at][2]
    wanted = bytes_of(ranges)
    read = {(number, at) for number, start, stop in found if number in sparse for at in range(start, stop)}
    required = bytes_of(each for each in ranges if each[3] and each[0] in sparse)
    assert len(read - wanted) <= waste * len(required)
    assert spans(plan(ranges, max_gap, max_bytes, sparse, 10**6)) == spans(whole)
    # A request that ends by waste has a neighbour within the gap.
    for at in np.flatnonzero(result.ends_by_waste).tolist():
        assert found[at + 1][0] == found[at][0]
        assert found[at][0] in sparse


def test_the_smallest_gaps_are_read_first():
    ranges = [(1, at, 10, True) for at in (0, 12, 30, 60, 71)]
    for waste, count in ((0.0, 5), (0.05, 4), (0.06, 3), (0.21, 3), (0.22, 2), (0.62, 1)):
        assert len(plan(ranges, 30, 1000, [1], waste).starts) == count, waste
    equal = [(1, at, 10, True) for at in (0, 12, 24)]
    assert len(plan(equal, 30, 1000, [1], 0.1).starts) == 3  # one gap of two equal ones would fit
