"""Blend whole batches, mix within batches, and weight samples.

python examples/pages/blending.py FOLDER_A FOLDER_B     # two datasets of images and captions
"""

import sys
from collections import Counter
from dataclasses import dataclass
from itertools import islice

import torch
from captioning_tasks import (
    CaptioningBatch,
    CaptioningTask,
    ImageBatch,
    ImageTask,
    WeightedCaptioningTaskEncoder,
)

from energon_stream import (
    BlendDataset,
    ConcatDataset,
    EpochizeDataset,
    MapDataset,
    MixBatchDataset,
    concat_pad,
    get_loader,
    get_train_dataset,
    get_val_dataset,
    homogeneous_concat_mix,
)


@dataclass
class ImageWithOptionalCaptionBatch:
    """One type for both kinds of batches."""

    images: torch.Tensor  # (n, c, h, w)
    captions: list[list[str] | None]  # (n,), each of a batch of one


def my_mix_fn(batch: list[CaptioningBatch | ImageBatch]) -> ImageWithOptionalCaptionBatch:
    """Join the images; a caption may be None."""
    return ImageWithOptionalCaptionBatch(
        images=concat_pad([entry.image for entry in batch]),
        captions=[entry.caption if isinstance(entry, CaptioningBatch) else None for entry in batch],
    )


def train(path, batch_size, task_encoder):
    """One of the datasets, shuffled and endless."""
    return get_train_dataset(
        path,
        batch_size=batch_size,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        task_encoder=task_encoder,
    )


def blended(images, captions):
    """Batches of either dataset: 60 % ``ImageBatch``, 40 % ``CaptioningBatch``."""
    return get_loader(
        BlendDataset(
            (train(images, 32, ImageTask()), 0.6),
            (train(captions, 32, CaptioningTask()), 0.4),
        )
    )


def concatenated(images, captions):
    """For validation: all of one dataset, then all of the other."""
    return get_loader(
        ConcatDataset(
            get_val_dataset(images, batch_size=32, task_encoder=ImageTask()),
            get_val_dataset(captions, batch_size=32, task_encoder=CaptioningTask()),
        )
    )


def mixed(first, second, *, num_epochs=None, map_fn=None):
    """Batches of 32 ``CaptioningBatch`` samples, 60 % of one dataset and 40 % of the other."""
    mix_dataset = MixBatchDataset(
        # The inner batch_size is 1, to mix properly.
        (train(first, 1, CaptioningTask()), 6),
        (train(second, 1, CaptioningTask()), 4),
        batch_size=32,
        batch_mix_fn=homogeneous_concat_mix,
    )
    if num_epochs is not None:
        mix_dataset = EpochizeDataset(mix_dataset, num_epochs=num_epochs)
    if map_fn is not None:
        mix_dataset = MapDataset(mix_dataset, map_fn=map_fn)
    return get_loader(mix_dataset)


def mixed_types(images, captions):
    """The same with samples of two types, which ``my_mix_fn`` makes one."""
    return get_loader(
        MixBatchDataset(
            (train(images, 1, ImageTask()), 6),
            (train(captions, 1, CaptioningTask()), 4),
            batch_size=32,
            batch_mix_fn=my_mix_fn,
        )
    )


def weighted(first, second):
    """Batches of either dataset equally often, with different weights for the loss."""
    return get_loader(
        BlendDataset(
            (train(first, 32, WeightedCaptioningTaskEncoder(sample_weight=0.2)), 0.5),
            (train(second, 32, WeightedCaptioningTaskEncoder(sample_weight=0.8)), 0.5),
        )
    )


def main(first, second, batches=20):
    print("blended:", Counter(type(batch).__name__ for batch in islice(blended(first, second), batches)))
    print("validation:", [type(batch).__name__ for batch in concatenated(first, second)])
    mixture = next(iter(mixed(first, second)))
    print("mixed:", tuple(mixture.image.shape), Counter(key.split("/")[0] for key in mixture.__keys__))
    optional = next(iter(mixed_types(first, second)))
    print("without captions:", optional.captions.count(None), "of", len(optional.captions))
    for batch in islice(weighted(first, second), 3):
        loss = batch.images.mean() * batch.weight
        print(f"weight {batch.weight}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main(*sys.argv[1:3])
