"""Options of the functions that open datasets: what follows from others, and what is refused."""

import pytest

from energon_stream import (
    DefaultTaskEncoder,
    ReadOptions,
    WorkerConfig,
    get_train_dataset,
    get_val_dataset,
)
from energon_stream.errors import ConfigError
from energon_stream.testing.datasets import prepared_captioning_dataset

CONFIG = WorkerConfig(rank=0, world_size=1, num_workers=0)


class Packs(DefaultTaskEncoder):
    def select_samples_to_pack(self, samples):
        return [samples]

    def select_next_pack(self, samples):
        return [[next(samples)]]

    def pack_selected_samples(self, samples):
        return samples[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("captions")
    prepared_captioning_dataset(folder, shards=4, samples_per_shard=5)
    return folder


def read_options(dataset):
    """The limits that the innermost dataset reads with."""
    while dataset.inputs:
        (dataset,) = dataset.inputs
    return dataset.options


@pytest.mark.parametrize("given", [None, ReadOptions(max_gap=1)], ids=["usual", "set"])
@pytest.mark.parametrize(
    ("batch_size", "packing", "expected"),
    [(256, None, 256), (256, 1000, 1000), (256, "stream", 256), (None, None, 8)],
)
def test_the_first_batch_is_fetched_exactly_whatever_else_is_set(
    folder, given, batch_size, packing, expected
):
    options = {
        "batch_size": batch_size,
        "worker_config": CONFIG,
        "packing_buffer_size": packing,
        "task_encoder": Packs(),
        "read_options": given,
    }
    training = get_train_dataset(folder, shuffle_buffer_size=None, max_samples_per_sequence=None, **options)
    for dataset in (training, get_val_dataset(folder, split_part="train", **options)):
        assert read_options(dataset).first_samples == expected
        assert read_options(dataset).max_gap == (ReadOptions() if given is None else given).max_gap


def test_a_number_of_first_samples_is_honoured(folder):
    dataset = get_val_dataset(
        folder,
        batch_size=256,
        split_part="train",
        worker_config=CONFIG,
        read_options=ReadOptions(first_samples=5),
    )
    assert read_options(dataset).first_samples == 5
    with pytest.raises(ConfigError, match="first_samples is 0"):
        ReadOptions(first_samples=0)


def test_deprecated_arguments_warn_where_they_are_passed(folder):
    with pytest.warns(FutureWarning, match="handler= is deprecated") as caught:
        get_val_dataset(
            folder, batch_size=1, split_part="train", worker_config=CONFIG, handler=lambda error, key: None
        )
    assert [warning.filename for warning in caught] == [__file__]


def test_unknown_arguments_are_named(folder):
    with pytest.raises(ConfigError, match=r"unknown argument 'image_decoding'.*'image_decode'"):
        get_val_dataset(folder, batch_size=1, worker_config=CONFIG, image_decoding="pil")
