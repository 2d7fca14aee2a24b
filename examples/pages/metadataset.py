"""Metadatasets: several datasets as one, by a YAML file beside them or in the same bucket.

python examples/pages/metadataset.py FOLDER     # with the prepared datasets coco and coyo
"""

import shutil
import sys
from collections import Counter
from itertools import islice
from pathlib import Path

from energon_stream import (
    BlendDataset,
    DefaultTaskEncoder,
    EpochizeDataset,
    get_train_dataset,
    get_val_dataset,
)

HERE = Path(__file__).parent


def train(path, **options):
    """Batches of four, blended by the YAML's weights."""
    return get_train_dataset(
        path, batch_size=4, shuffle_buffer_size=100, max_samples_per_sequence=100, **options
    )


class BatchwiseBlending(DefaultTaskEncoder):
    """Customized blending: each batch is of one dataset only, with the same shares over all."""

    def build_train_datasets(
        self, *, datasets, worker_config, batch_size, batch_drop_last, virtual_epoch_length=0
    ):
        batched = [
            (
                self.build_batch(
                    dataset,
                    batch_size=batch_size,
                    batch_drop_last=batch_drop_last,
                    worker_config=worker_config,
                ),
                weight,
            )
            for dataset, weight in datasets
        ]
        blended = BlendDataset(*batched, worker_config=worker_config)
        if virtual_epoch_length > 0:
            blended = EpochizeDataset(blended, length=virtual_epoch_length, worker_config=worker_config)
        return blended


def shares(batches):
    """Number of samples of each dataset."""
    return Counter(Path(source.dataset_path).name for batch in batches for source in batch.__sources__)


def main(folder):
    for name in ("coyo-coco-dataset.yaml", "advanced-metadataset.yaml"):
        shutil.copy(HERE / name, folder)
    simple = f"{folder}/coyo-coco-dataset.yaml"
    print("5 to 2:", dict(shares(islice(train(simple), 100))))

    for batch in islice(train(f"{folder}/advanced-metadataset.yaml"), 2):
        print(batch.__subflavors__)

    for batch in train(simple, task_encoder=BatchwiseBlending(), virtual_epoch_length=3):
        print("a batch of", *shares([batch]))

    validation = get_val_dataset(simple, batch_size=4)
    print("validation:", sum(len(batch.__key__) for batch in validation), "samples")


if __name__ == "__main__":
    main(sys.argv[1])
