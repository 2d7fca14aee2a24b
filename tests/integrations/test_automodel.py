"""NeMo Automodel's recipes: exact resume, other numbers of ranks, and the end of epochs.

``make frameworks`` runs it, in an environment with nemo-automodel.
"""

import random
import sys
from pathlib import Path

import pytest

pytest.importorskip("nemo_automodel", reason="no nemo-automodel (make frameworks)")
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))

import automodel_train  # noqa: E402
from forked_ranks import Job, check_equal  # noqa: E402
from nemo_automodel.components.config.loader import set_enable_user_modules  # noqa: E402
from nemo_automodel.recipes.base_recipe import BaseRecipe  # noqa: E402

from energon_stream.errors import ConfigError  # noqa: E402
from energon_stream.integrations.automodel import EnergonDatasetConfig  # noqa: E402
from energon_stream.testing.datasets import prepared_text_dataset  # noqa: E402

STEP = 6  # batches of all ranks


def program(*options):
    set_enable_user_modules(True)
    sys.argv = ["automodel_train", "--config", str(EXAMPLES / "automodel.yaml"), *map(str, options)]
    automodel_train.main()


class OwnRanks(automodel_train.Recipe):
    """The recipe with Automodel's own checkpoints of loaders: a file for each rank."""

    __setattr__ = BaseRecipe.__setattr__


def of_own_ranks(*options):
    automodel_train.Recipe = OwnRanks
    program(*options)


def job_of(folder, *options, run=program):
    data = prepared_text_dataset(folder / "data", shards=4, samples_per_shard=25)

    def arguments(record, steps, name):
        given = ["--dataset.path", data, "--checkpoint.checkpoint_dir", folder / name, *options]
        return [*given, "--record", record, "--step_scheduler.max_steps", steps]

    return Job(run, arguments, folder)


def test_two_ranks_then_three_then_one(tmp_path):
    job = job_of(tmp_path)
    whole = job(1, 20, name="whole")
    assert sorted(whole) == list(range(20))
    for epoch in (whole[step] for step in range(10)), (whole[step] for step in range(10, 20)):
        texts = sorted(text for batches in epoch for batch in batches for text in batch)
        assert texts == sorted(f"text {number}" for number in range(100))
    seen = check_equal(job(2, 20, kill_in=4), whole, STEP)
    after = check_equal(job(3, 20, kill_in=12), whole, STEP)
    assert min(after) > 1  # it went on at a checkpoint
    seen |= after
    assert seen | check_equal(job(1, 20), whole, STEP) == whole


def test_a_file_for_each_rank(tmp_path):
    """Without ElasticRecipe, the same number of ranks goes on."""
    job = job_of(tmp_path, run=of_own_ranks)
    whole = job(2, 8, name="whole")
    seen = check_equal(job(2, 8, kill_in=4), whole, STEP)
    assert (tmp_path / "run" / "LATEST" / "dataloader" / "dataloader_dp_rank_1.pt").exists()
    rest = check_equal(job(2, 8), whole, STEP)
    assert min(rest) > 1
    assert seen | rest == whole


@pytest.mark.slow
def test_ten_kills_with_other_numbers_of_ranks(tmp_path):
    random.seed(4)
    job = job_of(tmp_path, "--step_scheduler.num_epochs", 5)
    whole = job(1, 42, name="whole")
    seen, step = {}, 0
    for _ in range(10):
        step += random.randint(2, 4)
        seen |= check_equal(job(random.choice([1, 2, 3, 6]), 42, kill_in=step), whole, STEP)
    assert job.runs == 11
    assert seen | check_equal(job(2, 42), whole, STEP) == whole


def test_what_cannot_be_is_refused(tmp_path):
    data = str(prepared_text_dataset(tmp_path, shards=1, samples_per_shard=4))
    with pytest.raises(ConfigError, match="no task encoder"):
        EnergonDatasetConfig(data, 2).build(tokenizer=None).shard(1, 0)
    endless = EnergonDatasetConfig(data, 2, automodel_train.Encoder, infinite=True, num_workers=0)
    with pytest.raises(TypeError, match="max_steps"):
        len(endless.build(tokenizer=None).shard(1, 0))
