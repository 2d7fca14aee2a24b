"""Metadatasets in object storage: equal to local ones, and cheap however many sources they have."""

import os
import threading

import pytest
from mixtures import ALONE, text_dataset, texts, train, v2, val, write
from repetitions import is_nightly

from energon_stream import (
    BlendDataset,
    DefaultTaskEncoder,
    WorkerConfig,
    get_loader,
    load_dataset,
    traverse_metadataset,
)
from energon_stream.storage import default_counters
from energon_stream.testing.s3server import S3Server

SOURCES = 1000 if is_nightly() else 120

forks: list[int] = []
os.register_at_fork(before=lambda: forks.append(os.getpid()))


def batch_texts(dataset, batches):
    """Texts of some batches of a loader with the dataset's workers."""
    with get_loader(dataset) as loader:
        found = iter(loader)
        return [next(found).text for _ in range(batches)]


@pytest.mark.every(3)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("transport", ["auto", "fsspec"])
def test_yaml_and_data_in_s3_give_the_sequence_of_local_files(lake, s3_server, workers, transport):
    write(lake / "inner.yaml", v2({"blend": [{"path": "../b", "weight": 2}, {"path": "../c"}]}))
    (lake / "metas").mkdir(exist_ok=True)
    (lake / "inner.yaml").rename(lake / "metas" / "inner.yaml")
    blend = {"blend": [{"weight": 5, "path": "./a"}, {"weight": 2, "path": "metas/inner.yaml"}]}
    local = write(lake / "outer.yaml", v2(blend, val={"path": "c"}))
    s3_server.upload_folder(lake, "s3://bucket/lake")
    options = {"storage_options": s3_server.storage_options, "transport": transport}
    arguments = {"batch_size": 4, "worker_config": WorkerConfig(0, 1, workers)}
    url = "s3://bucket/lake/outer.yaml"
    expected = batch_texts(train(local, **arguments), 20)
    assert batch_texts(train(url, **arguments, **options), 20) == expected
    assert texts(val(url, **options)) == texts(val(local)) == ["c16", "c17"]
    assert [ref.path for ref in traverse_metadataset(url, split_part="train", **options)] == [
        "s3://bucket/lake/a",
        "s3://bucket/lake/b",
        "s3://bucket/lake/c",
    ]
    loaded = load_dataset(url, **options).get_datasets(training=False, worker_config=ALONE)
    assert texts(loaded.datasets[0].dataset) == ["c16", "c17"]


def test_a_local_yaml_may_name_remote_data(lake, s3_server, tmp_path):
    s3_server.upload_folder(lake / "a", "s3://bucket/a")
    both = {"blend": [{"path": "s3://bucket/a"}, {"path": str(lake / "b"), "weight": 3}]}
    path = write(tmp_path / "both.yaml", v2(both))
    dataset = train(
        path, storage_options=s3_server.storage_options, batch_size=4, worker_config=WorkerConfig(0, 1, 1)
    )
    assert {text[0] for batch in batch_texts(dataset, 10) for text in batch} == {"a", "b"}


@pytest.fixture(scope="module")
def thousand_root(tmp_path_factory):
    """A bucket of 1,000 datasets (links to one), fewer by day, and a metadataset of them in two files."""
    root = tmp_path_factory.mktemp("thousand")
    bucket = root / "bucket"
    bucket.mkdir()
    text_dataset(root / "one", "x", per_shard=8, shards=2, split_ratio=(1, 0, 0))
    entries = [{"path": f"d{number}", "subflavors": {"n": number}} for number in range(SOURCES)]
    for entry in entries:
        os.symlink(root / "one", bucket / entry["path"], target_is_directory=True)
    half = SOURCES // 2
    for name, part in (("first", entries[:half]), ("second", entries[half:])):
        write(bucket / f"{name}.yaml", v2({"blend": part}))
    write(bucket / "all.yaml", v2({"blend": [{"path": "first.yaml"}, {"path": "second.yaml"}]}))
    return root


@pytest.fixture
def thousand(thousand_root):
    with S3Server(thousand_root, first_byte_latency=0.02) as server:
        yield server


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_a_thousand_sources_cost_four_requests_each_and_few_sockets(thousand, workers):
    forks.clear()
    before = default_counters().snapshot()
    dataset = train(
        "s3://bucket/all.yaml",
        storage_options=thousand.storage_options,
        batch_size=16,
        worker_config=WorkerConfig(0, 1, workers),
    )
    assert len(forks) <= (1 if workers else 0)  # none, if this process has used object storage already
    opening = thousand.counters()
    # What a busy machine loses is requested again.
    again = default_counters().snapshot() - before
    assert set(opening.requests) == {"GET"}
    assert 0 <= opening.requests["GET"] - (3 + 4 * SOURCES) <= again.retries
    most = 64 * 4 // 3  # beside late requests, others are under way
    assert opening.max_in_flight <= most
    assert opening.connections <= most
    thousand.reset_counters()
    with get_loader(dataset) as loader:
        batches = [batch for batch, _ in zip(loader, range(40), strict=False)]
    running = thousand.counters()
    assert len({flavors["n"] for batch in batches for flavors in batch.__subflavors__}) > 0.3 * SOURCES
    assert running.max_in_flight <= most * max(1, workers)
    assert set(running.requests) == {"GET"}


def test_an_encoder_that_blends_itself_shares_the_threads_too(thousand):
    """One dataset for each source, each of which reads ahead; the limit is the process's."""

    class Blending(DefaultTaskEncoder):
        def build_train_datasets(self, *, datasets, batch_size, worker_config, **_):
            blend = BlendDataset(*datasets, worker_config=worker_config)
            return self.build_batch(blend, batch_size=batch_size, worker_config=worker_config)

    dataset = train(
        "s3://bucket/first.yaml",
        storage_options=thousand.storage_options,
        subset=["0%", "50%"],
        batch_size=16,
        task_encoder=Blending(),
    )
    before = threading.active_count()
    with get_loader(dataset) as loader:
        batches = [batch for batch, _ in zip(loader, range(3), strict=False)]
    assert len({flavors["n"] for batch in batches for flavors in batch.__subflavors__}) > 25
    assert threading.active_count() - before <= dataset.dataset.inputs[0].options.max_in_flight * 4 // 3 + 1
