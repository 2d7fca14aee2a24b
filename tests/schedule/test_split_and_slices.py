import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energon_stream.schedule.plan import bit_reversal, stream_bounds
from energon_stream.schedule.slices import SliceTable


@pytest.mark.parametrize(
    ("size", "expected"),
    [(1, [0]), (2, [0, 1]), (5, [0, 2, 1, 3, 4]), (6, [0, 3, 1, 4, 2, 5]), (7, [0, 3, 1, 5, 2, 4, 6])],
)
def test_bit_reversal_is_that_of_the_format_description(size, expected):
    assert bit_reversal(size) == expected


@given(st.integers(0, 10_000), st.integers(1, 64), st.integers(0, 63))
def test_bounds_cover_everything_with_counts_that_differ_by_at_most_one(samples, streams, rotation):
    bounds = stream_bounds(samples, streams, rotation % streams)
    counts = np.diff(bounds)
    assert bounds[0] == 0
    assert bounds[-1] == samples
    assert counts.max() - counts.min() <= 1


@given(
    st.lists(st.integers(0, 300), min_size=1, max_size=12),
    st.one_of(st.none(), st.integers(1, 120)),
    st.data(),
)
def test_slices_tile_the_range_within_shards(counts, max_length, data):
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    start = data.draw(st.integers(0, int(starts[-1])))
    stop = data.draw(st.integers(start, int(starts[-1])))
    table = SliceTable.build(starts, start, stop, max_length)
    first, last = table.bounds(np.arange(len(table), dtype=np.int64))
    covered = [i for a, b in zip(first, last, strict=True) for i in range(a, b)]
    assert covered == list(range(start, stop))
    assert table.num_samples == stop - start
    shard_of = np.searchsorted(starts, np.arange(starts[-1]), side="right")
    for a, b in zip(first, last, strict=True):
        assert b > a
        assert shard_of[a] == shard_of[b - 1]
        if max_length is not None:
            assert b - a <= 1.5 * max_length
