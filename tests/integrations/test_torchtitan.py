"""torchtitan's trainer and checkpoints: exact resume, other numbers of ranks, and the end of a pass.

``make frameworks`` runs it, in an environment with torchtitan.
"""

import json
import random
import sys
from itertools import zip_longest
from pathlib import Path

import pytest

pytest.importorskip("torchtitan", reason="no torchtitan (make frameworks)")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import torchtitan_train
from forked_ranks import launch

from energon_stream.errors import ConfigError
from energon_stream.integrations.torchtitan import EnergonDataLoader
from energon_stream.testing.datasets import prepared_text_dataset

STEP = 6  # batches of all ranks


def program(*options):
    sys.argv = ["torchtitan_train", "--module", "torchtitan_train", "--config", "small", *map(str, options)]
    torchtitan_train.train.main()


class Job:
    """Runs of the example with one folder of checkpoints."""

    def __init__(self, folder, *options):
        self.folder, self.runs = folder, 0
        self.data = prepared_text_dataset(folder / "data", shards=4, samples_per_shard=25)
        self.options = options

    def __call__(self, ranks, steps, *, kill_in=None, name="run"):
        """Train to a step, or to a kill in one; return what each step got from the checkpoint on."""
        self.runs += 1
        record = self.folder / f"steps{self.runs}"
        arguments = ["--dataloader.dataset_path", self.data, "--dump_folder", self.folder / name]
        arguments += ["--record", record, "--training.steps", steps, *self.options]

        def is_due():
            lines = self.lines(record, 0)
            return bool(lines) and lines[-1][0] >= kill_in

        launch(ranks, program, *arguments, until=None if kill_in is None else is_due)
        found = {}
        own = [self.lines(record, rank) for rank in range(ranks)]
        for batches in zip_longest(*own):  # in the order of the job
            for batch in batches:
                if batch is not None:
                    found.setdefault(batch[0], []).append(batch[1:])
        return found

    @staticmethod
    def lines(record, rank):
        path = record.with_name(f"{record.name}.{rank}")
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("]")]


def check_equal(found, whole):
    """All batches of all complete steps are those of the whole run; a killed run lacks some of the last."""
    complete = {step: batches for step, batches in found.items() if len(batches) == STEP}
    assert complete == {step: whole[step] for step in complete}
    return complete


def test_two_ranks_then_three_then_one(tmp_path):
    job = Job(tmp_path)
    whole = job(1, 9, name="whole")
    assert sorted(whole) == list(range(1, 10))
    seen = check_equal(job(2, 9, kill_in=4), whole)
    after = check_equal(job(3, 9, kill_in=7), whole)
    assert min(after) == 3  # after the checkpoint of step 2
    seen |= after
    after = check_equal(job(1, 9), whole)
    assert min(after) in (5, 7)
    assert seen | after == whole


def test_a_pass_on_three_ranks_has_each_sample_once(tmp_path):
    job = Job(tmp_path, "--dataloader.no-infinite")
    found = job(3, 1000)
    assert [len(batches) for batches in found.values()] == [STEP] * len(found)
    texts = [text for batches in found.values() for batch in batches for text in batch]
    assert sorted(texts) == sorted(f"text {number}" for number in range(100))
    assert job(3, 1000, name="again") == found
    half = job(2, 1000, name="cut", kill_in=6)
    rest = job(3, 1000, name="cut")
    assert {**check_equal(half, found), **check_equal(rest, found)} == found


@pytest.mark.slow
def test_ten_kills_with_other_numbers_of_ranks(tmp_path):
    random.seed(3)
    job = Job(tmp_path)
    whole = job(1, 42, name="whole")
    seen, step = {}, 0
    for _ in range(10):
        step += random.randint(2, 4)
        seen |= check_equal(job(random.choice([1, 2, 3, 6]), 42, kill_in=step), whole)
    assert job.runs == 11
    seen |= check_equal(job(2, 42), whole)
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
