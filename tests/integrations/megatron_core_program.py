"""Four ranks, two by two data-parallel and context-parallel; prints what they read.

Run by ``test_megatron_core.py`` with a Python that has Megatron-Core, under torchrun. The arguments say what
is imported first (``core`` or ``alias``), where the dataset is, and whose data module is used with which
groups.
"""

import importlib.metadata
import inspect
import io
import json
import sys

import torch
import torch.distributed as dist
from bridge_modules import import_bridge

from energon_stream.integrations.megatron import EnergonMultiModalDataModule, install_alias

FIRST, PATH, MODULE = sys.argv[1:]


def import_core():
    """What Megatron's training imports."""
    from megatron.core import parallel_state
    from megatron.core.process_groups_config import ProcessGroupCollection

    return parallel_state, ProcessGroupCollection


def reloaded(state):
    """The state from a checkpoint file, which Bridge since 0.6 reads in a way of its own."""
    file = io.BytesIO()
    torch.save({"dataloader_state_dict": state}, file)
    file.seek(0)
    try:
        from megatron.bridge.utils.safe_pickle import energon_torch_load as load
    except ImportError:
        load = torch.load
    return load(file)["dataloader_state_dict"]


if FIRST == "core":
    core = import_core()
install_alias()
import megatron.energon  # noqa: E402

if FIRST == "alias":
    core = import_core()
parallel_state, ProcessGroupCollection = core
assert megatron.energon.__name__ == "megatron.energon"
assert "megatron_core" in repr(importlib.metadata.distribution("megatron-core")._path)
assert parallel_state.__file__.endswith("megatron/core/parallel_state.py")

dist.init_process_group("gloo")
parallel_state.initialize_model_parallel(context_parallel_size=2)
options = {"path": PATH, "tokenizer": None, "micro_batch_size": 4, "num_workers": 0}
DataModule = import_bridge() if MODULE == "bridge" else EnergonMultiModalDataModule
known = inspect.signature(DataModule).parameters
if MODULE != "none" and "pg_collection" in known:  # without it, newer ones deal to all ranks alike
    options["pg_collection"] = ProcessGroupCollection.use_mpu_process_groups()
if "image_processor" in known:  # Bridge before 0.6 requires it
    options["image_processor"] = None


def read(loader, batches):
    """The keys of some batches."""
    return [key for _ in range(batches) for key in next(loader).__key__]


train, _ = DataModule(**options).build()
keys = read(train, 5)
state = train.save_state()
later = read(train, 3)
resumed, _ = DataModule(**options).build()
if hasattr(resumed, "restore_state"):  # Bridge's has it since 0.6
    resumed.restore_state(reloaded(state))
    resumed_later = read(resumed, 3)
else:
    resumed_later = later
found = [None] * 4
dist.all_gather_object(
    found,
    [
        parallel_state.get_data_parallel_rank(),
        parallel_state.get_context_parallel_rank(),
        keys,
        later == resumed_later,
    ],
)
if dist.get_rank() == 0:
    sys.stdout.write(f"RESULT{json.dumps(found)}\n")
dist.destroy_process_group()
