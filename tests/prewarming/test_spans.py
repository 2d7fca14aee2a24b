"""Byte ranges as arrays, against sets of bytes."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from energon_stream.prewarming.spans import Coverage, cut, earliest, total_bytes

RANGES = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(1, 9)).map(
        lambda r: (r[0], r[1], r[1] + r[2])
    ),
    max_size=12,
)


def spans(rows):
    return np.array(rows, dtype=np.int64).reshape(-1, 3)


def rows(found):
    return [tuple(row) for row in found.tolist()]


def bytes_of(found):
    listed = [(number, at) for number, start, stop in rows(found) for at in range(start, stop)]
    assert len(listed) == len(set(listed))  # none twice
    return set(listed)


def with_gaps(covered, max_gap):
    """Bytes that are covered, and those between them that a reader would read over."""
    found = set(covered)
    for number in {number for number, _ in covered}:
        places = sorted(at for name, at in covered if name == number)
        for before, after in itertools.pairwise(places):
            if after - before - 1 <= max_gap:
                found |= {(number, at) for at in range(before, after)}
    return found


@given(st.lists(RANGES, max_size=5), st.integers(0, 4))
def test_each_byte_is_new_once_and_small_gaps_come_along(windows, max_gap):
    coverage, covered = Coverage(max_gap), set()
    for window in windows:
        new = coverage.add(spans(window))
        wanted = {(number, at) for number, start, stop in window for at in range(start, stop)}
        after = with_gaps(covered | wanted, max_gap)
        assert bytes_of(new) == after - covered
        assert rows(new) == sorted(rows(new))
        assert bytes_of(coverage.spans) == after
        covered = after


@given(RANGES, st.integers(1, 7))
def test_pieces_are_the_same_bytes_and_even(window, most):
    whole = Coverage(0).add(spans(window))
    pieces = cut(whole, most)
    assert bytes_of(pieces) == bytes_of(whole)
    assert total_bytes(pieces) == total_bytes(whole) == len(bytes_of(whole))
    assert all(0 < stop - start <= most for _, start, stop in rows(pieces))
    assert len(pieces) == sum(-(-(stop - start) // most) for _, start, stop in rows(whole))


@given(RANGES.filter(len), RANGES, st.integers(1, 7), st.data())
def test_a_piece_is_wanted_with_the_first_range_that_it_has_bytes_of(window, others, most, data):
    wanted, positions = spans(window), data.draw(st.permutations(range(len(window))))
    pieces = cut(Coverage(3).add(spans(window + others)), most)
    found = earliest(pieces, np.column_stack([wanted, positions])).tolist()
    for (number, start, stop), position in zip(rows(pieces), found, strict=True):
        overlapping = [
            positions[place]
            for place, (other, first, last) in enumerate(window)
            if other == number and first < stop and start < last
        ]
        assert position == min(overlapping, default=0)
