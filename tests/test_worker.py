"""What a program does with a configuration itself: activating it, and writing to its debug log."""

import json
import os
import random
import threading
from dataclasses import replace

import pytest
from told import told

from energon_stream import (
    DefaultTaskEncoder,
    NoCachePool,
    WorkerConfig,
    get_loader,
    get_train_dataset,
    stateless,
)
from energon_stream.errors import ConfigError, WorkerError
from energon_stream.testing.datasets import prepared_text_dataset


class Encoder(DefaultTaskEncoder):
    @stateless(restore_seeds=True)
    def encode_sample(self, sample):
        return self.current_batch_index, self.current_sample_index, random.random()


@pytest.fixture
def config():
    """The configuration of the second of three ranks, with two workers each."""
    configured = WorkerConfig(rank=1, world_size=3, num_workers=2, seed_offset=7)
    yield configured
    configured.worker_deactivate()


@pytest.mark.energon("WorkerConfig.worker_activate", "WorkerConfig.worker_deactivate")
def test_hooks_of_the_program_see_the_activated_counters(config):
    config.worker_activate(5)
    assert WorkerConfig.active_worker_config is config
    assert (config.active_worker_sample_index, config.active_worker_batch_index) == (5, 5)
    first = Encoder().encode_sample(None)
    assert first[:2] == (10, 10)  # the first of two streams of the rank
    assert Encoder().encode_sample(None) == first
    config.worker_deactivate()
    assert WorkerConfig.active_worker_config is None
    config.worker_activate(6)
    assert Encoder().encode_sample(None)[2] != first[2]


@pytest.mark.energon("WorkerConfig.worker_activate(override_global_rank)")
def test_another_stream_may_be_activated(config):
    config.worker_activate(5, override_global_rank=4)
    assert (config.global_worker_id(), config.rank_worker_id()) == (4, 1)
    assert config.worker_seed() == config.stream_seed(4)
    assert Encoder().encode_sample(None)[:2] == (11, 11)


@pytest.mark.energon(
    "WorkerConfig.worker_activate", differs="a second call raises WorkerError and not AssertionError"
)
def test_one_configuration_is_active_at_a_time(config):
    config.worker_deactivate()  # nothing is active, and nothing happens
    config.worker_activate(0)
    with pytest.raises(WorkerError, match="worker_deactivate"):
        config.worker_activate(1)
    with pytest.raises(WorkerError, match="worker_deactivate"):
        WorkerConfig(0, 1, 0).worker_activate(1)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(config.active_worker_sample_index))
    thread.start()
    thread.join()
    assert seen == [0]  # it is of this thread alone


@pytest.mark.energon("WorkerConfig.worker_push_sample_index", "WorkerConfig.worker_pop_sample_index")
def test_pushed_counters_are_of_calls_and_not_of_batches(config):
    with pytest.raises(WorkerError, match="worker_activate"):
        config.worker_push_sample_index(1)
    config.worker_activate(5, override_global_rank=4)
    config.worker_push_sample_index(9)
    config.worker_push_sample_index(11)
    assert (config.active_worker_sample_index, config.active_worker_batch_index) == (11, 5)
    assert config.global_worker_id() == 4
    with pytest.raises(WorkerError, match="worker_pop_sample_index"):
        config.worker_deactivate()
    assert [config.worker_pop_sample_index(), config.active_worker_sample_index] == [11, 9]
    assert [config.worker_pop_sample_index(), config.active_worker_sample_index] == [9, 5]
    with pytest.raises(WorkerError, match="pairs"):
        config.worker_pop_sample_index()


def test_a_hook_may_push_but_not_end_what_the_loader_began(config):
    with config.activate(1, sample_index=3, batch_index=2):
        config.worker_push_sample_index(8)
        assert (config.active_worker_sample_index, config.active_worker_batch_index) == (8, 2)
        assert config.worker_pop_sample_index() == 8
        with pytest.raises(WorkerError, match="hooks return"):
            config.worker_deactivate()


@pytest.mark.energon("WorkerConfig.worker_activate(cache_pool)", "TaskEncoder.cache")
def test_hooks_get_the_pool(config):
    pool = NoCachePool()
    config.worker_activate(0, cache_pool=pool)
    config.worker_push_sample_index(1)
    assert Encoder().cache is pool
    config.worker_pop_sample_index()
    config.worker_deactivate()
    assert Encoder().cache is not pool


@pytest.mark.energon("WorkerConfig.worker_seed", differs="workers are numbered across ranks first")
def test_seed_of_another_worker(config):
    assert config.worker_seed(1) == config.worker_seed(override_local_worker_id=1) == config.stream_seed(4)
    assert config.worker_seed() == config.stream_seed(1)


@pytest.mark.energon("WorkerConfig.assert_worker", differs="it raises WorkerError and not AssertionError")
def test_assert_worker(config):
    WorkerConfig(0, 1, 0).assert_worker()
    with pytest.raises(WorkerError, match="outside of the workers"):
        config.assert_worker()
    with config.activate(1):
        config.assert_worker()


@pytest.mark.energon("WorkerConfig.should_log")
def test_lines_up_to_the_level_are_written():
    config = WorkerConfig(0, 1, 0, worker_log_level=2)
    assert [config.should_log(level) for level in range(5)] == [True, True, True, False, False]


@pytest.mark.energon("WorkerConfig.worker_log")
def test_the_program_writes_to_the_file_of_its_process(tmp_path):
    pattern = f"{tmp_path}/new/{{worker_id}}_{{pid}}.jsonl"
    config = WorkerConfig(rank=2, world_size=4, num_workers=3, worker_debug_path=pattern)
    config.worker_log({"t": "mine", "value": 1.5, "none": None})
    for stream in (2, 10, 6):
        with config.activate(stream):
            config.worker_log({"t": stream})
    config.worker_log({"t": "again"})
    files = {path.name: path.read_text().splitlines() for path in (tmp_path / "new").iterdir()}
    pid = os.getpid()
    assert files == {
        f"8_{pid}.jsonl": ['{"t": "mine", "value": 1.5, "none": null}', '{"t": "again"}'],
        f"9_{pid}.jsonl": ['{"t": 2}'],
        f"10_{pid}.jsonl": ['{"t": 6}'],
        f"11_{pid}.jsonl": ['{"t": 10}'],
    }


@pytest.mark.energon("WorkerConfig.worker_log", differs="without a path, lines are log messages")
def test_without_a_path_lines_are_log_messages(caplog, capsys):
    caplog.set_level("INFO", "energon_stream")
    WorkerConfig(0, 1, 0).worker_log({"t": "mine"})
    assert json.loads(told(caplog)[0]) == {"t": "mine"}
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("path", ["{rank}.jsonl", "{}.jsonl", "{worker_id", "s3://bucket/{worker_id}.jsonl"])
def test_a_path_that_names_no_file_is_refused(path):
    with pytest.raises(ConfigError, match="worker_debug_path"):
        WorkerConfig(0, 1, 0, worker_debug_path=path)


@pytest.mark.parametrize("name", ["rank", "world_size", "num_workers", "num_streams", "seed_offset"])
def test_a_number_that_is_none_is_named(name):
    numbers = {"rank": 0, "world_size": 1, "num_workers": 0, name: None}
    with pytest.raises(ConfigError, match=f"{name} is None"):
        WorkerConfig(**numbers)


@pytest.mark.parametrize(
    ("world", "workers", "logical"), [(1, 4, 2), (1, 4, 4), (2, 4, 4), (2, 2, 2), (1, 0, 1)]
)
def test_logical_workers_are_streams(tmp_path, world, workers, logical):
    """The job's batches are those of so many streams, whatever workers read them; some may have none."""
    texts = prepared_text_dataset(tmp_path / "texts", shards=2, samples_per_shard=16)

    def read(config, count):
        loader = get_loader(get_train_dataset(texts, batch_size=2, worker_config=config))
        return [batch.text for batch, _ in zip(loader, range(count), strict=False)]

    whole = read(WorkerConfig(0, 1, 0, num_streams=logical), 12)
    ranks = [WorkerConfig(rank, world, workers, logical_workers=logical) for rank in range(world)]
    assert {(config.num_streams, config.logical_workers) for config in ranks} == {(logical, logical)}
    found = [read(config, 12 // world) for config in ranks]
    assert [batch for step in zip(*found, strict=True) for batch in step] == whole
    assert replace(ranks[0], num_workers=0).num_streams == logical


@pytest.mark.parametrize(
    ("world", "workers", "options", "said"),
    [
        (1, 4, {"logical_workers": 3}, "does not divide the 4 workers"),
        (1, 4, {"logical_workers": 8}, "does not divide the 4 workers"),
        (4, 2, {"logical_workers": 2}, "one rank has all of a stream here"),
        (2, 4, {"logical_workers": 4, "num_streams": 8}, "but num_streams is 8"),
        (1, 4, {"logical_workers": 0}, "logical_workers"),
        (1, 4, {"logical_workers": -2}, "logical_workers"),
        (1, 4, {"logical_workers": 2.0}, "logical_workers"),
        (1, 4, {"logical_workers": "2"}, "logical_workers"),
        (1, 4, {"logical_workers": True}, "logical_workers"),
    ],
)
def test_logical_workers_that_cannot_be(world, workers, options, said):
    with pytest.raises(ValueError, match=said):
        WorkerConfig(0, world, workers, **options)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("rank", "RANK"),
        ("num_workers", "or leave out what has a default"),
        ("num_streams", "or leave out what has a default"),
        ("seed_offset", "a whole number"),
    ],
)
@pytest.mark.parametrize("value", [None, "8", 1.5, True])
def test_the_hint_fits_the_number(name, remedy, value):
    with pytest.raises(ConfigError, match=f"{name} is .*{remedy}"):
        WorkerConfig(**({"rank": 0, "world_size": 1, "num_workers": 0} | {name: value}))
