"""Pages of index entries: which are read, how often, and what is found in them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energon_stream.index.entries import EntryPages, OffsetCache


class Index:
    """Entries that are the numbers of the samples; notes which pages are read."""

    def __init__(self, counts, size, max_bytes=1 << 20):
        self.starts = np.concatenate([[0], np.cumsum(counts)])
        self.read = []
        self.pages = EntryPages(None, OffsetCache(max_bytes), self.starts, size, self.read_page)

    def read_page(self, store, shard, first, last):
        assert 0 <= first < last <= self.starts[shard + 1] - self.starts[shard]
        self.read.append((shard, first, last))
        return (np.arange(first, last) + self.starts[shard])[:, None]


@given(st.lists(st.integers(0, 30), min_size=1, max_size=6).filter(any), st.integers(1, 12), st.data())
def test_each_sample_is_found_in_its_page_which_is_read_once(counts, size, data):
    index = Index(counts, size)
    samples = np.array(data.draw(st.lists(st.integers(0, sum(counts) - 1), min_size=1, max_size=40)))
    loads = index.pages.claim_loads(samples)
    assert not index.pages.claim_loads(samples)  # somebody loads them
    for load in loads:
        load.run()
    assert not index.pages.claim_loads(samples)
    np.testing.assert_array_equal(index.pages.rows(samples, 1)[:, 0], samples)
    shards = index.pages.shard_of(samples)
    places = (samples - index.starts[shards]) // size * size
    assert sorted({(shard, first) for shard, first, _ in index.read}) == sorted(
        set(zip(shards.tolist(), places.tolist(), strict=True))
    )
    assert len(index.read) == len(set(index.read))
    assert all(last - first <= size for _, first, last in index.read)


def test_pages_that_were_pushed_out_are_read_again():
    index = Index([40], 10, max_bytes=2 * 10 * 8)
    samples = np.arange(40)
    for _ in range(2):
        np.testing.assert_array_equal(index.pages.rows(samples, 1)[:, 0], samples)
    assert len(index.read) == 8


def test_a_load_that_fails_may_be_claimed_again():
    index, samples = Index([5], 10), np.arange(5)
    (load,) = index.pages.claim_loads(samples)
    index.read = None
    with pytest.raises(AttributeError):
        load.run()
    assert len(index.pages.claim_loads(samples)) == 1
