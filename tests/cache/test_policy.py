"""What is evicted, and how a quota is dealt: pure functions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energon_stream.cache.eviction import EvictableBlock, candidates, plan_shares
from energon_stream.errors import ConfigError


def entry(key, root="a", *, size=10, last_use=0.0, in_use=False, group=None):
    return EvictableBlock(key, root, group or root, size, last_use, in_use)


def keys(entries):
    return [entry.key for entry in entries]


entries = st.lists(
    st.builds(
        entry,
        st.uuids().map(str),
        st.sampled_from("abc"),
        size=st.integers(1, 100),
        last_use=st.integers(0, 20),
        in_use=st.booleans(),
    )
)


def test_lru_evicts_the_oldest_first():
    found = candidates("lru", [entry("1", last_use=3, in_use=True), entry("2", last_use=1)], {})
    assert keys(found) == ["2", "1"]


def test_pin_keeps_what_is_used_and_evicts_the_group_that_is_out_of_use_longest():
    blocks = [
        entry("used", "used", last_use=0, in_use=True),
        entry("young old", "young", last_use=1),
        entry("old", "old", last_use=5),
        entry("young", "young", last_use=9),
        entry("version", "used", last_use=2, group="a version that was replaced"),
    ]
    assert keys(candidates("pin", blocks, {})) == ["version", "old", "young old", "young"]


def test_pin_evicts_what_is_beyond_a_share():
    blocks = [entry(str(number), size=10, last_use=number, in_use=True) for number in range(5)]
    assert keys(candidates("pin", blocks, {"a": 25})) == ["0", "1"]
    assert keys(candidates("pin", blocks, {"a": 50, "b": 0})) == []


@given(entries, st.dictionaries(st.sampled_from("abc"), st.integers(0, 300)))
def test_candidates_are_entries_once_each(blocks, shares):
    for policy in ("pin", "lru"):
        found = candidates(policy, blocks, shares)
        assert len(set(keys(found))) == len(found)
        assert set(found) <= set(blocks)
    for root, share in shares.items():
        kept = [
            e for e in blocks if e.root == root and e.in_use and e not in candidates("pin", blocks, shares)
        ]
        everything = sum(e.bytes for e in blocks if e.root == root and e.in_use)
        assert sum(e.bytes for e in kept) >= min(share, everything)
    assert {e.key for e in blocks if not e.in_use} <= set(keys(candidates("pin", blocks, {})))


def test_shares_go_where_a_byte_earns_most():
    assert plan_shares([100, 100], [1, 3], 150) == [50, 100]
    assert plan_shares([990, 10], [99, 1], 100) == [99, 1]  # the same worth: the same part of each
    assert plan_shares([100, 0, 300], [1, 5, 1], 1000) == [100, 0, 300]
    assert plan_shares([], [], 7) == []


@pytest.mark.parametrize("arguments", [([1], [], 1), ([-1], [1], 1), ([1], [-1], 1), ([1], [1], -1)])
def test_shares_of_nonsense(arguments):
    with pytest.raises(ConfigError, match="make no plan"):
        plan_shares(*arguments)


sizes_and_reads = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5)), min_size=1, max_size=4)


@given(sizes_and_reads, st.integers(0, 120), st.randoms(use_true_random=False))
def test_no_other_shares_give_more_hits(datasets, quota, random):
    sizes, reads = [size for size, _ in datasets], [count for _, count in datasets]

    def hits(shares):
        return sum(r * share / size for size, r, share in zip(sizes, reads, shares, strict=True) if size)

    planned = plan_shares(sizes, reads, quota)
    assert sum(planned) == min(quota, sum(sizes))
    assert all(0 <= share <= size for share, size in zip(planned, sizes, strict=True))
    for _ in range(20):
        other, left = [0] * len(sizes), quota
        for number in random.sample(range(len(sizes)), len(sizes)):
            other[number] = random.randint(0, min(left, sizes[number]))
            left -= other[number]
        assert hits(other) <= hits(planned) + 1e-9
