import json
from itertools import islice

import pytest
from repetitions import is_nightly

from energon_stream import ReadOptions, WorkerConfig, get_train_dataset
from energon_stream.errors import IndexMismatchError
from energon_stream.index.jsonl_index import prepare_jsonl
from energon_stream.testing.operator_suite import assert_exact_resume, assert_restores_by_key

RECORDS = 1000


@pytest.fixture
def path(tmp_path, index_pages):
    index_pages(row_bytes=256)  # 32 entries: as if the file had millions of records
    path = tmp_path / "d" / "x.jsonl"
    path.parent.mkdir()
    path.write_text("".join(json.dumps({"number": i, "text": "x" * (i % 50)}) + "\n" for i in range(RECORDS)))
    prepare_jsonl(str(path))
    return path


def train(path, **changes):
    arguments = {
        "batch_size": None,
        "shuffle_buffer_size": 40,
        "max_samples_per_sequence": 10,
        "worker_config": WorkerConfig(0, 1, 0),
        "read_options": ReadOptions(max_ahead=64, first_samples=8),
    }
    return get_train_dataset(str(path), **{**arguments, **changes})


def test_every_record_is_a_crude_sample(path):
    found = {sample["__key__"]: sample for sample in train(path, repeat=False, auto_decode=False)}
    assert list(found) != sorted(found, key=int)
    assert sorted(found, key=int) == [str(i) for i in range(RECORDS)]
    assert all(
        sample["json"] == {"number": int(key), "text": "x" * (int(key) % 50)} for key, sample in found.items()
    )
    source = found["7"]["__sources__"][0]
    assert (source.dataset_path, source.index, source.file_names) == (str(path), 7, ("7.json",))


def test_subsets_and_metadatasets_know_jsonl(path):
    part = train(path, repeat=False, subset={"range": [10, 20]}, shuffle_over_epochs_multiplier=None)
    assert sorted(sample["json"]["number"] for sample in part) == list(range(10, 20))
    document = {
        "__module__": "megatron.energon",
        "__class__": "MetadatasetV2",
        "splits": {"train": {"path": "x.jsonl", "subflavors": {"a": 1}}},
    }
    meta = path.with_name("meta.yaml")
    meta.write_text(json.dumps(document))
    assert next(iter(train(meta)))["__subflavors__"] == {"a": 1}


def test_exact_resume_and_restore_by_key(path):
    config = WorkerConfig(0, 1, 0, num_streams=2)
    options = {"worker_config": config, "max_samples_per_sequence": 5}
    assert_exact_resume(lambda: train(path, **options), steps=60 if is_nightly() else 16, tail=8)
    assert_restores_by_key(lambda: train(path, **options))


def test_only_blocks_of_the_index_are_read(path, s3_server, tmp_bucket):
    s3_server.upload_folder(path.parent, tmp_bucket)
    only_first = ReadOptions(max_ahead=1, first_samples=8)
    dataset = train(
        f"{tmp_bucket}/x.jsonl", storage_options=s3_server.storage_options, read_options=only_first
    )
    assert s3_server.counters().total == 2
    samples = list(islice(dataset, 8))
    assert [sample["json"]["number"] for sample in samples] == [int(sample["__key__"]) for sample in samples]
    gets = [entry.bytes for entry in s3_server.log() if entry.key.endswith(".idx") and entry.method == "GET"]
    assert sum(gets) <= 8 + 2 * 8 * 256


def test_an_index_of_nonsense_is_named(path):
    index = path.with_name("x.jsonl.idx")
    data = bytearray(index.read_bytes())
    data[800:808] = data[808:816]
    index.write_bytes(data)
    with pytest.raises(IndexMismatchError, match=r"rows 96 to 129 .*x\.jsonl\.idx.*prepare"):
        list(train(path, repeat=False))
