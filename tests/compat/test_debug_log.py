"""The lines that loaders and their workers write to debug logs."""

import json
import os

import pytest
from told import told

from energon_stream import (
    LogSampleDataset,
    WorkerConfig,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
)
from energon_stream.testing.datasets import prepared_captioning_dataset
from energon_stream.testing.operator_suite import NumbersDataset

READ = "WebdatasetSampleLoaderDataset._slices_iter.yield"
EXHAUSTED = "WebdatasetSampleLoaderDataset._slices_iter.all_exhausted"


@pytest.fixture(scope="module")
def captions(tmp_path_factory):
    """A prepared dataset of 24 samples in 3 shards, all in ``train``."""
    folder = tmp_path_factory.mktemp("captions")
    prepared_captioning_dataset(folder, shards=3, samples_per_shard=8, split_ratio=(1, 0, 0))
    return str(folder)


def config(folder, level=1, workers=0, rank=0, world=1, name="{worker_id}.jsonl"):
    return WorkerConfig(
        rank=rank,
        world_size=world,
        num_workers=workers,
        worker_debug_path=f"{folder}/{name}",
        worker_log_level=level,
    )


def train(path, configured, **options):
    options = {"batch_size": 2, "shuffle_buffer_size": 8, "max_samples_per_sequence": 4, **options}
    return get_train_dataset(path, worker_config=configured, **options)


def take(loader, number):
    return [batch for _, batch in zip(range(number), loader, strict=False)]


def read(folder, name):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def of_type(lines, kind):
    return [line for line in lines if line["t"] == kind]


@pytest.mark.energon("WorkerConfig(worker_debug_path)", "WorkerConfig(worker_log_level)")
@pytest.mark.parametrize("workers", [0, 2])
def test_loader_and_workers_log_what_they_yield(captions, tmp_path, workers):
    configured = config(tmp_path, workers=workers, rank=1, world=2)
    with get_savable_loader(train(captions, configured)) as loader:
        batches = take(loader, 5)
    own = 1 * (workers + 1)
    names = [f"{own + number}.jsonl" for number in range(workers + 1)]
    assert sorted(os.listdir(tmp_path)) == names
    lines = read(tmp_path, names[0])
    (made,) = of_type(lines, "SavableLoader.__init__")
    assert made["config"]["map_fn_config"] == {"training": True, "_path": captions}
    assert made["config"]["type"] == made["config"]["dataset"]["type"] == "BatchDataset"
    (begun,) = of_type(lines, "SavableDataLoader.iter")
    assert made["id"] == begun["id"] < begun["iter_id"]
    yielded = of_type(lines, "SavableDataLoader.yield")
    streams = max(1, workers)
    expected = [
        {
            "t": "SavableDataLoader.yield",
            "r": 1,
            "w": None,
            "id": made["id"],
            "iter_id": begun["iter_id"],
            "worker_id": number % streams,
            "worker_idx": number // streams,
            "idx": number,
            "iter_idx": number,
            "global_idx": number,
            "keys": batch.__key__,
        }
        for number, batch in enumerate(batches)
    ]
    assert yielded == expected
    assert lines[-1]["t"] == "SavableDataLoader.StopIteration"
    assert lines[-1]["iter_id"] == begun["iter_id"]
    for worker in range(streams):
        lines = read(tmp_path, names[worker + 1] if workers else names[0])
        made_here = of_type(lines, "yield_batch")
        wanted = [batch.__key__ for batch in batches[worker::streams]]
        assert [line["keys"] for line in made_here][: len(wanted)] == wanted
        assert [line["idx"] for line in made_here] == [*range(len(made_here))]
        assert {(line["r"], line["w"], line["m"]) for line in made_here} == {(1, worker, "train")}
        samples = of_type(lines, READ)
        in_batches = [key for line in made_here for key in line["keys"]]
        assert [line["key"] for line in samples][: len(in_batches)] == in_batches
        assert {(line["shard"] in line["key"], line["w"]) for line in samples} == {(True, worker)}


@pytest.mark.energon("WorkerConfig(worker_log_level)")
def test_levels(captions, tmp_path):
    for level in range(3):
        folder = tmp_path / str(level)
        configured = config(folder, level)
        list(
            get_loader(get_val_dataset(captions, split_part="train", batch_size=5, worker_config=configured))
        )
        with get_loader(train(captions, configured, virtual_epoch_length=3)) as loader:
            assert len(list(loader)) == 3
    assert not (tmp_path / "0").exists()
    kinds = [{line["t"] for line in read(tmp_path / str(level), "0.jsonl")} for level in (1, 2)]
    loaders = {f"BasicDataLoader.{end}" for end in ("__init__", "iter", "yield", "StopIteration")}
    assert kinds[0] == {*loaders, READ, "yield_batch"}
    assert kinds[1] - kinds[0] == {EXHAUSTED, "EpochizeDataset.epoch_start", "EpochizeDataset.epoch_end"}
    batches = of_type(read(tmp_path / "2", "0.jsonl"), "yield_batch")
    assert [line["m"] for line in batches] == ["val"] * 5 + ["train"] * 3
    assert {line["m"] for line in of_type(read(tmp_path / "1", "0.jsonl"), "yield_batch")} == {"train"}
    (end,) = of_type(read(tmp_path / "2", "0.jsonl"), EXHAUSTED)
    assert (end["count"], end["epoch"], end["epoch_count"]) == (24, 0, 24)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_loader_goes_on_counting_the_batches_of_a_worker(captions, tmp_path, workers):
    with get_savable_loader(train(captions, config(tmp_path / "a", workers=workers))) as loader:
        take(loader, 4)
        state = loader.save_state_rank()
    with get_savable_loader(train(captions, config(tmp_path / "b", workers=workers))) as resumed:
        resumed.restore_state_rank(state)
        take(resumed, 2)
        take(resumed, 1)
    lines = of_type(read(tmp_path / "b", "0.jsonl"), "SavableDataLoader.yield")
    first = 4 // max(1, workers)
    assert [line["worker_idx"] for line in lines] == ([first, first, first + 1] if workers else [4, 5, 6])
    assert [line["idx"] for line in lines] == [0, 1, 0]
    assert [line["global_idx"] for line in lines] == [0, 1, 2]
    assert len({line["iter_id"] for line in lines}) == 2
    made = of_type(read(tmp_path / "b", "1.jsonl" if workers else "0.jsonl"), "yield_batch")
    assert made[0]["idx"] == first


def test_a_state_saved_without_a_log_is_restored_with_one(captions, tmp_path):
    with get_savable_loader(train(captions, WorkerConfig(0, 1, 0), virtual_epoch_length=9)) as loader:
        take(loader, 3)
        state = loader.save_state_rank()
        wanted = take(loader, 3)
    with get_savable_loader(train(captions, config(tmp_path, 3), virtual_epoch_length=9)) as resumed:
        resumed.restore_state_rank(state)
        assert [batch.__key__ for batch in take(resumed, 3)] == [batch.__key__ for batch in wanted]
        assert resumed.restore_sample(wanted[0].__restore_key__).__key__ == wanted[0].__key__


def test_each_process_has_its_own_file(captions, tmp_path):
    configured = config(tmp_path, workers=2, name="{pid}_{worker_id}.jsonl")
    with get_loader(train(captions, configured)) as loader:
        take(loader, 2)
        pids = loader.worker_pids
    names = {f"{os.getpid()}_0.jsonl", *(f"{pid}_{1 + worker}.jsonl" for worker, pid in enumerate(pids))}
    assert set(os.listdir(tmp_path)) == names


def test_single_samples_have_one_key(captions, tmp_path):
    with get_loader(train(captions, config(tmp_path), batch_size=None)) as loader:
        samples = take(loader, 3)
    lines = of_type(read(tmp_path, "0.jsonl"), "BasicDataLoader.yield")
    assert [line["keys"] for line in lines] == [[sample.__key__] for sample in samples]


def test_elements_without_keys_are_logged_without(tmp_path):
    with get_loader(NumbersDataset(2, worker_config=config(tmp_path))) as loader:
        assert list(loader) == [0, 1]
    lines = read(tmp_path, "0.jsonl")
    assert "NumbersDataset" in lines[0]["config"]["map_fn_config"]["_path"]
    assert [line.get("keys") for line in of_type(lines, "yield_batch")] == [None, None]


@pytest.mark.energon("LogSampleDataset")
def test_log_sample_dataset_writes_lines_of_its_own(tmp_path):
    numbers = NumbersDataset(2, worker_config=config(tmp_path / "on"))
    assert list(LogSampleDataset(numbers, "other", get_keys_fn=lambda number: [f"key {number}"])) == [0, 1]
    lines = [line for line in read(tmp_path / "on", "0.jsonl") if line["m"] == "other"]
    fields = {"t": "yield_batch", "r": 0, "w": 0, "m": "other"}
    assert lines == [{**fields, "idx": number, "keys": [f"key {number}"]} for number in (0, 1)]
    numbers = NumbersDataset(2, worker_config=config(tmp_path / "off", level=0))
    assert list(LogSampleDataset(numbers, "other")) == [0, 1]
    assert not (tmp_path / "off").exists()


def test_log_sample_dataset_logs_messages_where_there_is_no_file(caplog):
    caplog.set_level("INFO", "energon_stream")
    list(LogSampleDataset(NumbersDataset(1), "val", get_keys_fn=lambda number: [str(number)]))
    assert json.loads(told(caplog)[0]) == {
        "t": "yield_batch",
        "r": 0,
        "w": 0,
        "m": "val",
        "idx": 0,
        "keys": ["0"],
    }
