"""Megatron-Energon's quickstart, as such a program is written. It knows nothing of this library::

    python -m energon_stream.run_megatron examples/megatron_quickstart.py FOLDER_OR_URL

``FOLDER_OR_URL`` has the prepared datasets ``coco`` and ``coyo``, and ``coyo-coco-dataset.yaml``
(examples/pages).
"""

import sys

import torch
from megatron.energon import WorkerConfig, get_loader, get_savable_loader, get_train_dataset

ROOT = sys.argv[1]

# One sample
ds = get_train_dataset(
    f"{ROOT}/coco",
    batch_size=None,
    shuffle_buffer_size=100,
    max_samples_per_sequence=100,
    worker_config=WorkerConfig.default_worker_config(),
)
loader = get_loader(ds)
for batch in loader:
    print(batch)
    break

# A batch of two
loader = get_loader(
    get_train_dataset(
        f"{ROOT}/coco",
        batch_size=2,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        worker_config=WorkerConfig.default_worker_config(),
    )
)
for batch in loader:
    print("batch of two:", len(batch.__key__), tuple(batch.image.shape), len(batch.caption))
    break

# Blending, on one of two ranks
worker_config = WorkerConfig(
    rank=1,
    world_size=2,
    num_workers=2,
)
loader = get_loader(
    get_train_dataset(
        f"{ROOT}/coyo-coco-dataset.yaml",
        batch_size=4,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        worker_config=worker_config,
    )
)
for _, batch in zip(range(3), loader, strict=False):
    print("blend:", *batch.__key__)

# Saving and restoring
ds = get_train_dataset(
    f"{ROOT}/coyo-coco-dataset.yaml",
    batch_size=4,
    shuffle_buffer_size=100,
    max_samples_per_sequence=100,
    worker_config=WorkerConfig.default_worker_config(),
)
loader = get_savable_loader(ds)
for _, batch in zip(range(10), loader, strict=False):
    print("before:", *batch.__key__)
state = loader.save_state_rank()
expected = [batch.__key__ for _, batch in zip(range(5), loader, strict=False)]

ds = get_train_dataset(
    f"{ROOT}/coyo-coco-dataset.yaml",
    batch_size=4,
    shuffle_buffer_size=100,
    max_samples_per_sequence=100,
    worker_config=WorkerConfig.default_worker_config(),
)
loader = get_savable_loader(ds)
loader.restore_state_rank(state)
found = [batch.__key__ for _, batch in zip(range(5), loader, strict=False)]
print("restored as without restoring:", found == expected, torch.is_tensor(batch.image))
