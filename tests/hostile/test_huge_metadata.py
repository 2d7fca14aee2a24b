"""Metadata in a store that is far larger than the limit: refused after a bounded range, not downloaded."""

import pytest

from energon_stream import Limits, WorkerConfig, get_val_dataset
from energon_stream.errors import DatasetError, LimitError
from energon_stream.index.info_files import read_info
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.storage import StoreSpec
from energon_stream.testing.datasets import TEXT_YAML, write_shards

HUGE = b"# " + b"x" * (5 << 20)
LIMITS = Limits(document_bytes=10_000)
ROOM = 100_000
"""Bytes that the server may send meanwhile: the limit, other files, and the end of ``index.sqlite``."""


@pytest.fixture
def dataset(tmp_path, s3_server, tmp_bucket):
    write_shards(tmp_path, shards=1, samples_per_shard=4, parts=lambda index: {"txt": b"text"})
    prepare_dataset(str(tmp_path), split_ratio=(0, 1, 0), dataset_yaml=TEXT_YAML)
    s3_server.upload_folder(tmp_path, f"{tmp_bucket}/data")
    return f"{tmp_bucket}/data"


def opened(url, server, limits=LIMITS):
    return get_val_dataset(
        url,
        batch_size=2,
        worker_config=WorkerConfig(0, 1, 0),
        storage_options=server.storage_options,
        limits=limits,
    )


@pytest.mark.parametrize("name", [".info.json", "split.yaml", "dataset.yaml"])
def test_a_file_of_a_dataset(s3_server, dataset, name):
    assert sum(len(batch.text) for batch in opened(dataset, s3_server)) == 4
    s3_server.put(f"{dataset}/.nv-meta/{name}", HUGE)
    s3_server.reset_counters()
    with pytest.raises(LimitError, match=f"the file has {len(HUGE):,} bytes") as caught:
        opened(dataset, s3_server)
    assert caught.value.where == f"{dataset}/.nv-meta/{name}"
    assert s3_server.counters().bytes_sent < ROOM


def test_a_metadataset(s3_server, dataset, tmp_bucket):
    s3_server.put(f"{tmp_bucket}/mix.yaml", HUGE)
    s3_server.reset_counters()
    with pytest.raises(LimitError) as caught:
        opened(f"{tmp_bucket}/mix.yaml", s3_server)
    assert caught.value.where == f"{tmp_bucket}/mix.yaml"
    assert s3_server.counters().bytes_sent < ROOM


def test_the_limit_of_the_environment(s3_server, dataset, monkeypatch):
    monkeypatch.setenv("ENERGON_STREAM_LIMITS", "document_bytes=50")
    with pytest.raises(LimitError):
        read_info(StoreSpec(dataset, s3_server.storage_options).open())


def test_an_index_of_a_tar_that_is_too_long(s3_server, dataset):
    samples = opened(dataset, s3_server)
    index = s3_server.get(f"{dataset}/data-000000.tar.idx")
    s3_server.put(f"{dataset}/data-000000.tar.idx", index + HUGE)
    sqlite = s3_server.get(f"{dataset}/.nv-meta/index.sqlite")
    s3_server.put(f"{dataset}/.nv-meta/index.sqlite", sqlite[: len(sqlite) // 4096 * 4096])  # without sizes
    samples = opened(dataset, s3_server)
    s3_server.reset_counters()
    with pytest.raises(DatasetError, match=r"the index has .* bytes, but the 4 samples"):
        list(samples)
    assert s3_server.counters().bytes_sent < ROOM
