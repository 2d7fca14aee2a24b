"""Save and restore: defects of Megatron-Energon 7.4.1 that are none here.

Without a counterpart here:

- Restoring with a smaller micro-batch: batches are not replayed, and a state is of one batch size. What
  stays of the row is that a state may be restored any number of times.
"""

import copy
import multiprocessing
from itertools import islice

import pytest
import torch

from energon_stream import (
    ConcatDataset,
    DefaultTaskEncoder,
    MapDataset,
    WorkerConfig,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    stateless,
)
from energon_stream.testing.datasets import prepared_captioning_dataset
from energon_stream.testing.operator_suite import NumbersDataset


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return prepared_captioning_dataset(tmp_path_factory.mktemp("data"), shards=4, samples_per_shard=20)


def train(folder, encoder=None, workers=0, batch_size=2, **options):
    return get_train_dataset(
        str(folder),
        batch_size=batch_size,
        shuffle_buffer_size=8,
        max_samples_per_sequence=10,
        worker_config=WorkerConfig(0, 1, workers, seed_offset=options.pop("seed_offset", 0)),
        task_encoder=encoder,
        **options,
    )


def keys(loader, count):
    return [key for batch in islice(loader, count) for key in batch.__key__]


def restored(dataset, state):
    loader = get_savable_loader(dataset)
    loader.restore_state_rank(state)
    return loader


def test_saving_again_shortly_after_restoring(folder):
    """One batch after a restore one worker has given nothing yet; the next state must know."""
    with get_savable_loader(train(folder, workers=2)) as whole:
        expected = keys(whole, 40)
    found = []
    state = None
    for batches in (20, 1, 1, 18):
        with restored(train(folder, workers=2), state) as loader:
            found += keys(loader, batches)
            state = loader.save_state_rank()
    assert found == expected


def test_concatenated_datasets_restored_in_the_second_one():
    def build():
        return ConcatDataset(NumbersDataset(30), NumbersDataset(20, offset=100))

    loader = get_savable_loader(build())
    list(islice(loader, 35))
    assert list(restored(build(), loader.save_state_rank())) == list(range(105, 120))


def test_a_state_is_not_changed_by_restoring_it(folder):
    loader = get_savable_loader(train(folder))
    keys(loader, 3)
    state = loader.save_state_rank()
    before = copy.deepcopy(state)
    continuations = [keys(restored(train(folder), state), 8) for _ in range(2)]
    assert continuations[0] == continuations[1] == keys(loader, 8)
    assert state == before


def test_a_state_loads_with_the_defaults_of_torch(folder, tmp_path):
    loader = get_savable_loader(train(folder, workers=2))
    keys(loader, 3)
    torch.save(loader.save_state_rank(), tmp_path / "state.pt")
    assert torch.load(tmp_path / "state.pt") == loader.save_state_rank()
    loader.close()


class Grouping(DefaultTaskEncoder):
    @stateless
    def batch_group_criterion(self, sample):
        return int(sample.__key__[-1]) % 2, None


def test_grouped_batches_can_be_made_again(folder):
    with get_loader(train(folder, Grouping())) as loader:
        assert loader.can_restore_sample()
        batch = next(iter(loader))
        assert loader.restore_sample(batch.__restore_key__).__key__ == batch.__key__


class Drawing(DefaultTaskEncoder):
    @stateless(restore_seeds=True)
    def encode_batch(self, batch):
        return torch.rand(()).item()


def test_loaders_of_one_process_have_random_numbers_of_their_own(folder):
    draws = {}
    for seed_offset in (0, 1, 0):
        found = list(islice(train(folder, Drawing(), seed_offset=seed_offset), 3))
        assert draws.setdefault(seed_offset, found) == found
    assert draws[0] != draws[1]


def test_classes_may_be_renamed(folder):
    class Renamed(Grouping):
        @stateless
        def batch_group_criterion(self, sample):
            return super().batch_group_criterion(sample)

    loader = get_savable_loader(train(folder, Grouping()))
    keys(loader, 3)
    state = loader.save_state_rank()
    assert "Grouping" not in str(state)
    assert keys(restored(train(folder, Renamed()), state), 5) == keys(loader, 5)


class Hanging:
    """Passes twenty numbers, and hangs then."""

    def __init__(self):
        self.never = multiprocessing.get_context("fork").Event()

    def __call__(self, number):
        if number >= 20:
            self.never.wait()
        return number


def test_saving_does_not_wait_for_a_hanging_worker():
    config = WorkerConfig(0, 1, 1)
    loader = get_savable_loader(MapDataset(NumbersDataset(100, config), Hanging()))
    assert list(islice(loader, 20)) == list(range(20))
    state = loader.save_state_rank()
    loader.close()
    after = get_savable_loader(MapDataset(NumbersDataset(100, config), Hanging()))
    after.restore_state_rank(state)
    after.dataset.fn.never.set()
    assert list(islice(after, 3)) == [20, 21, 22]
    after.close()
