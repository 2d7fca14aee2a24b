"""Quickstart: load a prepared dataset of images and captions, in ranks, saved and restored.

python examples/pages/quickstart.py FOLDER
"""

import sys
from itertools import islice

from energon_stream import WorkerConfig, get_loader, get_savable_loader, get_train_dataset


def first(path, batch_size):
    """Print one sample (``batch_size=None``) or one batch."""
    ds = get_train_dataset(
        path,
        batch_size=batch_size,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        worker_config=WorkerConfig.default_worker_config(),
    )
    loader = get_loader(ds)
    for batch in loader:
        print(batch)
        break
    return batch


def distributed(path, rank, world_size):
    """The loader of one of several data-parallel ranks."""
    worker_config = WorkerConfig(rank=rank, world_size=world_size, num_workers=2)
    return get_loader(
        get_train_dataset(
            path,
            batch_size=4,
            shuffle_buffer_size=100,
            max_samples_per_sequence=100,
            worker_config=worker_config,
        )
    )


def savable(path, num_workers=4):
    """A loader that can save and restore its position."""
    ds = get_train_dataset(
        path,
        batch_size=4,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        worker_config=WorkerConfig.default_worker_config(num_workers),
    )
    return get_savable_loader(ds)


def save_and_restore(path, num_workers=4):
    """Ten batches, a saved state, and a new loader that goes on after them."""
    loader = savable(path, num_workers)
    for batch in islice(loader, 10):
        print(batch.__key__)
    state = loader.save_state_rank()

    restored = savable(path, num_workers)
    restored.restore_state_rank(state)
    return loader, restored


def main(path):
    first(path, None)
    first(path, 2)
    for rank in range(2):
        print(f"rank {rank}:", next(iter(distributed(path, rank, world_size=2))).__key__)
    loader, restored = save_and_restore(path)
    expected = [batch.__key__ for batch in islice(loader, 3)]
    print("restored as without restoring:", [batch.__key__ for batch in islice(restored, 3)] == expected)


if __name__ == "__main__":
    main(sys.argv[1])
