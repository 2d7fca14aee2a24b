"""Small datasets of texts, and ways to read metadatasets of them."""

import json
from itertools import islice

from energon_stream import (
    DefaultTaskEncoder,
    ReadOptions,
    WorkerConfig,
    get_train_dataset,
    get_val_dataset,
    stateless,
)
from energon_stream.index.yaml_io import dump_yaml
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.testing.datasets import write_shards

ALONE = WorkerConfig(0, 1, 0)
V2 = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
TEXT = {
    "sample_type": {"__module__": "megatron.energon", "__class__": "TextSample"},
    "field_map": {"text": "txt"},
}


class Texts(DefaultTaskEncoder):
    @stateless
    def encode_sample(self, sample):
        return sample.text

    def batch(self, texts):
        return texts


def text_dataset(folder, name, *, per_shard, shards=10, split_ratio=(8, 1, 1), **yaml):
    write_shards(
        folder,
        shards=shards,
        samples_per_shard=per_shard,
        parts=lambda i: {"txt": f"{name}{i}".encode()},
    )
    prepare_dataset(str(folder), split_ratio=split_ratio, dataset_yaml={**TEXT, **yaml})
    return folder


def v2(train, **splits):
    """A document of version 2."""
    return {**V2, "splits": {"train": train, **splits}}


def write(path, document):
    path.write_bytes(dump_yaml(json.loads(json.dumps(document))))  # without aliases
    return path


def train(path, **changes):
    """Single samples for training, in this process."""
    arguments = {
        "batch_size": None,
        "shuffle_buffer_size": 10,
        "max_samples_per_sequence": 4,
        "worker_config": ALONE,
        "read_options": ReadOptions(max_ahead=16),  # tiny datasets would be planned for hundreds of passes
    }
    return get_train_dataset(path, **{**arguments, **changes})


def val(path, **changes):
    return get_val_dataset(path, **{"batch_size": None, "worker_config": ALONE, **changes})


def texts(dataset, count=None):
    return [sample.text for sample in islice(dataset, count)]
