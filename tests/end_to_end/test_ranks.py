"""Ranks share the samples among them, and processes of equal rank see the same."""

from collections import Counter

import pytest
import runs

from energon_stream import WorkerConfig, get_train_dataset, get_val_dataset

KEYS = {f"data-{number // 16:06d}.tar/{number:08d}" for number in range(64)}


@pytest.mark.parametrize("make", [get_train_dataset, get_val_dataset])
def test_two_ranks_with_two_workers_see_every_sample_once(captions, make):
    def one_pass(rank):
        once = {"repeat": False} if make is get_train_dataset else {"split_part": "train"}
        config = WorkerConfig(rank, 2, 2)
        with runs.open_loader(str(captions), workers=2, make=make, worker_config=config, **once) as loader:
            batches = list(loader)
            assert len(batches) == len(loader)
        return batches

    ranks = [one_pass(rank) for rank in (0, 1)]
    seen = Counter(key for batches in ranks for batch in batches for key in batch.__key__)
    assert seen == Counter(KEYS)
    for rank, batches in enumerate(ranks):
        assert [runs.digest(batch) for batch in one_pass(rank)] == [runs.digest(batch) for batch in batches]
    if make is get_train_dataset:
        assert [key for batch in ranks[0] for key in batch.__key__] != sorted(KEYS)[:32]
