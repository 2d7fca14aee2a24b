import functools
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from energon_stream.errors import ConfigError, SkipSample
from energon_stream.pipeline import MapDataset, PackingDataset, PartialSample
from energon_stream.task.packers import (
    LengthPacker,
    best_fit_decreasing,
    first_fit,
    histogram_pack,
    pack_by_size,
)
from energon_stream.testing.operator_suite import NumbersDataset

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


class Sample:
    def __init__(self, key, size):
        self.__key__, self.size = key, size


def size_of(sample):
    return sample.size


def packs_of(sizes, buffer, **options):
    """Keys and places of the members of each pack."""
    packer = LengthPacker(size_of, **options)
    samples = MapDataset(NumbersDataset(len(sizes)), lambda number: Sample(number, sizes[number]))
    select = packer.select_next_pack if buffer == "stream" else packer.select_samples_to_pack
    return list(PackingDataset(samples, buffer, select, lambda pack: [place(member) for member in pack]))


def place(member):
    if isinstance(member, PartialSample):
        return member.sample.__key__, member.slice.start, member.slice.stop
    return member.__key__, 0, int(member.size)


@pytest.mark.parametrize(
    ("method", "buffer"),
    [
        ("best_fit", 12),
        ("first_fit", 5),
        ("greedy", 7),
        ("greedy", "stream"),
        (histogram_pack, 9),
        ("best_fit", 1),
    ],
)
@given(sizes=st.lists(st.integers(0, 70), max_size=40))
def test_every_token_is_in_one_pack(method, buffer, sizes):
    """At capacity 20, most samples are cut; those of length 0 are left out."""
    packs = packs_of(sizes, buffer, capacity=20, method=method, overlong="split")
    assert all(0 < sum(stop - begin for _, begin, stop in pack) <= 20 for pack in packs)
    found = sorted(member for pack in packs for member in pack)
    expected = [
        (key, begin, min(begin + 20, size)) for key, size in enumerate(sizes) for begin in range(0, size, 20)
    ]
    assert found == expected
    kept = [size for size in sizes if 0 < size <= 20]
    packs = packs_of(sizes, buffer, capacity=20, method=method, overlong="drop")
    assert sorted(stop for pack in packs for _, _, stop in pack) == sorted(kept)


@given(st.lists(st.integers(1, 20), max_size=60))
def test_greedy_packs_are_those_of_a_plain_loop(sizes):
    expected, room = [], 0
    for key, size in enumerate(sizes):
        if size > room:
            expected.append([])
            room = 20
        expected[-1].append((key, 0, size))
        room -= size
    assert packs_of(sizes, "stream", capacity=20, method="greedy") == expected
    assert packs_of(sizes, 25, capacity=20, method="greedy") == expected  # 20 samples fill a pack at least


@pytest.mark.parametrize("method", ["best_fit", "first_fit"])
def test_no_sample_waits_for_ever_and_packs_are_full(method):
    draw = random.Random(1)
    sizes = [min(100, int(draw.lognormvariate(3, 1)) + 1) for _ in range(4000)]
    packs = packs_of(sizes, 64, capacity=100, method=method)
    assert sum(sizes) / (100 * len(packs)) > 0.97
    # Fuller packs of later samples do not keep one waiting.
    packs = packs_of([51, *[95] * 200], 8, capacity=100, method=method)
    assert [(0, 0, 51)] in packs[:4]
    packs = packs_of([95, *[51, 52, 95, 95] * 50], 8, capacity=100, method=method)
    order = [key for pack in packs for key, _, _ in pack]
    assert max(abs(key - place) for place, key in enumerate(order)) <= 8 * 8


@pytest.mark.parametrize("buffer", [4, "stream"])
def test_a_sample_that_does_not_fit_is_named_or_counted(buffer, caplog):
    with pytest.raises(ConfigError, match="length 21 does not fit a pack of 20") as caught:
        packs_of([3, 21, 4], buffer, capacity=20, method="greedy")
    assert "sample 1" in str(caught.value)
    assert 'overlong="split"' in str(caught.value)
    assert packs_of([3, 21, 4], buffer, capacity=20, method="greedy", overlong="split")  # the remedy
    with caplog.at_level("INFO", "energon_stream"):
        assert packs_of([3, 21, 4, 30], buffer, capacity=20, method="greedy", overlong="drop") == [
            [(0, 0, 3), (2, 0, 4)]
        ]
    assert "left out 2 samples" in caplog.text
    for wrong in (-1, 2.5, None, "3", torch.tensor(2.5), torch.ones(2, dtype=int)):
        with pytest.raises(
            ConfigError, match=r"length of a sample is .* \[sample 0\]. Return a whole number"
        ):
            packs_of([wrong], buffer, capacity=20, method="greedy", overlong="drop")
    for size in (np.int64(3), np.uint8(3), np.array(3), torch.tensor(3)):
        assert packs_of([size], buffer, capacity=20, method="greedy") == [[(0, 0, 3)]]


@pytest.mark.parametrize("buffer", [4, "stream"])
def test_a_length_function_may_skip_a_sample_alone(buffer):
    def length(sample):
        if sample == 2:
            raise SkipSample
        return 1

    packer = LengthPacker(length, 20, "greedy")
    select = packer.select_next_pack if buffer == "stream" else packer.select_samples_to_pack
    packs = PackingDataset(NumbersDataset(5), buffer, select, list)
    assert [number for pack in packs for number in pack] == [0, 1, 3, 4]


def test_packs_of_an_own_method_are_measured():
    def join(sizes, capacity, most):
        places = list(range(len(sizes)))
        return [places[start : start + most] for start in range(0, len(sizes), most)]

    def packs(most):
        packer = LengthPacker(lambda number: 5, 20, functools.partial(join, most=most))
        assert packer.describe()["method"] == "partial"
        assert type(LengthPacker(len, np.int64(20)).describe()["capacity"]) is int
        return list(PackingDataset(NumbersDataset(8), 8, packer.select_samples_to_pack, list))

    assert packs(4) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(ConfigError, match="a pack of 25, and capacity is 20"):
        packs(5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"capacity": 0}, "capacity is 0"),
        ({"capacity": 2.5}, "capacity is 2.5"),
        ({"capacity": 8, "method": "bestfit"}, "Use one of best_fit, first_fit, greedy"),
        ({"capacity": 8, "overlong": "cut"}, "overlong is 'cut'. Use one of error, drop, split"),
    ],
)
def test_impossible_options_are_named(options, said):
    with pytest.raises(ConfigError, match=said):
        LengthPacker(len, **options)


def test_methods_that_choose_need_a_buffer():
    with pytest.raises(ConfigError, match="Set a number of samples"):
        packs_of([3], "stream", capacity=20)
