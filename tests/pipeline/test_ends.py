"""Passes that end after the same number of elements on all ranks."""

import pytest

from energon_stream import (
    DefaultTaskEncoder,
    SkipSample,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    get_val_datasets,
    stateless,
)
from energon_stream.errors import ConfigError, EmptyStreamError
from energon_stream.pipeline import BatchDataset, EvenDataset, MapDataset, RepeatDataset
from energon_stream.testing.datasets import prepared_captioning_dataset
from energon_stream.testing.operator_suite import NumbersDataset, assert_exact_resume, assert_restores_by_key


def numbers(rank=0, world=1, workers=0, count=23, streams=6):
    return NumbersDataset(count, WorkerConfig(rank, world, workers, num_streams=streams))


@stateless
def few(x):
    if x % 5 == 2:
        raise SkipSample
    return x


def plain(x):
    return x


def one_pass(dataset):
    with get_savable_loader(dataset) as loader:
        found = list(loader)
        assert len(loader) == len(found)
    return found


@pytest.mark.parametrize(("ends", "length"), [("drop", 3), ("pad", 4)])
@pytest.mark.parametrize("world", [1, 2, 3, 6])
def test_all_ranks_give_as_many(ends, length, world):
    """23 numbers for 6 streams: five have 4, one has 3."""
    ranks = [one_pass(EvenDataset(numbers(rank, world), ends)) for rank in range(world)]
    assert {len(found) for found in ranks} == {length * 6 // world}
    uneven = [one_pass(numbers(rank, world)) for rank in range(world)]
    for found, has in zip(ranks, uneven, strict=True):
        assert set(found) <= set(has)
        assert len(set(found)) == min(len(found), len(has))


@pytest.mark.parametrize(("ends", "length"), [("drop", 12), ("pad", 24)])
@pytest.mark.parametrize("count", [13, 17, 23])
@pytest.mark.parametrize("streams", [2, 6, 12])
@pytest.mark.parametrize("world", [1, 2])
def test_the_elements_of_all_ranks_are_a_multiple(ends, length, count, streams, world):
    """Of 12 in a step; what fills up is made of the last elements, and no step has nothing else."""
    ranks = [
        one_pass(
            EvenDataset(numbers(rank, world, 0, count, streams), ends, multiple_of=12, fill=lambda number: -1)
        )
        for rank in range(world)
    ]
    assert [len(found) for found in ranks] == [length // world] * world
    steps = [
        [number for found in ranks for number in found[at : at + 12 // world]]
        for at in range(0, length // world, 12 // world)
    ]
    assert all(any(number >= 0 for number in step) for step in steps)
    seen = [number for found in ranks for number in found if number >= 0]
    assert sorted(seen) == (sorted(set(seen)) if ends == "drop" else list(range(count)))


def test_resuming_goes_on_within_what_fills_up():
    def make():
        return EvenDataset(numbers(streams=3, count=10), "pad", multiple_of=9, fill=lambda number: -number)

    assert_exact_resume(make, steps=40, tail=8)


@pytest.mark.parametrize("ends", ["drop", "pad"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_filter_makes_no_rank_shorter_than_the_others(ends, workers, caplog):
    def make(rank):
        inner = MapDataset(numbers(rank, 2, workers), few, stateless_map_fn=True)
        return EvenDataset(inner, ends)

    found = [one_pass(make(rank)) for rank in range(2)]
    assert [len(some) for some in found] == [9 if ends == "drop" else 12] * 2
    assert all(number % 5 != 2 for some in found for number in some)
    if not workers:
        assert "repeats its last element" in caplog.text


@pytest.mark.parametrize("ends", ["drop", "pad"])
@pytest.mark.parametrize("streams", [1, 3])
def test_restoring_at_every_step_goes_on_identically(ends, streams):
    def make():
        inner = MapDataset(numbers(streams=streams, count=20), few, stateless_map_fn=True)
        return EvenDataset(BatchDataset(inner, 2, list, batcher_stateless=True), ends)

    assert_exact_resume(make, steps=40, tail=8)
    assert_restores_by_key(make)


def test_what_cannot_be_is_refused():
    with pytest.raises(ConfigError, match="goes on for ever"):
        EvenDataset(RepeatDataset(numbers()), "pad")
    for ends in ("drop", "pad"):  # before the first batch, on each rank alike
        with pytest.raises(EmptyStreamError, match=r"3 of 6 streams have no element.*fewer ranks"):
            EvenDataset(numbers(count=3, streams=6), ends)
    with pytest.raises(ConfigError, match="stateless"):
        EvenDataset(MapDataset(numbers(), plain), "pad")
    EvenDataset(MapDataset(numbers(count=24), plain), "pad")  # nothing has to be repeated
    empty = EvenDataset(MapDataset(numbers(count=6), nothing, stateless_map_fn=True), "pad")
    with pytest.raises(EmptyStreamError, match="nothing to repeat"):
        one_pass(empty)


def nothing(x):
    raise SkipSample


def test_datasets_take_it_as_an_option(tmp_path):
    prepared_captioning_dataset(tmp_path, shards=5, samples_per_shard=5, split_ratio=(4, 1, 0))

    def train(rank, **options):
        order = {"batch_size": 2, "shuffle_buffer_size": 10, "max_samples_per_sequence": 5}
        return get_train_dataset(tmp_path, worker_config=WorkerConfig(rank, 3, 0), **order, **options)

    def val(rank, **options):
        return get_val_dataset(tmp_path, batch_size=1, worker_config=WorkerConfig(rank, 3, 0), **options)

    assert [len(one_pass(val(rank))) for rank in range(3)] == [2, 2, 1]
    assert [len(one_pass(val(rank, ends="drop"))) for rank in range(3)] == [1, 1, 1]
    assert [len(one_pass(val(rank, ends="pad", task_encoder=Stateless()))) for rank in range(3)] == [2, 2, 2]
    (each, _), *rest = get_val_datasets(
        tmp_path, batch_size=1, worker_config=WorkerConfig(2, 3, 0), ends="drop"
    )
    assert (len(one_pass(each)), rest) == (1, [])
    assert {len(one_pass(train(rank, repeat=False, ends="drop"))) for rank in range(3)} == {3}
    assert len(train(0, virtual_epoch_length=7, ends="drop")) == 7  # all ranks have as many anyway
    with pytest.raises(ConfigError, match="goes on for ever"):
        train(0, ends="drop")
    with pytest.raises(ConfigError, match="exclude each other"):
        val(0, ends="drop", limit=1)
    with pytest.raises(ConfigError, match="one of uneven, drop, pad"):
        val(0, ends="even")


class Stateless(DefaultTaskEncoder):
    """All hooks are."""
