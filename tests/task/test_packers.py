import pytest
from hypothesis import given
from hypothesis import strategies as st

from energon_stream.errors import ConfigError
from energon_stream.task.packers import best_fit_decreasing, first_fit, histogram_pack, pack_by_size

PACKERS = [first_fit, best_fit_decreasing, histogram_pack]


@pytest.mark.parametrize("packer", PACKERS)
@given(st.lists(st.integers(1, 100), max_size=80))
def test_each_sample_is_in_exactly_one_group_that_it_fits(packer, sizes):
    groups = packer(sizes, 100)
    assert sorted(place for group in groups for place in group) == list(range(len(sizes)))
    assert all(0 < sum(sizes[place] for place in group) <= 100 for group in groups)
    # No packer may be worse than closing a group only when the next sample does not fit anywhere.
    assert len(groups) <= max(1, 2 * sum(sizes) / 100 + 1)


def test_known_packings():
    assert first_fit([6, 5, 4, 5], 10) == [[0, 2], [1, 3]]
    assert (
        len(best_fit_decreasing([5, 7, 3, 5, 6, 4], 10)) == len(histogram_pack([5, 7, 3, 5, 6, 4], 10)) == 3
    )
    assert len(first_fit([5, 7, 3, 2, 6, 4], 10)) >= 3


def test_a_sample_that_is_too_large_is_named():
    assert pack_by_size("abc", [1, 2, 3], capacity=3, method=first_fit) == [["a", "b"], ["c"]]
    for sizes in ([1, 4], [1, 0], [1]):
        with pytest.raises(ConfigError):
            pack_by_size("ab", sizes, capacity=3, method=first_fit)
