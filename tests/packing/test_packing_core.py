"""The pure core: packs hold what they may, and steps are even."""

import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energon_stream.schedule.pack_planning import (
    balance,
    deal_packs,
    deal_to_streams,
    pack_lengths,
    pack_loads,
)
from energon_stream.schedule.planned import PACKING, PackSpec, cut_pieces

lengths = st.lists(st.integers(1, 50), min_size=1, max_size=120).map(lambda v: np.array(v, dtype=np.int64))


@given(lengths)
def test_packs_are_within_the_capacity_and_never_half_empty_twice(values):
    pack = pack_lengths(values, 50)
    sums = np.bincount(pack, weights=values)
    assert sums.max() <= 50
    assert (sums > 0).all()
    if len(sums) > 1:  # else the pieces of one would have gone to another
        assert np.sort(sums)[:2].sum() > 50


@given(lengths, st.integers(1, 40))
def test_a_limit_of_packs_is_kept_or_refused(values, most):
    pack = pack_lengths(values, 50, most)
    needed = int(pack_lengths(values, 50).max()) + 1
    assert (pack is None) == (needed > most)


@given(st.lists(st.integers(0, 60), min_size=1, max_size=50), st.integers(1, 20))
def test_pieces_cover_each_sample_once(values, capacity):
    ref, start, stop = cut_pieces(np.array(values, dtype=np.int64), capacity)
    assert ((stop - start > 0) & (stop - start <= capacity)).all()
    assert np.bincount(ref, weights=stop - start, minlength=len(values)).tolist() == values


@given(st.lists(st.floats(0, 100), min_size=1, max_size=80), st.integers(1, 9))
def test_streams_get_each_pack_once_in_equal_numbers(values, streams):
    dealt, _ = deal_to_streams(np.array(values), streams, streams)
    assert sorted(pack for own in dealt for pack in own) == list(range(len(values)))
    sizes = [len(own) for own in dealt]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@settings(max_examples=40)
@given(st.integers(0, 70), st.sampled_from([(4, 2), (6, 3), (8, 4)]), st.integers(0, 9))
def test_windows_deal_each_pack_once_and_repeat_themselves(number, sizes, key):
    step, streams = sizes
    loads = np.random.default_rng(key).random(number)
    dealt = deal_packs(loads, step, streams, key)
    assert sorted(pack for own in dealt for pack in own) == list(range(number))
    assert dealt == deal_packs(loads, step, streams, key)
    if number % step == 0:
        assert {len(own) for own in dealt} == {number // streams}


def test_swaps_make_bins_even():
    loads = np.random.default_rng(0).uniform(0.1, 1, 256)
    sums = np.bincount(balance(loads, [4] * 64), weights=loads)
    assert sums.max() / sums.mean() < 1.03


@pytest.mark.parametrize("load", ["linear", "quadratic", lambda own: float(own.max())])
def test_loads(load):
    found = pack_loads(np.array([1, 2, 3]), np.array([0, 1, 0]), 2, load).tolist()
    assert found == {"linear": [4, 2], "quadratic": [10, 4]}.get(
        load if isinstance(load, str) else "", [3, 2]
    )


def test_other_packs_are_another_version_of_the_algorithm():
    """States count packs. Raise ``PACKING`` with these numbers: then earlier states are refused."""
    lengths = (np.arange(400) * 7919) % 97 + 1
    pack = pack_lengths(lengths, 256)
    loads = pack_loads(lengths, pack, int(pack.max()) + 1, "quadratic")
    dealt = deal_packs(loads, 16, 4, 5)
    assert (PACKING, zlib.crc32(repr((pack.tolist(), dealt)).encode())) == (1, 3922064105)


def test_the_version_is_a_part_of_states_once_it_is_another(monkeypatch):
    spec = PackSpec(256, 16, 2, "quadratic", "error")
    assert "algorithm" not in spec.describe()  # as the states of the first version
    monkeypatch.setattr("energon_stream.schedule.planned.PACKING", 2)
    assert spec.describe()["algorithm"] == 2
