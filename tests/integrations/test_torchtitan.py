"""torchtitan's trainer and checkpoints: exact resume, other numbers of ranks, and the end of a pass.

``make frameworks`` runs it, in an environment with torchtitan.
"""

import random
import sys
from pathlib import Path

import pytest

pytest.importorskip("torchtitan", reason="no torchtitan (make frameworks)")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import torchtitan_train
from forked_ranks import Job, check_equal

from energon_stream.errors import ConfigError
from energon_stream.integrations.torchtitan import EnergonDataLoader
from energon_stream.testing.datasets import prepared_text_dataset

STEP = 6  # batches of all ranks


def program(*options):
    sys.argv = ["torchtitan_train", "--module", "torchtitan_train", "--config", "small", *map(str, options)]
    torchtitan_train.train.main()


def job_of(folder, *options):
    data = prepared_text_dataset(folder / "data", shards=4, samples_per_shard=25)

    def arguments(record, steps, name):
        given = ["--dataloader.dataset_path", data, "--dump_folder", folder / name, *options]
        return [*given, "--record", record, "--training.steps", steps]

    return Job(program, arguments, folder)


def test_two_ranks_then_three_then_one(tmp_path):
    job = job_of(tmp_path)
    whole = job(1, 9, name="whole")
    assert sorted(whole) == list(range(1, 10))
    seen = check_equal(job(2, 9, kill_in=4), whole, STEP)
    after = check_equal(job(3, 9, kill_in=7), whole, STEP)
    assert min(after) > 2  # it went on at a checkpoint
    seen |= after
    after = check_equal(job(1, 9), whole, STEP)
    assert min(after) > 2
    assert seen | after == whole


def test_a_pass_on_three_ranks_has_each_sample_once(tmp_path):
    job = job_of(tmp_path, "--dataloader.no-infinite")
    found = job(3, 1000)
    assert [len(batches) for batches in found.values()] == [STEP] * len(found)
    texts = [text for batches in found.values() for batch in batches for text in batch]
    assert sorted(texts) == sorted(f"text {number}" for number in range(100))
    assert job(3, 1000, name="again") == found
    half = job(2, 1000, name="cut", kill_in=6)
    rest = job(3, 1000, name="cut")
    assert {**check_equal(half, found, STEP), **check_equal(rest, found, STEP)} == found


@pytest.mark.slow
def test_ten_kills_with_other_numbers_of_ranks(tmp_path):
    random.seed(3)
    job = job_of(tmp_path, "--checkpoint.async_mode", "async")  # some are killed while they write
    whole = job(1, 42, name="whole")
    seen, step = {}, 0
    for _ in range(10):
        step += random.randint(2, 4)
        seen |= check_equal(job(random.choice([1, 2, 3, 6]), 42, kill_in=step), whole, STEP)
    assert job.runs == 11
    seen |= check_equal(job(2, 42), whole, STEP)
    assert seen == whole


def test_what_cannot_be_is_refused(tmp_path):
    data = prepared_text_dataset(tmp_path, shards=1, samples_per_shard=4)
    build = {"dp_world_size": 2, "dp_rank": 0, "tokenizer": None, "seq_len": 8, "local_batch_size": 1}
    with pytest.raises(ConfigError, match="no task encoder"):
        EnergonDataLoader.Config(dataset_path=str(data)).build(**build)
    encoder = torchtitan_train.Encoder
    with pytest.raises(ConfigError, match="no path"):
        EnergonDataLoader.Config(task_encoder=encoder).build(**build)
    config = EnergonDataLoader.Config(
        dataset_path=str(data), task_encoder=encoder, infinite=False, batches_per_step=5
    )
    with pytest.raises(ConfigError, match="5 batches cannot be shared by 2 ranks"):
        config.build(**build)
