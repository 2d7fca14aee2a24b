"""Operators that hold samples: restores in the middle of their buffers, and what refilling them costs."""

import pytest
import runs
from repetitions import is_nightly

from energon_stream import (
    BatchDataset,
    BlendDataset,
    ConcatDataset,
    DefaultTaskEncoder,
    EpochizeDataset,
    ShuffleBufferDataset,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    stateless,
)
from energon_stream.pipeline.node import Context
from energon_stream.state import dumps, loads
from energon_stream.testing.operator_suite import assert_equal_values


class Packs(DefaultTaskEncoder):
    @stateless
    def select_samples_to_pack(self, samples):
        return [samples[i : i + 3] for i in range(0, len(samples), 3)]

    @stateless
    def pack_selected_samples(self, samples):
        samples[0].caption = " | ".join(sample.caption for sample in samples)
        return samples[0]


class Groups(DefaultTaskEncoder):
    @stateless
    def batch_group_criterion(self, sample):
        return int(sample.caption.split()[1]) % 5, None


def train(url, options, config, **changes):
    return get_train_dataset(url, storage_options=options, worker_config=config, **{**runs.ORDER, **changes})


def val(url, options, config):
    return get_val_dataset(
        url, split_part="train", batch_size=3, storage_options=options, worker_config=config
    )


PIPELINES = {
    "packing": lambda *where: train(*where, packing_buffer_size=24, task_encoder=Packs()),
    "groups": lambda *where: train(*where, task_encoder=Groups()),
    "shuffled batches": lambda *where: ShuffleBufferDataset(train(*where), 4),
    "blend of packs and batches": lambda *where: BlendDataset(
        (train(*where, packing_buffer_size=12, task_encoder=Packs()), 2), (train(*where), 1)
    ),
    "epochs": lambda *where: EpochizeDataset(train(*where), 5),
    "concatenated": lambda *where: ConcatDataset(val(*where), val(*where)),
    "batches of blended samples": lambda *where: BatchDataset(
        BlendDataset((train(*where, batch_size=None), 1), (train(*where, batch_size=None), 1)), 2, list
    ),
}


@pytest.mark.every(2)
@pytest.mark.parametrize("name", PIPELINES)
def test_a_restore_in_the_middle_goes_on_identically(name, captions_url, options, captions):
    for workers, cut in [(0, 5), (1, 1), (2, 6), (3, 2)][: None if is_nightly() else 3]:
        # The workers of one count read from S3, the others from the folder: the same sequence.
        where = (captions_url, options) if workers == 2 else (captions, None)
        make = PIPELINES[name]
        with get_savable_loader(make(*where, WorkerConfig(0, 1, workers))) as loader:
            runs.take(loader, cut)
            state = loads(dumps(loader.save_state_rank()))
            expected = runs.take(loader, 9)
        with get_savable_loader(make(*where, WorkerConfig(0, 1, workers))) as loader:
            loader.restore_state_rank(state)
            assert_equal_values(runs.take(loader, 9), expected, f"{name}, {workers} workers")


@pytest.mark.parametrize("name", ["packing", "groups", "shuffled batches"])
def test_held_samples_are_read_again_by_one_request_an_object(name, captions_url, options, s3_server):
    """Megatron-Energon needs 605 requests for 100 samples, one after the other."""
    config = WorkerConfig(0, 1, 0)
    with get_savable_loader(PIPELINES[name](captions_url, options, config)) as loader:
        runs.take(loader, 2)
        state = loader.save_state_rank()["streams"]["0"]["node"]
    dataset = PIPELINES[name](captions_url, options, config)
    s3_server.reset_counters()
    node = dataset.make_node(Context(config, 0), state)
    read = [entry.key for entry in s3_server.log() if entry.key.endswith(".tar")]
    node.close()
    assert 0 < len(read) == len(set(read)) <= 4
    assert s3_server.counters().requests["GET"] <= 2 * len(read)  # each with its index
