"""Start and shutdown, restoring in a chain, and where batches are made."""

import gc
import os
from itertools import islice

import pytest
import torch

from energon_stream import BatchDataset, MapDataset, WorkerConfig, get_loader, get_savable_loader
from energon_stream.errors import ConfigError, StateInUseError
from energon_stream.testing.operator_suite import NumbersDataset


def dataset(workers=2, size=24, fn=lambda number: number):
    return MapDataset(NumbersDataset(size, WorkerConfig(0, 1, workers, num_streams=2)), fn)


@pytest.mark.energon("8: DataLoader.start", "8: DataLoader.shutdown")
@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_starts_before_its_first_batch_and_again_after_shutdown(workers):
    wanted = list(get_savable_loader(dataset(workers)))
    loader = get_savable_loader(dataset(workers))
    loader.start()
    with pytest.raises(StateInUseError, match=r"Call start\(\) once"):
        loader.start()
    with pytest.raises(StateInUseError):
        loader.restore_state_rank(None)
    found = list(islice(loader, 5))
    loader.shutdown()
    loader.shutdown(in_del=True)
    loader.start()
    with loader:
        assert found + list(loader) == wanted


@pytest.mark.energon("8: with_restored_state_rank", "8: with_restored_state_global")
def test_restoring_returns_the_loader():
    wanted = list(get_savable_loader(dataset(0)))
    loader = get_savable_loader(dataset(0))
    first = list(islice(loader, 7))
    state = loader.save_state_rank()
    assert first + list(get_savable_loader(dataset(0)).with_restored_state_rank(state)) == wanted
    assert list(get_savable_loader(dataset(0)).with_restored_state_rank(None)) == wanted
    assert first + list(get_savable_loader(dataset(0)).with_restored_state_global([state])) == wanted


@pytest.mark.energon("8: worker_type")
def test_main_makes_the_batches_of_workers_in_this_process():
    def pair(number):
        return number, os.getpid()

    forked = list(get_savable_loader(dataset(2, fn=pair)))
    here = get_savable_loader(dataset(2, fn=pair), worker_type="main", prefetch_factor=1)
    found = list(islice(here, 9))
    resumed = get_savable_loader(dataset(2, fn=pair)).with_restored_state_rank(here.save_state_rank())
    assert [number for number, _ in [*found, *resumed]] == [number for number, _ in forked]
    assert {pid for _, pid in found} == {os.getpid()}
    assert os.getpid() not in {pid for _, pid in forked}
    assert list(get_loader(dataset(0), worker_type="thread")) == list(get_loader(dataset(0)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"worker_type": "process"}, "worker_type is 'process'"),
        ({"worker_type": int}, "worker_type is <class 'int'>"),
        ({"worker_type": None}, "worker_type is None"),
        ({"pin_memory": "always"}, "pin_memory is 'always'"),
    ],
)
def test_what_cannot_be_honoured_is_named(options, message):
    with pytest.raises(ConfigError, match=message):
        get_savable_loader(dataset(), **options)


@pytest.mark.energon(
    "8: gc_freeze_at_start", "8: pin_memory='automatic'", "8: batches without __restore_key__"
)
def test_options_that_any_value_satisfies():
    frozen, tensors = gc.get_freeze_count(), []

    def batch(numbers):
        tensors.append(torch.tensor(numbers))
        return tensors[-1]

    loader = get_savable_loader(
        BatchDataset(dataset(0), 4, batch),
        gc_freeze_at_start=False,
        gc_collect_every_n_steps=3,
        checkpoint_every_sec=None,
        pin_memory="automatic",
    )
    first = list(islice(loader, 2))
    assert gc.get_freeze_count() == frozen
    assert torch.cuda.is_available() or [*map(id, first)] == [*map(id, tensors)]  # not pinned
    rest = get_savable_loader(BatchDataset(dataset(0), 4, batch)).with_restored_state_rank(
        loader.save_state_rank()
    )
    assert sorted(number for batch in [*first, *rest] for number in batch.tolist()) == list(range(24))
