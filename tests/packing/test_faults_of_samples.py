"""One sample's fault costs that sample alone; and what packs of a buffer cannot say is refused."""

import pytest

from energon_stream import (
    DefaultTaskEncoder,
    EvenDataset,
    GroupBatchDataset,
    LengthPacker,
    PackingGroupConfig,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
)
from energon_stream.errors import ConfigError, FatalSampleError
from energon_stream.testing.datasets import prepared_text_dataset
from energon_stream.testing.operator_suite import NumbersDataset

ONE = WorkerConfig(0, 1, 0)
SAMPLES = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    return prepared_text_dataset(folder, shards=2, samples_per_shard=SAMPLES // 2, text="{}")


class Class(ValueError):
    pass


def encoder(length, method="best_fit"):
    class Packs(DefaultTaskEncoder):
        packer = LengthPacker(length, 8, method)

        def pack_selected_samples(self, samples):
            return [int(sample.text) for sample in samples]

        def batch(self, packs):
            return packs

    return Packs()


def train(folder, task_encoder, size, **options):
    return get_train_dataset(
        folder,
        task_encoder=task_encoder,
        packing_buffer_size=size,
        **({"batch_size": 1, "repeat": False, "worker_config": ONE, "shuffle_buffer_size": None} | options),
    )


@pytest.mark.parametrize(
    ("size", "method"), [(6, "best_fit"), (50, "first_fit"), ("stream", "greedy"), (6, "greedy")]
)
@pytest.mark.parametrize("bad", [{3}, {0, 23}, {4, 5, 6, 7, 17}, set(range(0, 24, 2))])
def test_a_length_that_fails_costs_its_sample_alone(folder, size, method, bad):
    def length(sample):
        if int(sample.text) in bad:
            raise Class("no length")
        return 1 + int(sample.text) % 5

    loader = get_savable_loader(train(folder, encoder(length, method), size))
    found = [number for batch in loader for pack in batch for number in pack]
    assert sorted(found) == sorted(set(range(SAMPLES)) - bad)
    noted = {(sample.key, sample.error) for sample in loader.bad_samples()}
    assert noted == {(f"{number:08d}", "Class") for number in bad}


@pytest.mark.parametrize("size", [6, "stream"])
def test_a_resumed_run_leaves_the_same_samples_out(folder, size):
    def length(sample):
        if int(sample.text) % 5 == 1:
            raise Class("no length")
        return 1 + int(sample.text) % 4

    def loader():
        return get_savable_loader(train(folder, encoder(length, "greedy"), size))

    expected = list(loader())
    for steps in (1, 3, 5):
        first = loader()
        batches = iter(first)
        assert [next(batches) for _ in range(steps)] == expected[:steps]
        again = loader()
        again.restore_state_rank(first.save_state_rank())
        assert list(again) == expected[steps:]


def test_a_typo_in_a_length_ends_the_run_at_once(folder):
    calls = []

    def length(sample):
        calls.append(sample.text)
        return len(sample.txet)

    with pytest.raises(FatalSampleError, match="the first 10 samples failed"):
        list(get_savable_loader(train(folder, encoder(length), 20)))
    assert len(calls) == 10


@pytest.mark.parametrize("ends", ["drop", "pad"])
def test_packs_of_a_buffer_cannot_be_counted(folder, ends):
    packs = encoder(lambda sample: 4)
    options = {"task_encoder": packs, "batch_size": 1, "worker_config": ONE, "packing_buffer_size": 6}
    with pytest.raises(ConfigError, match=r"needs the number of packs.*PlannedPacking"):
        get_val_dataset(folder, split_part="train", ends=ends, **options)
    with pytest.raises(ConfigError, match="needs the number of packs"):
        train(folder, packs, 6, ends=ends)
    assert (
        len(list(get_savable_loader(get_val_dataset(folder, split_part="train", **options)))) == SAMPLES // 2
    )


@pytest.mark.parametrize("size", [2, None])
def test_groups_of_no_fixed_size_cannot_be_counted(size):
    numbers = NumbersDataset(8)
    grouped = GroupBatchDataset(numbers, size, lambda number: (number % 2, 4), list)
    if size is None:
        with pytest.raises(ConfigError, match="needs the number"):
            EvenDataset(grouped, "drop")
    else:
        EvenDataset(grouped, "drop")


def groups(make):
    class Apart(type(encoder(lambda sample: 4))):
        def build_packing_groups(self, datasets, packing_buffer_size, shuffle_buffer_size):
            return make(datasets, packing_buffer_size)

    return Apart()


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda datasets, size: None, "NoneType"),
        (lambda datasets, size: [None], "NoneType"),
        (lambda datasets, size: datasets, "LoadedDataset"),
        (lambda datasets, size: 7, "int"),
        (lambda datasets, size: {"a": 1}, "str"),
    ],
)
def test_what_are_no_groups_is_named(folder, make, named):
    with pytest.raises(ConfigError, match=f"build_packing_groups returned {named}"):
        train(folder, groups(make), 6)


def one(datasets, size):
    return PackingGroupConfig(datasets, size)


def yielded(datasets, size):
    yield one(datasets, size)


@pytest.mark.parametrize("make", [yielded, one, lambda *both: (one(*both),), lambda *both: [one(*both)]])
def test_groups_may_come_in_any_form(folder, make):
    assert len(list(get_savable_loader(train(folder, groups(make), 6)))) == SAMPLES // 2


def test_a_class_made_in_each_call_is_one_kind(folder, caplog):
    class Raises(DefaultTaskEncoder):
        def encode_sample(self, sample):
            class Odd(ValueError):
                pass

            raise Odd("odd")

    with pytest.raises(FatalSampleError):
        list(
            get_savable_loader(
                get_train_dataset(folder, task_encoder=Raises(), batch_size=1, worker_config=ONE)
            )
        )
    assert len([record for record in caplog.records if "skipping sample" in record.message]) == 1
