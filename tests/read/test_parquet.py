"""Parquet as it is, compared with pyarrow that reads the whole local file."""

import gc
import json
import sys
from contextlib import suppress
from decimal import Decimal
from functools import partial
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from repetitions import examples, is_nightly
from round_trips import in_round_trips

from energon_stream import (
    CaptioningSample,
    Limits,
    ReadOptions,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
)
from energon_stream.errors import (
    ConfigError,
    EmptyDatasetError,
    EnergonStreamError,
    FatalSampleError,
    LimitError,
    MetadataError,
    NotPreparedError,
    ObjectNotFoundError,
)
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.read import parquet_format
from energon_stream.read.parquet_footer import pages
from energon_stream.state import redistribute
from energon_stream.testing.operator_suite import assert_exact_resume, assert_restores_by_key
from energon_stream.testing.s3server import S3Server

MAIN = WorkerConfig(0, 1, 0)


def table(rows=300, first=0):
    """Columns of many kinds: nested, null, dictionaries, bytes."""
    numbers = list(range(first, first + rows))
    return pa.table(
        {
            "text": [f"text {number} é" for number in numbers],
            "number": pa.array([None if number % 7 == 3 else number for number in numbers], pa.int16()),
            "bytes": [bytes([number % 256]) * (number % 50) for number in numbers],
            "list": [[number] * (number % 4) or None for number in numbers],
            "struct": [{"a": number, "b": {"c": [str(number)]}} for number in numbers],
            "map": pa.array([[("k", number)] for number in numbers], pa.map_(pa.string(), pa.int64())),
            "kind": pa.array([f"kind {number % 3}" for number in numbers]).dictionary_encode(),
            "nothing": pa.nulls(rows),
            "time": pa.array(numbers, pa.timestamp("us")),
        }
    )


def write(path, rows=300, first=0, group=40, **options):
    made = table(rows, first)
    pq.write_table(made, path, row_group_size=group, **options)
    return made.to_pylist()


def train(path, **changes):
    given = {
        "batch_size": None,
        "shuffle_buffer_size": 40,
        "max_samples_per_sequence": 10,
        "worker_config": MAIN,
    }
    return get_train_dataset(str(path), **{**given, **changes})


def in_order(path, **changes):
    return list(get_val_dataset(str(path), **{"batch_size": None, "worker_config": MAIN, **changes}))


def values(sample):
    return {name: value for name, value in sample.items() if not name.startswith("__")}


@pytest.mark.every(5)
@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd", "lz4", "brotli"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_all_rows_and_columns(tmp_path, compression, version):
    rows = write(
        tmp_path / "x.parquet", compression=compression, data_page_version=version, data_page_size=500
    )
    found = in_order(tmp_path / "x.parquet")
    assert [values(sample) for sample in found] == rows
    assert list(values(found[0])) == sorted(rows[0])
    assert [sample["__key__"] for sample in found] == [str(number) for number in range(300)]
    assert found[3]["__shard__"] is None


ODD = {
    "decimals": {"a": pa.array([Decimal("1.23"), None], pa.decimal128(9, 2)), "b": [Decimal("9" * 40)] * 2},
    "lists of structs": {"a": [[{"b": 1, "c": ["x"]}], None], "d": [[[[1]], []], []]},
    "names with dots": {"a.b": [1, 2], "a": [{"b": 3}, {"b": 4}], ".": [5, 6], "": [7, 8], "../é\n": [9, 10]},
    "dictionaries": {
        "a": pa.DictionaryArray.from_arrays(pa.array([0, None]), pa.array([10])),
        "b": [None] * 2,
    },
    "wide types": {
        "a": pa.array([b"x", b""], pa.large_binary()),
        "b": pa.array(["y", "z"], pa.string_view()),
    },
    "times": {
        "a": pa.array([1, None], pa.timestamp("s", tz="Europe/Berlin")),
        "b": pa.array([1, 2], pa.time64("us")),
        "c": pa.array([1, 2], pa.duration("ms")),
        "d": pa.array([1000, 2000], pa.timestamp("ns")),
    },
    "others": {
        "a": pa.array(np.array([0.5, np.inf], np.float16)),
        "b": pa.FixedSizeListArray.from_arrays(pa.array(range(4)), 2),
        "c": pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes(16)] * 2, pa.binary(16))),
    },
    "many columns": {f"column {number}": [number] * 2 for number in range(1000)},
}


@pytest.mark.parametrize("name", ODD)
def test_odd_tables_are_what_pyarrow_reads(tmp_path, name):
    made = pa.table(ODD[name])
    pq.write_table(made, tmp_path / "x.parquet", row_group_size=1, write_page_index=True)
    expected = pq.read_table(tmp_path / "x.parquet").to_pylist()
    assert [values(sample) for sample in in_order(tmp_path / "x.parquet")] == expected
    (first, *_) = ODD[name]
    some = [values(sample) for sample in in_order(tmp_path / "x.parquet", parts=[first])]
    assert some == [{first: row[first]} for row in expected]


FINE = {
    "timestamp": (pa.timestamp("ns"), np.datetime64(1_234_567_891, "ns")),
    "zone": (pa.timestamp("ns", "Europe/Berlin"), np.datetime64(1_234_567_891, "ns")),
    "duration": (pa.duration("ns"), np.timedelta64(1_234_567_891, "ns")),
    "time": (pa.time64("ns"), np.timedelta64(1_234_567_891, "ns")),
}


@pytest.mark.parametrize(("kind", "value"), FINE.values(), ids=FINE)
def test_nanoseconds_are_kept(tmp_path, kind, value):
    numbers = pa.array([2_000, 1_234_567_891, None], pa.int64())
    times = numbers.view(kind)
    nested = pa.StructArray.from_arrays([times], ["time"])
    pq.write_table(pa.table({"time": times, "nested": nested}), tmp_path / "times.parquet")
    coarse, fine, none = map(values, in_order(tmp_path / "times.parquet"))
    assert coarse == {"time": times[0].as_py(), "nested": {"time": times[0].as_py()}}
    assert fine == {"time": value, "nested": {"time": value}}
    assert fine["time"].dtype == value.dtype
    assert none == {"time": None, "nested": {"time": None}}


def test_times_beyond_the_calendar(tmp_path):
    pq.write_table(pa.table({"a": pa.array([10**17], pa.timestamp("us"))}), tmp_path / "late.parquet")
    assert [values(sample)["a"] for sample in in_order(tmp_path / "late.parquet")] == [
        np.datetime64(10**17, "us")
    ]
    pq.write_table(pa.table({"a": pa.array([2**30], pa.date32())}), tmp_path / "days.parquet")
    with pytest.raises(FatalSampleError, match="all 1 samples"):
        in_order(tmp_path / "days.parquet")


def test_tables_that_are_no_samples(tmp_path):
    pq.write_table(pa.table({"a": [1]}).select([]), tmp_path / "none.parquet")
    with pytest.raises(EmptyDatasetError, match=r"none\.parquet"):
        in_order(tmp_path / "none.parquet")
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    pq.write_table(twice, tmp_path / "twice.parquet")
    with pytest.raises(MetadataError, match=r"'a' is there twice.*twice\.parquet"):
        in_order(tmp_path / "twice.parquet")
    (tmp_path / "zero.parquet").touch()
    with pytest.raises(MetadataError, match=r"no Parquet file.*zero\.parquet"):
        prepare_dataset(str(tmp_path), split_ratio=(1, 0, 0))


def folder_of(tmp_path, files=3, **options):
    folder = tmp_path / "rows"
    folder.mkdir()
    rows = []
    for file in range(files):
        rows += write(folder / f"{file}.parquet", 100, 100 * file, **{"group": 30, **options})
    return folder, rows


def test_a_folder(tmp_path):
    folder, rows = folder_of(tmp_path)
    prepare_dataset(str(folder), split_ratio=(1, 0, 0))
    found = in_order(folder, split_part="train")
    assert [values(sample) for sample in found] == rows
    assert [sample["__shard__"] for sample in found] == [f"{number // 100}.parquet" for number in range(300)]
    shuffled = list(train(folder, repeat=False))
    assert sorted(int(sample["__key__"]) for sample in shuffled) == list(range(300))
    assert all(values(sample) == rows[int(sample["__key__"])] for sample in shuffled)
    (folder / ".nv-meta/files.json").unlink()  # as Megatron-Energon prepares it
    assert [values(sample) for sample in in_order(folder, split_part="train")] == rows


def test_rows_of_several_row_groups_are_mixed_and_each_group_is_read_once(tmp_path, s3_server, tmp_bucket):
    write(tmp_path / "x.parquet", 3000, group=100, compression="none")
    s3_server.upload_folder(tmp_path, tmp_bucket)
    s3_server.reset_counters()
    dataset = train(
        f"{tmp_bucket}/x.parquet",
        storage_options=s3_server.storage_options,
        repeat=False,
        parallel_shard_iters=8,
    )
    order = [int(sample["__key__"]) for sample in dataset]
    assert sorted(order) == list(range(3000))
    assert len({number // 100 for number in order[:40]}) == 8
    size = (tmp_path / "x.parquet").stat().st_size
    footer = pq.read_metadata(tmp_path / "x.parquet").serialized_size
    log = s3_server.log()
    assert sum(entry.bytes for entry in log) <= 1.1 * size + 2 * max(footer, 64 << 10)
    ranges = [entry.range for entry in log if hasattr(entry, "range")]
    assert len(ranges) == len(set(ranges)) or not ranges


TRIPS = {"file": [1, 1, 2], "prepared folder": [4, 1, 2, 3]}
"""Requests of each round trip: a footer, the rest of it, and pages; of a folder metadata before."""


@pytest.mark.parametrize("kind", TRIPS)
def test_the_first_batch_takes_four_round_trips(tmp_path, kind):
    folder, _ = folder_of(tmp_path)
    if kind == "prepared folder":
        prepare_dataset(str(folder), split_ratio=(1, 0, 0))
    with S3Server() as server:
        server.create_bucket("bucket")
        server.upload_folder(folder, "s3://bucket")
        server.reset_counters()
        batch = in_round_trips(server, TRIPS[kind], lambda: first_batch_of(server, kind))
    assert len(batch["__key__"]) == 8


def first_batch_of(server, kind):
    path = "s3://bucket/0.parquet" if kind == "file" else "s3://bucket"
    options = {"storage_options": server.storage_options, "parallel_shard_iters": 1}
    dataset = train(path, **options, batch_size=8)
    opened = server.log()
    assert kind != "prepared folder" or not any(entry.key.endswith(".parquet") for entry in opened)
    batch = next(iter(dataset))
    assert [entry for entry in server.log()[len(opened) :] if entry.key.endswith(".parquet")]
    return batch


def test_only_the_chosen_columns_are_read(tmp_path, s3_server, tmp_bucket):
    big = pa.table({"big": [bytes(3000) + bytes([n % 256]) for n in range(2000)], "small": list(range(2000))})
    pq.write_table(big, tmp_path / "x.parquet", row_group_size=500, compression="none", use_dictionary=False)
    s3_server.upload_folder(tmp_path, tmp_bucket)
    s3_server.reset_counters()
    found = in_order(f"{tmp_bucket}/x.parquet", storage_options=s3_server.storage_options, parts=["small"])
    assert [values(sample) for sample in found] == [{"small": number} for number in range(2000)]
    assert sum(entry.bytes for entry in s3_server.log()) < 8 * 2000 * 1.1 + 2 * (64 << 10)


ENCODINGS = {
    "plain": {"use_dictionary": False, "compression": "none"},
    "dictionary": {"use_dictionary": True, "compression": "zstd"},
    "delta": {
        "use_dictionary": False,
        "compression": "snappy",
        "column_encoding": {
            "big": "DELTA_BYTE_ARRAY",
            "float": "BYTE_STREAM_SPLIT",
            "small": "DELTA_BINARY_PACKED",
        },
    },
    "small pages": {"data_page_size": 4000, "write_page_index": True, "data_page_version": "2.0"},
}


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("encoding", "columns"),
    [
        *zip(ENCODINGS, [None] * 4, strict=True),
        *zip(ENCODINGS, (["list"], ["big", "small"], ["float"], ["float"]), strict=True),
    ],
)
def test_bytes_are_those_of_the_pages(tmp_path, s3_server, tmp_bucket, encoding, columns):
    """The payload is what pyarrow says that the chunks of the columns take. Bytes of footers count, too."""
    draw, folder = np.random.default_rng(3), tmp_path / "rows"
    folder.mkdir()
    payload = 0
    for file, groups in enumerate((150, 400, 90)):
        made = {
            "big": [draw.bytes(900) for _ in range(600)],
            "float": draw.random((600, 40)).tolist(),
            "list": draw.integers(0, 1 << 60, (600, 60)).tolist(),
            "small": np.arange(600) * 3,
        }
        made["float"] = pa.FixedSizeListArray.from_arrays(pa.array(np.ravel(made["float"])), 40)
        path = folder / f"{file}.parquet"
        pq.write_table(pa.table(made), path, row_group_size=groups, **ENCODINGS[encoding])
        footer = pq.read_metadata(path)
        for group in map(footer.row_group, range(footer.num_row_groups)):
            chunks = [group.column(number) for number in range(group.num_columns)]
            names = [chunk.path_in_schema.partition(".")[0] for chunk in chunks]
            wanted = [
                chunk for chunk, name in zip(chunks, names, strict=True) if columns is None or name in columns
            ]
            payload += sum(chunk.total_compressed_size for chunk in wanted)
    prepare_dataset(str(folder), split_ratio=(1, 0, 0))
    s3_server.upload_folder(folder, tmp_bucket)
    options = {"storage_options": s3_server.storage_options, "repeat": False, "parts": columns}
    s3_server.reset_counters()
    assert sum(1 for _ in train(tmp_bucket, parallel_shard_iters=4, **options)) == 1800
    log = {(entry.key, entry.range): entry for entry in s3_server.log() if entry.key.endswith(".parquet")}
    assert sum(entry.bytes for entry in log.values()) <= 1.1 * payload


def test_exact_resume(tmp_path):
    folder, _ = folder_of(tmp_path)
    prepare_dataset(str(folder), split_ratio=(1, 0, 0))
    config = WorkerConfig(0, 1, 0, num_streams=2)
    options = {"worker_config": config, "parts": ["text", "list"], "max_samples_per_sequence": 5}
    assert_exact_resume(lambda: train(folder, **options), steps=30 if is_nightly() else 14, tail=8)
    assert_restores_by_key(lambda: train(folder, **options))


def test_elastic_resume(tmp_path):
    write(tmp_path / "x.parquet", group=10)

    def loaders(ranks, workers=0):
        configs = [WorkerConfig(rank, ranks, workers, num_streams=4) for rank in range(ranks)]
        return [
            get_savable_loader(train(tmp_path / "x.parquet", worker_config=config, repeat=False))
            for config in configs
        ]

    first = loaders(2)
    seen = [sample["__key__"] for loader in first for sample in islice(loader, 60)]
    states = redistribute([loader.save_state_rank() for loader in first], 1)
    (last,) = loaders(1, workers=2)
    with last:
        last.restore_state_rank(states[0])
        seen += [sample["__key__"] for sample in last]
    assert sorted(seen, key=int) == [str(number) for number in range(300)]


def test_small_budgets_and_huge_rows(tmp_path):
    rows = [{"data": bytes([number]) * 3_000_000, "n": number} for number in range(12)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet", row_group_size=4, compression="none")
    found = in_order(tmp_path / "x.parquet", read_options=ReadOptions(byte_budget=4 << 20))
    assert [values(sample) for sample in found] == rows


def test_a_field_map_and_a_decode_map(tmp_path):
    folder, rows = folder_of(tmp_path, 1)
    found = in_order(
        folder / "0.parquet", sample_type=CaptioningSample, field_map={"image": "bytes", "caption": "text"}
    )
    assert [(sample.image, sample.caption) for sample in found] == [
        (row["bytes"], row["text"]) for row in rows
    ]
    pq.write_table(pa.table({"doc": [json.dumps({"a": n}).encode() for n in range(9)]}), folder / "0.parquet")
    yaml = {
        "__module__": "megatron.energon",
        "__class__": "DefaultParquetShardListDatasetFactory",
        "decode_map": {"doc": "json"},
    }
    prepare_dataset(str(folder), split_ratio=(1, 0, 0), dataset_yaml=yaml)
    assert [sample["doc"] for sample in in_order(folder, split_part="train")] == [{"a": n} for n in range(9)]


def test_prewarmed_rows_need_no_requests_later(tmp_path, s3_server, tmp_bucket):
    from energon_stream import CacheConfig
    from energon_stream.prewarming import prewarm

    write(tmp_path / "x.parquet", 3000, group=100)
    s3_server.upload_folder(tmp_path, tmp_bucket)
    cache = CacheConfig(directory=str(tmp_path / "cache"))
    options = {"storage_options": s3_server.storage_options, "cache": cache, "worker_config": MAIN}
    order = {"batch_size": 10, "shuffle_buffer_size": 40, "max_samples_per_sequence": 10}
    prewarm(f"{tmp_bucket}/x.parquet", steps=300, progress=False, isolated=False, **order, **options)
    s3_server.reset_counters()
    dataset = get_train_dataset(f"{tmp_bucket}/x.parquet", repeat=False, **order, **options)
    assert len(list(dataset)) == 300
    assert sum(entry.bytes for entry in s3_server.log()) < 140_000  # the end of the file alone


def test_other_columns_in_one_folder(tmp_path):
    folder, _ = folder_of(tmp_path, 1)
    pq.write_table(pa.table({"text": [1, 2]}), folder / "9.parquet")
    with pytest.raises(MetadataError, match=r"'0\.parquet' and '9\.parquet' have other columns"):
        prepare_dataset(str(folder), split_ratio=(1, 0, 0))


@pytest.mark.parametrize("in_store", [False, True])
def test_a_folder_named_as_a_file(tmp_path, s3_server, tmp_bucket, in_store):
    """As Spark names it, with what it puts beside the files."""
    folder = tmp_path / "rows.parquet"
    folder.mkdir()
    rows = write(folder / "part-0.parquet", 20) + write(folder / "part-1.snappy.parquet", 20, 20)
    for name in ("_SUCCESS", "._SUCCESS.crc", ".part-0.parquet.crc", "_metadata"):
        (folder / name).write_bytes(b"")
    prepare_dataset(str(folder), split_ratio=(1, 0, 0))
    s3_server.upload_folder(folder, f"{tmp_bucket}/rows.parquet")
    path = f"{tmp_bucket}/rows.parquet" if in_store else str(folder)
    options = {"storage_options": s3_server.storage_options if in_store else None, "split_part": "train"}
    assert [values(sample) for sample in in_order(f"{path}/", **options)] == rows
    with pytest.raises(ObjectNotFoundError, match=r"put a slash at its end: .*rows\.parquet/"):
        in_order(path, **options)


def test_files_without_rows_have_any_columns_and_hide_none(tmp_path):
    folder, rows = folder_of(tmp_path, 1)
    pq.write_table(pa.table({"text": pa.nulls(0)}), folder / "+.parquet")  # sorts first
    pq.ParquetWriter(folder / "-.parquet", pa.schema({"a": pa.int8()})).close()
    with pytest.raises(NotPreparedError, match="energon-stream prepare"):
        train(folder)
    prepare_dataset(str(folder), split_ratio=(1, 0, 0))
    assert [values(sample) for sample in in_order(folder, split_part="train")] == rows
    pq.write_table(pa.table({"text": [1, 2]}), folder / "9.parquet")
    with pytest.raises(MetadataError, match=r"'0\.parquet' and '9\.parquet' have other columns"):
        prepare_dataset(str(folder), split_ratio=(1, 0, 0), force=True)


def test_empty_row_groups_and_files(tmp_path):
    schema = pa.schema({"n": pa.int64()})
    with pq.ParquetWriter(tmp_path / "x.parquet", schema) as writer:
        for rows in ([], [1, 2], [], [3]):
            writer.write_table(pa.table({"n": pa.array(rows, pa.int64())}), row_group_size=2)
    assert [sample["n"] for sample in in_order(tmp_path / "x.parquet")] == [1, 2, 3]
    pq.write_table(schema.empty_table(), tmp_path / "none.parquet")
    with pytest.raises(EmptyDatasetError, match=r"none\.parquet"):
        in_order(tmp_path / "none.parquet")


BAD = {
    "empty": lambda data: b"",
    "mark": lambda data: data[:3],
    "cut": lambda data: data[:-9],
    "no footer": lambda data: data[:-8] + (1 << 30).to_bytes(4, "little") + b"PAR1",
    "encrypted": lambda data: data[:-4] + b"PARE",
    "nonsense": lambda data: data[:-300] + bytes(292) + data[-8:],
    "html": lambda data: b"<html>" * 40,
}


@pytest.mark.parametrize("name", BAD)
def test_damaged_footers(tmp_path, name):
    write(tmp_path / "x.parquet")
    data = (tmp_path / "x.parquet").read_bytes()
    (tmp_path / "x.parquet").write_bytes(BAD[name](data))
    with pytest.raises(MetadataError, match=r"x\.parquet") as raised:
        train(tmp_path / "x.parquet")
    assert raised.value.hint


def test_footers_that_contradict_themselves_are_named(tmp_path):
    """Where the type of a column does not fit the sizes beside it, pyarrow alone ends the process."""
    pq.write_table(pa.table({"number": range(20), "text": ["text"] * 20}), tmp_path / "x.parquet")
    good = (tmp_path / "x.parquet").read_bytes()
    footer = len(good) - 8 - int.from_bytes(good[-8:-4], "little")
    for place in range(footer, footer + 60):
        data, named, found = bytearray(good), "", []
        data[place] = 0
        (tmp_path / "x.parquet").write_bytes(data)
        try:
            found = in_order(tmp_path / "x.parquet")
        except EnergonStreamError as error:
            named = str(error)
        assert "x.parquet" in named or len(found) == 20


def test_damaged_pages_are_named(tmp_path):
    write(tmp_path / "x.parquet", compression="snappy")
    good = (tmp_path / "x.parquet").read_bytes()
    for place in range(4, len(good), max(1, len(good) // (60 if is_nightly() else 20))):
        data = bytearray(good)
        data[place : place + 40] = bytes(40)
        (tmp_path / "x.parquet").write_bytes(data)
        named, found = "", []
        try:
            found = in_order(tmp_path / "x.parquet")
        except EnergonStreamError as error:
            named = str(error)
        assert "x.parquet" in named or len(found) == 300


def test_limits_and_columns_that_are_not_there(tmp_path):
    write(tmp_path / "x.parquet")
    with pytest.raises(LimitError, match=r"row group 0 has .* table_bytes is 1,000"):
        in_order(tmp_path / "x.parquet", limits=Limits(table_bytes=1000))
    with pytest.raises(LimitError, match="shard_samples"):
        in_order(tmp_path / "x.parquet", limits=Limits(shard_samples=30))
    with pytest.raises(ConfigError, match="none of the columns is wanted"):
        in_order(tmp_path / "x.parquet", parts=["other"])
    pq.write_table(pa.table({"__key__": [1], "a": [2]}), tmp_path / "y.parquet")
    with pytest.raises(MetadataError, match="'__key__'"):
        in_order(tmp_path / "y.parquet")
    assert values(in_order(tmp_path / "y.parquet", parts=["a"])[0]) == {"a": 2}


def test_a_row_that_unpacks_to_much(tmp_path):
    """A dictionary of one large value, and many rows that name it."""
    made = pa.table(
        {"x": pa.DictionaryArray.from_arrays(pa.array([0] * 20_000, pa.int32()), ["y" * 100_000])}
    )
    pq.write_table(made, tmp_path / "x.parquet", store_schema=False)
    with pytest.raises(LimitError, match="table_bytes"):
        in_order(tmp_path / "x.parquet")


def test_a_file_that_changed(tmp_path):
    folder, _ = folder_of(tmp_path)
    prepare_dataset(str(folder), split_ratio=(1, 0, 0))
    write(folder / "1.parquet", 100, 7, group=30)
    with pytest.raises(MetadataError, match=r"1\.parquet.*prepare"):
        list(train(folder, repeat=False))


@pytest.mark.parametrize("plaintext_footer", [False, True])
def test_encrypted_columns_are_refused(tmp_path, plaintext_footer):
    """With a readable footer, too, where pyarrow would end the process."""
    encryption = pytest.importorskip("pyarrow.parquet.encryption")

    class Keys(encryption.KmsClient):
        def wrap_key(self, key, name):
            return key.hex()

        def unwrap_key(self, wrapped, name):
            return bytes.fromhex(wrapped)

    factory = encryption.CryptoFactory(lambda _: Keys())
    wanted = encryption.EncryptionConfiguration(
        footer_key="a", column_keys={"b": ["text"]}, plaintext_footer=plaintext_footer
    )
    properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), wanted)
    made = pa.table({"text": ["x"] * 10, "open": range(10)})
    with pq.ParquetWriter(tmp_path / "x.parquet", made.schema, encryption_properties=properties) as writer:
        writer.write_table(made)
    with pytest.raises(MetadataError, match=r"is encrypted.*x\.parquet"):
        train(tmp_path / "x.parquet")


def test_many_small_row_groups_take_linear_work(tmp_path):
    def calls(rows):
        path, found = tmp_path / f"{rows}.parquet", 0
        pq.write_table(pa.table({"n": range(rows)}), path, row_group_size=1)

        def count(*_):
            nonlocal found
            found += 1

        dataset = get_val_dataset(str(path), batch_size=None, worker_config=MAIN)
        sys.setprofile(count)
        try:
            assert [sample["n"] for sample in dataset] == list(range(rows))
        finally:
            sys.setprofile(None)
        return found

    assert calls(800) < 6 * calls(200)


def test_memory_of_footers_and_row_groups_is_bounded(tmp_path, monkeypatch):
    for name, limit in {"FEWEST_FOOTERS": 2, "FOOTER_BYTES": 0, "KEPT_BYTES": 20_000}.items():
        monkeypatch.setattr(parquet_format, name, limit)
    folder, rows = folder_of(tmp_path, 6)
    prepare_dataset(str(folder), split_ratio=(1, 0, 0))
    dataset, most = iter(train(folder, repeat=False)), 0
    first = next(dataset)
    (locator,) = (each for each in gc.get_objects() if isinstance(each, parquet_format.ParquetLocator))
    found = [(int(first["__key__"]), values(first))]
    for sample in dataset:
        found.append((int(sample["__key__"]), values(sample)))
        held = sum(group.held for group in locator.kept.values())
        assert held == locator.kept_bytes
        assert len(locator.footers) <= 2
        most = max(most, held)
    assert sorted(number for number, _ in found) == list(range(600))
    assert all(value == rows[number] for number, value in found)
    assert most < 40_000


@pytest.mark.parametrize("short", [0, 600])
@pytest.mark.parametrize("encoding", ["PLAIN", "DELTA_BYTE_ARRAY"])
def test_rows_that_repeat_long_values_are_refused_near_the_limit(tmp_path, encoding, short):
    """A dictionary, or prefixes: 51 MB in 10 kB, at once or behind short rows; Arrow's count of the peak."""
    options = {"column_encoding": {"x": encoding}} if encoding != "PLAIN" else {}
    rows = ["y" * 400_000 + ("" if encoding == "PLAIN" else str(row)) for row in range(128)]
    pq.write_table(
        pa.table({"x": ["y"] * short + rows}),
        tmp_path / "x.parquet",
        use_dictionary=encoding == "PLAIN",
        compression="zstd",
        **options,
    )
    assert (tmp_path / "x.parquet").stat().st_size < 10_000
    usual = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(pool)
    try:
        with pytest.raises(LimitError, match="table_bytes"):
            in_order(tmp_path / "x.parquet", limits=Limits(table_bytes=20_000_000))
    finally:
        pa.set_memory_pool(usual)
    assert 10_000_000 < pool.max_memory() < 40_000_000


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_the_largest_page_is_that_of_the_file(tmp_path, version, compression):
    """Values of 8 bytes, none of them null, take 8 bytes each, and nothing else is in a page."""
    column = pa.array(range(10_000), pa.int64())
    table = pa.table({"n": column}, schema=pa.schema([pa.field("n", pa.int64(), nullable=False)]))
    options = {"use_dictionary": False, "compression": compression, "write_batch_size": 500}
    for size in (4000, 40_000):
        pq.write_table(table, tmp_path / "x", data_page_size=size, data_page_version=version, **options)
        data = (tmp_path / "x").read_bytes()
        chunk = pq.ParquetFile(tmp_path / "x").metadata.row_group(0).column(0)
        start, length = chunk.data_page_offset, chunk.total_compressed_size
        found = pages(partial(between, data), start, start + length)
        assert max(page.size for page in found) == size


def between(data, start, stop):
    return memoryview(data)[start:stop]


@given(st.binary(max_size=200))
@examples(200)
def test_other_bytes_have_pages_or_none(data):
    with suppress(ValueError):
        assert all(page.size >= 0 for page in pages(partial(between, data), 0, len(data)))
