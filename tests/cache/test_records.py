"""Records of block files: any bytes written in any order are found again, and nothing else is."""

import itertools
import os

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from energon_stream.cache.records import (
    LINE_BYTES,
    PAGE_BYTES,
    RECORD_BYTES,
    RecordTable,
    encode_records,
)

SIZE = 5 * LINE_BYTES + 777
BLOCK = memoryview(os.urandom(SIZE))
KEY = 0xFEDC_BA98_7654_3210

spans = st.tuples(st.integers(0, SIZE - 1), st.integers(1, SIZE)).map(
    lambda pair: (pair[0], min(SIZE, pair[0] + pair[1]))
)


def encode(*ranges, key=KEY):
    return b"".join(encode_records(key, start, BLOCK[start:stop]) for start, stop in ranges)


def decode(raw, key=KEY, **bounds):
    return RecordTable.decode(key, raw, **bounds)


def covered(ranges):
    mask = np.zeros(SIZE, dtype=bool)
    for start, stop in ranges:
        mask[start:stop] = True
    return mask


@given(st.lists(spans, max_size=8), spans)
def test_what_was_written_is_found_and_nothing_else(ranges, wanted):
    for bounds in ({}, {"start": wanted[0], "stop": wanted[1]}):
        table = decode(encode(*ranges), **bounds)
        gaps = table.gaps(*wanted)
        assert np.array_equal(covered(gaps), covered([wanted]) & ~covered(ranges))
        assert gaps == sorted(gaps)
        assert all(first[1] < second[0] for first, second in itertools.pairwise(gaps))
        for run in table.runs(*wanted):
            for piece, following in zip(run, [*run[1:], None], strict=True):
                start, stop, digest = piece
                assert stop - start <= LINE_BYTES
                assert xxhash.xxh3_64_intdigest(BLOCK[start:stop]) == digest
                assert following is None or following[0] <= stop


def pages(size):
    return -(-size // PAGE_BYTES) * PAGE_BYTES


@given(st.lists(spans, max_size=8), st.lists(spans, max_size=3))
def test_disk_bytes_are_those_of_the_pages(ranges, more):
    def touched(of):
        return len(np.unique(np.flatnonzero(covered(of)) // PAGE_BYTES)) * PAGE_BYTES

    records = encode(*ranges)
    table, count = decode(records), len(records) // RECORD_BYTES
    beside = 2 * PAGE_BYTES if ranges else 0  # records, and what the file system notes
    assert table.disk_bytes() == max(touched(ranges) + beside, PAGE_BYTES)
    assert table.disk_bytes(more) == max(touched(ranges + more) + beside, PAGE_BYTES)
    many = pages(32 * (10_000 + count)) + pages(12 * (10_000 + count))
    assert table.disk_bytes(more_records=10_000) == touched(ranges) + many
    for start, stop in more:  # what is near is enough to tell the difference
        near = decode(records, start=start - start % PAGE_BYTES, stop=pages(stop))
        part = [(start, stop)]
        assert near.disk_bytes(part) - near.disk_bytes() == table.disk_bytes(part) - table.disk_bytes()


def test_pieces_are_cut_at_the_borders_of_lines():
    table = decode(encode((100, 3 * LINE_BYTES + 5)))
    assert table.starts.tolist() == [100, LINE_BYTES, 2 * LINE_BYTES, 3 * LINE_BYTES]
    assert table.stops.tolist() == [LINE_BYTES, 2 * LINE_BYTES, 3 * LINE_BYTES, 3 * LINE_BYTES + 5]


@given(st.integers(0, 8 * RECORD_BYTES - 1))
def test_any_flipped_bit_makes_a_record_void(bit):
    raw = bytearray(encode((0, 10), (20, 30)))
    raw[bit // 8] ^= 1 << bit % 8
    table = decode(bytes(raw))
    assert table.gaps(0, 30) == [(0, 20)]
    assert table.num_records == 2


@pytest.mark.parametrize(
    "raw",
    [b"", bytes(3 * RECORD_BYTES), encode((0, 10))[:-1], encode((0, 10), key=KEY + 1)],
    ids=["none", "zeros", "unfinished", "of another block"],
)
def test_what_is_no_record_says_nothing(raw):
    assert decode(raw).gaps(0, 10) == [(0, 10)]
