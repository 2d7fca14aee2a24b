import io
import json
import re
import struct

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from repetitions import examples

from energon_stream.cli.main import main
from energon_stream.errors import (
    EmptyDatasetError,
    IndexMismatchError,
    MetadataError,
    NotPreparedError,
    ObjectNotFoundError,
)
from energon_stream.index.files_index import open_file
from energon_stream.index.jsonl_index import JsonlFormat, prepare_jsonl
from energon_stream.storage import StoreSpec


def entries(path):
    data = path.with_name(f"{path.name}.idx").read_bytes()
    return list(struct.unpack(f"<{len(data) // 8}Q", data))


def expected_entries(data):
    """The format's own words: ends of records, blank lines with the record before them."""
    ends, position = [0], 0
    for line in io.BytesIO(data):
        position += len(line)
        if line.strip():
            ends.append(position)
        elif len(ends) > 1:
            ends[-1] = position
    return ends


@pytest.mark.parametrize(
    ("data", "offsets"),
    [
        (b'{"a":1}\n{"a":2}\n', [0, 8, 16]),
        (b'\n{"a":1}\n\n\n{"a":22}\n\n', [0, 0x0B, 0x15]),
        (b'{"a":1}', [0, 7]),
        (b' \r\n  {"a": "\xc3\xa9}{"} \r\n\t{}', [0, 21, 24]),
    ],
)
def test_golden_indices(tmp_path, data, offsets):
    path = tmp_path / "x.jsonl"
    path.write_bytes(data)
    assert prepare_jsonl(str(path)) == len(offsets) - 1
    assert entries(path) == offsets
    assert open_file(StoreSpec(str(path)), JsonlFormat()).num_samples == len(offsets) - 1


LINES = st.sampled_from(
    [b"\n", b"  \n", b"{}\n", b'{"a": 1}\n', b'{"long": "' + b"x" * 40 + b'"}\r\n', b' {"b":2} \n']
)


@examples(100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(LINES, max_size=12), st.integers(1, 60), st.booleans())
def test_pieces_of_any_size_give_the_same_index(tmp_path, lines, piece, ended):
    data = b"".join([*lines, b'{"last": 0}', b"\n" * ended])
    path = tmp_path / "x.jsonl"
    path.write_bytes(data)
    prepare_jsonl(str(path), piece_bytes=piece)
    assert entries(path) == expected_entries(data)


def test_prepared_by_ranges_on_s3(s3_server, tmp_bucket):
    data = b"".join(json.dumps({"number": i}).encode() + b"\n" for i in range(500))
    s3_server.put(f"{tmp_bucket}/d/x.jsonl", data)
    options = [
        f"--storage-option={key}={json.dumps(value)}" for key, value in s3_server.storage_options.items()
    ]
    result = CliRunner().invoke(main, ["prepare", f"{tmp_bucket}/d/x.jsonl", *options])
    assert result.exit_code == 0, result.output
    assert "500 records" in result.output
    index = s3_server.get(f"{tmp_bucket}/d/x.jsonl.idx")
    assert list(struct.unpack("<501Q", index)) == expected_entries(data)
    s3_server.delete(f"{tmp_bucket}/d/x.jsonl.idx")
    s3_server.reset_counters()
    url, storage_options = f"{tmp_bucket}/d/x.jsonl", s3_server.storage_options
    assert prepare_jsonl(url, storage_options=storage_options, piece_bytes=1000) == 500
    assert s3_server.get(f"{url}.idx") == index
    assert max(entry.bytes for entry in s3_server.log() if entry.method == "GET") <= 1000


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (b'{"a":1}\n[1]\n', MetadataError, "line 2.*byte 8"),
        (b'{"a":1}\n{"a":\n1}\n', MetadataError, "line 2"),
        (b"", EmptyDatasetError, "no records"),
        (b"\n\n", EmptyDatasetError, "no records"),
        (None, ObjectNotFoundError, "x.jsonl"),
    ],
)
def test_what_is_no_jsonl_is_not_prepared(tmp_path, data, error, words):
    path = tmp_path / "x.jsonl"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(error, match=words):
        prepare_jsonl(str(path))
    assert not path.with_name("x.jsonl.idx").exists()


def test_an_index_that_is_not_that_of_the_file_is_refused(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a":1}\n{"a":2}\n')
    command = re.escape(f"energon-stream prepare {path}")
    with pytest.raises(NotPreparedError, match=command):
        open_file(StoreSpec(str(path)), JsonlFormat())
    index = path.with_name("x.jsonl.idx")
    for content in (struct.pack("<3Q", 0, 8, 15), struct.pack("<3Q", 0, 8, 16)[:-1], b""):
        index.write_bytes(content)
        with pytest.raises(IndexMismatchError, match=command):
            open_file(StoreSpec(str(path)), JsonlFormat())
