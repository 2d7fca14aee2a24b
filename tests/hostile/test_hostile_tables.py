"""Tables of strangers: large ones are refused before they take the memory, and forged ones by name."""

import json
import tracemalloc

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from in_order import read_in_order

from energon_stream import (
    DefaultTaskEncoder,
    Limits,
    compute_costs,
    list_tables,
)
from energon_stream.errors import (
    ConfigError,
    EnergonStreamError,
    IndexMismatchError,
    LimitError,
    MetadataError,
)
from energon_stream.index.checksums import digest
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.tables.reading import TABLE_MARK
from energon_stream.testing.datasets import TEXT_YAML, write_shards

SAMPLES = 120
LARGE = 1 << 20


@pytest.fixture
def folder(tmp_path):
    write_shards(tmp_path, shards=1, samples_per_shard=SAMPLES, parts=lambda index: {"txt": b"%d" % index})
    prepare_dataset(str(tmp_path), split_ratio=(1, 0, 0), dataset_yaml=TEXT_YAML)
    (tmp_path / ".nv-meta/tables").mkdir()
    return tmp_path


def write(folder, columns, mark=None, **options):
    """Write a table as a stranger may, with the right mark unless another is given."""
    right = json.dumps({"info": f"{digest((folder / '.nv-meta/.info.json').read_bytes()):016x}"}).encode()
    table = pa.table(columns).replace_schema_metadata({TABLE_MARK: right if mark is None else mark})
    pq.write_table(table, folder / ".nv-meta/tables/x.parquet", **options)


class Texts(DefaultTaskEncoder):
    def batch(self, samples):
        return [sample.text for sample in samples]


def read(folder, limits=None, **view):
    return sorted(map(int, read_in_order(folder, Texts(), batch_size=5, limits=limits, **view)))


def test_a_value_that_repeats_is_counted_each_time(folder):
    """The file has 1 MB, and the column 120 MB."""
    write(folder, {"x": ["a" * LARGE] * SAMPLES, "n": list(range(SAMPLES))}, use_dictionary=True)
    assert (folder / ".nv-meta/tables/x.parquet").stat().st_size < 2 * LARGE
    limits = Limits(table_bytes=100 << 20)
    before = pa.total_allocated_bytes()
    pool = pa.default_memory_pool()
    with pytest.raises(LimitError, match=r"125,829,\d+ bytes.*the limit table_bytes") as caught:
        read(folder, limits, where="x == 'b'")
    assert "x.parquet" in caught.value.where
    assert pa.total_allocated_bytes() - before < 10 * LARGE
    assert read(folder, limits, where="n < 7") == list(range(7))
    assert read(folder, Limits(table_bytes=130 << 20), where="x != 'b' and n < 7") == list(range(7))
    assert pool.bytes_allocated() - before < 10 * LARGE


def test_a_column_that_is_large_by_itself_is_refused_unread(folder):
    write(folder, {"x": [f"{n:0{LARGE // 10}}" for n in range(SAMPLES)]}, use_dictionary=False)
    with pytest.raises(LimitError, match="table_bytes"):
        read(folder, Limits(table_bytes=5 << 20), where="x != 'b'")


def test_costs_of_a_column_are_within_the_limit(folder, monkeypatch):
    write(folder, {"x": list(range(SAMPLES))})
    assert compute_costs(str(folder), "x", column="x").total == sum(range(SAMPLES))
    monkeypatch.setenv("ENERGON_STREAM_LIMITS", "table_bytes=100")
    with pytest.raises(LimitError, match="table_bytes"):
        compute_costs(str(folder), "x", column="x", force=True)


@pytest.mark.parametrize(
    "mark",
    [
        b"[]",
        b"1",
        b"null",
        b'"x"',
        b"\xff",
        b"{",
        b'{"info": []}',
        b"[" * 100_000,
        b"9" * 5000,
        b'{"info": NaN}',
    ],
)
def test_marks_of_other_types_are_named(folder, mark):
    write(folder, {"x": list(range(SAMPLES))}, mark)
    with pytest.raises((MetadataError, IndexMismatchError), match="table"):
        read(folder, where="x > 1")


@pytest.mark.parametrize(
    "text", ["x == '\ud800'", "x == '\\ud800'", "x in ['\\udfff', 'a']", "\ud800 > 1", "x > 1 # \ud800"]
)
def test_filters_that_are_not_unicode_are_named(folder, text):
    write(folder, {"x": ["a"] * SAMPLES})
    with pytest.raises(ConfigError):
        read(folder, where=text)


@pytest.mark.parametrize("content", [b"\xff\xfe0\x000\x00", "schön\n".encode("latin-1"), b"\x80" * 10])
def test_keys_that_are_not_utf_8_are_named(folder, content):
    keys = folder / "keys.txt"
    keys.write_bytes(content)
    with pytest.raises(MetadataError, match="not UTF-8") as caught:
        read(folder, exclude=str(keys))
    assert caught.value.where == str(keys)


def test_keys_with_a_byte_order_mark_are_read(folder):
    (folder / "keys.txt").write_text("00000000\r\n00000003\r\n", encoding="utf-8-sig")
    assert read(folder, exclude=str(folder / "keys.txt")) == [1, 2, *range(4, SAMPLES)]


def test_messages_are_of_bounded_length(folder):
    name = "x" * (5 << 20)
    (folder / ".nv-meta/dataset.yaml").write_text(f"sample_type:\n  __module__: a.b\n  __class__: {name}\n")
    with pytest.raises(EnergonStreamError) as caught:
        read(folder)
    assert len(str(caught.value)) < 20_000
    assert len(repr(caught.value)) < 20_000


def test_listing_tables_reads_no_rows(folder):
    write(folder, {"x": ["a" * LARGE] * SAMPLES}, use_dictionary=True)
    tracemalloc.start()
    try:
        assert list_tables(str(folder))[0].rows == SAMPLES
        assert tracemalloc.get_traced_memory()[1] < LARGE
    finally:
        tracemalloc.stop()
