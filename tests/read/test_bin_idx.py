"""``.bin/.idx``, written here by the layout alone, and read back by numpy."""

import struct
from itertools import islice

import numpy as np
import pytest
from repetitions import is_nightly
from round_trips import in_round_trips

from energon_stream import WorkerConfig, get_savable_loader, get_train_dataset, get_val_dataset
from energon_stream.errors import (
    ConfigError,
    EmptyDatasetError,
    EnergonStreamError,
    IndexMismatchError,
    MetadataError,
    ObjectNotFoundError,
)
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.state import redistribute
from energon_stream.testing.operator_suite import assert_exact_resume, assert_restores_by_key
from energon_stream.testing.s3server import S3Server

CODES = {
    1: np.uint8,
    2: np.int8,
    3: np.int16,
    4: np.int32,
    5: np.int64,
    6: np.float64,
    7: np.float32,
    8: np.uint16,
}
MAIN = WorkerConfig(0, 1, 0)


def write_bin_idx(prefix, sequences, code=4, modes=False):
    """Write the two files by the layout of Megatron-Core's IndexedDataset."""
    arrays = [np.asarray(each, dtype=CODES[code]) for each in sequences]
    data = b"".join(array.tobytes() for array in arrays)
    sizes = [array.nbytes for array in arrays]
    with open(f"{prefix}.idx", "wb") as index:
        index.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code, len(arrays), len(arrays) + 1))
        index.write(np.array([len(array) for array in arrays], dtype="<i4").tobytes())
        index.write(np.cumsum([0, *sizes])[:-1].astype("<i8").tobytes())
        index.write(np.arange(len(arrays) + 1, dtype="<i8").tobytes())
        index.write(b"\0" * len(arrays) if modes else b"")
    with open(f"{prefix}.bin", "wb") as file:
        file.write(data)
    return arrays


def some(count, code=4):
    draw = np.random.default_rng(7)
    return [draw.integers(0, 100, draw.integers(0, 40)).astype(CODES[code]) for _ in range(count)]


def train(path, **changes):
    given = {
        "batch_size": None,
        "shuffle_buffer_size": 40,
        "max_samples_per_sequence": 10,
        "worker_config": MAIN,
    }
    return get_train_dataset(str(path), **{**given, **changes})


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("modes", [False, True])
def test_all_sequences_of_all_dtypes(tmp_path, code, modes):
    arrays = write_bin_idx(tmp_path / "x", some(50, code), code, modes)
    found = list(get_val_dataset(str(tmp_path / "x.bin"), batch_size=None, worker_config=MAIN))
    assert [sample["__key__"] for sample in found] == [str(number) for number in range(50)]
    for sample, array in zip(found, arrays, strict=True):
        assert sample["tokens"].dtype == array.dtype
        assert sample["tokens"].tolist() == array.tolist()
        assert sample["tokens"].flags.writeable
    assert found[3]["__sources__"][0].file_names == ("3.tokens",)
    assert found[3]["__shard__"] is None


def test_exact_resume(tmp_path):
    write_bin_idx(tmp_path / "x", some(120))
    config = WorkerConfig(0, 1, 0, num_streams=2)
    options = {"worker_config": config, "max_samples_per_sequence": 5}
    steps = 40 if is_nightly() else 16
    assert_exact_resume(lambda: train(tmp_path / "x.bin", **options), steps=steps, tail=8)
    assert_restores_by_key(lambda: train(tmp_path / "x.bin", **options))


def test_elastic_resume(tmp_path):
    arrays = write_bin_idx(tmp_path / "x", some(120))

    def loaders(ranks):
        configs = [WorkerConfig(rank, ranks, 0, num_streams=4) for rank in range(ranks)]
        return [
            get_savable_loader(train(tmp_path / "x.bin", worker_config=config, repeat=False))
            for config in configs
        ]

    first = loaders(2)
    seen = [sample for loader in first for sample in islice(loader, 25)]
    states = redistribute([loader.save_state_rank() for loader in first], 4)
    for loader, state in zip(loaders(4), states, strict=True):
        loader.restore_state_rank(state)
        seen += loader
    assert sorted(int(sample["__key__"]) for sample in seen) == list(range(120))
    assert all(sample["tokens"].tolist() == arrays[int(sample["__key__"])].tolist() for sample in seen)


def test_the_first_batch_takes_four_round_trips(tmp_path):
    """The header and the ends of both files, lengths, places, and the tokens."""
    arrays = write_bin_idx(tmp_path / "x", [np.arange(500)] * 2000)
    with S3Server() as server:
        server.create_bucket("bucket")
        server.upload_folder(tmp_path, "s3://bucket")
        server.reset_counters()
        options = {"storage_options": server.storage_options, "batch_size": 8, "worker_config": MAIN}
        batch = in_round_trips(
            server, [3, 1, 1, 1], lambda: next(iter(get_val_dataset("s3://bucket/x.bin", **options)))
        )
    assert [tokens.tolist() for tokens in batch["tokens"]] == [arrays[0].tolist()] * 8


def test_a_pass_takes_the_bytes_of_its_tokens(tmp_path, s3_server, tmp_bucket):
    arrays = write_bin_idx(tmp_path / "x", [np.arange(500)] * 2000)
    s3_server.upload_folder(tmp_path, tmp_bucket)
    options = {"storage_options": s3_server.storage_options, "repeat": False}
    s3_server.reset_counters()
    assert len(list(train(f"{tmp_bucket}/x.bin", **options))) == 2000
    payload = sum(array.nbytes for array in arrays)
    assert sum(entry.bytes for entry in s3_server.log() if entry.key.endswith(".bin")) <= 1.1 * payload


def test_a_shuffled_pass_takes_few_bytes(tmp_path, s3_server, tmp_bucket):
    """More samples than the first plans see, and so short that the reader would read the gaps of all."""
    arrays = write_bin_idx(tmp_path / "x", [np.zeros(500)] * 4000)
    s3_server.upload_folder(tmp_path, tmp_bucket)
    options = {"storage_options": s3_server.storage_options, "repeat": False}
    dataset = train(f"{tmp_bucket}/x.bin", shuffle_buffer_size=1000, max_samples_per_sequence=100, **options)
    s3_server.reset_counters()
    assert sum(1 for _ in dataset) == 4000
    log = {entry.range: entry for entry in s3_server.log() if entry.key.endswith(".bin")}  # each once if late
    assert sum(entry.bytes for entry in log.values()) <= 1.1 * sum(array.nbytes for array in arrays)
    assert len(log) <= 60


def test_prefetched_in_workers_with_a_metadataset_and_a_subset(tmp_path):
    arrays = write_bin_idx(tmp_path / "x", some(64))
    (tmp_path / "mix.yaml").write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n"
        "    path: x.bin\n    subset: {range: [10, 20]}\n    subflavors: {a: 1}\n"
    )
    found = list(
        train(tmp_path / "mix.yaml", repeat=False, worker_config=WorkerConfig(0, 1, 0, num_streams=3))
    )
    assert sorted(int(sample["__key__"]) for sample in found) == list(range(10, 20))
    assert all(sample["tokens"].tolist() == arrays[int(sample["__key__"])].tolist() for sample in found)
    assert found[0]["__subflavors__"] == {"a": 1}


def write_header(path, version=1, code=4, sequences=50, documents=51):
    data = bytearray(path.read_bytes())
    data[9:34] = struct.pack("<QBQQ", version, code, sequences, documents)
    path.write_bytes(data)


LIES = {
    "magic": (lambda path: path.write_bytes(b"x" + path.read_bytes()[1:]), MetadataError, "no index"),
    "short": (lambda path: path.write_bytes(path.read_bytes()[:20]), MetadataError, "no index"),
    "empty": (lambda path: path.write_bytes(b""), MetadataError, "no index"),
    "version": (lambda path: write_header(path, version=2), MetadataError, "version 2"),
    "dtype": (lambda path: write_header(path, code=9), MetadataError, "code 9"),
    "count": (lambda path: write_header(path, sequences=1 << 62), IndexMismatchError, "sequences"),
    "documents": (lambda path: write_header(path, documents=7), IndexMismatchError, "documents"),
    "cut": (lambda path: path.write_bytes(path.read_bytes()[:-1]), IndexMismatchError, "bytes, but it has"),
    "gone": (lambda path: path.unlink(), ObjectNotFoundError, r"needs its \.idx"),
}


@pytest.mark.parametrize("name", LIES)
def test_headers_that_lie(tmp_path, name):
    write_bin_idx(tmp_path / "x", some(50))
    lie, error, words = LIES[name]
    lie(tmp_path / "x.idx")
    with pytest.raises(error, match=words) as raised:
        train(tmp_path / "x.bin")
    assert "x.idx" in str(raised.value)
    assert raised.value.hint


@pytest.mark.parametrize("value", [-1, 2**31 - 1, 10_000])
def test_lengths_that_lie(tmp_path, value):
    write_bin_idx(tmp_path / "x", some(50))
    data = bytearray((tmp_path / "x.idx").read_bytes())
    data[34 + 4 * 7 : 34 + 4 * 8] = struct.pack("<i", value)
    (tmp_path / "x.idx").write_bytes(data)
    with pytest.raises(IndexMismatchError, match=r"sample 7 .*x\.idx"):
        list(train(tmp_path / "x.bin", repeat=False))


@pytest.mark.parametrize("left", [-1, 40, 8])
def test_tokens_that_were_cut_off(tmp_path, left):
    """Those that are whole come, and the first other one is named."""
    arrays = write_bin_idx(tmp_path / "x", [np.arange(5)] * 20)
    data = (tmp_path / "x.bin").read_bytes()[:left]
    (tmp_path / "x.bin").write_bytes(data)
    whole = sum(np.cumsum([array.nbytes for array in arrays]) <= len(data))
    with pytest.raises(IndexMismatchError, match=rf"sample {whole} .*x\.idx"):
        list(get_val_dataset(str(tmp_path / "x.bin"), batch_size=None, worker_config=MAIN))


@pytest.mark.parametrize("value", [-5, 1 << 40, (1 << 63) - 1])
def test_offsets_that_lie(tmp_path, value):
    write_bin_idx(tmp_path / "x", [np.arange(9)] * 50)
    data = bytearray((tmp_path / "x.idx").read_bytes())
    data[34 + 4 * 50 + 8 * 7 : 34 + 4 * 50 + 8 * 8] = struct.pack("<q", value)
    (tmp_path / "x.idx").write_bytes(data)
    with pytest.raises(IndexMismatchError, match=r"sample 7 .*x\.idx"):
        list(train(tmp_path / "x.bin", repeat=False))


def test_nothing_to_read(tmp_path):
    write_bin_idx(tmp_path / "none", [])
    write_bin_idx(tmp_path / "empty", [[], []])
    for name in ("none", "empty"):
        with pytest.raises(EmptyDatasetError, match=rf"{name}\.bin"):
            train(tmp_path / f"{name}.bin")


def test_any_flipped_byte_of_the_index_is_harmless_or_named(tmp_path):
    arrays = write_bin_idx(tmp_path / "x", some(6))
    good = (tmp_path / "x.idx").read_bytes()
    for place in range(len(good)):
        data = bytearray(good)
        data[place] ^= 0x41
        (tmp_path / "x.idx").write_bytes(data)
        found, named = [], ""
        try:
            found = list(get_val_dataset(str(tmp_path / "x.bin"), batch_size=None, worker_config=MAIN))
        except EnergonStreamError as error:
            named = str(error)
        assert "x.idx" in named or len(found) == len(arrays)


@pytest.mark.parametrize("in_store", [False, True])
@pytest.mark.parametrize("count", [40, 60])
def test_a_file_of_other_sequences_since_the_folder_was_prepared(
    tmp_path, s3_server, tmp_bucket, count, in_store
):
    write_bin_idx(tmp_path / "x", some(50))
    prepare_dataset(str(tmp_path), split_ratio=(1, 0, 0))
    write_bin_idx(tmp_path / "x", some(count))
    s3_server.upload_folder(tmp_path, tmp_bucket)
    options = {"storage_options": s3_server.storage_options} if in_store else {}
    with pytest.raises(IndexMismatchError, match=r"had \d+ when it was opened .*x\.idx.*prepare"):
        list(train(tmp_bucket if in_store else tmp_path, repeat=False, **options))


def test_the_same_tokens_have_the_same_state_and_others_do_not(tmp_path):
    write_bin_idx(tmp_path / "x", some(50))
    first = train(tmp_path / "x.bin")
    write_bin_idx(tmp_path / "x", some(50))
    again = train(tmp_path / "x.bin")
    other = [array + 1 for array in some(50)]
    write_bin_idx(tmp_path / "x", other)
    contents = [dataset.leaves[0].index.content(1) for dataset in (first, again, train(tmp_path / "x.bin"))]
    assert contents[0] == contents[1] != contents[2]


def test_what_needs_tars_says_so(tmp_path):
    write_bin_idx(tmp_path / "x", some(50))
    with pytest.raises(ConfigError, match="a file has none"):
        train(tmp_path / "x.bin", dataset_config="other.yaml")
    with pytest.raises(ConfigError, match="needs a prepared folder of tars"):
        train(tmp_path / "x.bin", where="score > 1")
