"""Names of Megatron-Energon that programs import, or that its saved states hold; they do nothing here.

Without them such programs could not be imported, and such states could not be loaded and refused for what
they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import make_dataclass
from enum import Enum
from typing import Any, Literal, ParamSpec, TypeAlias, TypeVar

from energon_stream.arguments import SPLIT_CONFIG
from energon_stream.decode import SampleDecoder
from energon_stream.errors import ConfigError
from energon_stream.index.info_files import INFO_JSON, INFO_YAML, META_FOLDER
from energon_stream.index.sqlite_index import INDEX_SQLITE

MAIN_FOLDER_NAME = META_FOLDER
INFO_JSON_FILENAME = INFO_JSON.removeprefix(f"{META_FOLDER}/")
INFO_YAML_FILENAME = INFO_YAML.removeprefix(f"{META_FOLDER}/")
SPLIT_YAML_FILENAME = SPLIT_CONFIG
INDEX_SQLITE_FILENAME = INDEX_SQLITE.removeprefix(f"{META_FOLDER}/")
INDEX_UUID_FILENAME = "index.uuid"
JOIN_INDEX_FILENAME = "join_index.bin"
INDEX_BATCH_SIZE = 4096
GC_DEFAULT_EVERY_N_ITER = 10
PRINT_LOCAL_MAX_LENGTH = 250
DEBUG_SHARD_PRINT = False
ITAR_SUFFIX = ".tar.idx"
IJSONL_SUFFIX = ".jsonl.idx"

ImageDecoderType: TypeAlias = Literal[
    "l8", "rgb8", "rgba8", "l", "rgb", "rgba", "torchl8", "torchrgb8", "torchrgba8", "torchl", "torchrgb",
    "torch", "torchrgba", "pill", "pil", "pilrgb", "pilrgba",
]  # fmt: skip
"""Values of ``SampleDecoder(image_decode=…)``."""

DEFAULT_DECODER = SampleDecoder()

F = TypeVar("F", bound=Callable[..., Any])


class Sampling(Enum):
    """Interpolations by Pillow's numbers."""

    NEAREST = 0
    BILINEAR = 2


class GcFreezeError(RuntimeError):
    """Objects cannot be frozen. It is never raised: freezing needs no care here."""


class FlexState(dict[str, Any]):
    """State of a dataset, with the states of the datasets inside it."""


FlexState.__module__ = "megatron.energon.state"  # states pickle under Megatron-Energon's names


def _state_class(address: str, name: str, *fields: str) -> Any:
    made = make_dataclass(name, fields, kw_only=True)
    made.__module__ = f"megatron.energon.{address}"
    made.__doc__ = "A class of Megatron-Energon's saved states. They can be loaded, but not restored."
    return made


SystemRngState: Any = _state_class("rng", "SystemRngState", "torch", "numpy", "random")
SliceState: Any = _state_class("flavors.webdataset.sample_loader", "SliceState", "index", "current")
SavableDatasetState: Any = _state_class(
    "savable_loader", "SavableDatasetState", "rng", "dataset_state", "sample_index"
)
SavableDatasetCheckpoint: Any = _state_class("savable_loader", "SavableDatasetCheckpoint", "state", "offset")
SavableCheckpoint: Any = _state_class(
    "savable_loader", "SavableCheckpoint", "state", "checkpoint_time", "sample_index"
)
SavableDataLoaderState: Any = _state_class(
    "savable_loader", "SavableDataLoaderState", "worker_states", "next_worker_id", "micro_batch_size"
)

RankState: Any = _state_class(
    "dataloader.dataloader",
    "RankState",
    "prefetched_restore_keys",
    "worker_states",
    "next_worker_id",
    "micro_batch_size",
)


class DataLoaderWorker:
    """A value of ``worker_type``: all batches are made in the calling process."""

    worker_type = "main"

    def __init_subclass__(cls) -> None:
        if cls.__module__ != __name__:
            raise ConfigError(
                f"{cls.__name__} is a worker of the program's own, and these do not run here",
                hint="give a loader worker_type='fork', 'thread' or 'main', and put what workers do into hooks",
            )


class ThreadDataLoaderWorker(DataLoaderWorker):
    """A value of ``worker_type``: threads of this process."""

    worker_type = "thread"


class ForkDataLoaderWorker(DataLoaderWorker):
    """A value of ``worker_type``: processes."""

    worker_type = "fork"


class PinMemory:
    """A value of ``pin_memory``: batches are pinned by the loader itself."""

    def __init_subclass__(cls) -> None:
        if cls.__module__ != __name__:
            raise ConfigError(
                f"{cls.__name__} derives from PinMemory, and the loader pins by itself",
                hint="give batches a method pin_memory, which the loader calls",
            )


class PinMemoryThread(PinMemory):
    """The same."""


class NoPinMemory(PinMemory):
    """A value of ``pin_memory``: batches are not pinned."""

    def __bool__(self) -> bool:
        return False


def skip_safe(fn: F) -> F:
    """Return the function. Here no sample is made to be discarded, so there is nothing to skip."""
    return fn


# Type variables, for annotations and generic classes of programs.
T = TypeVar("T")
V = TypeVar("V")
P = ParamSpec("P")
TTransform = TypeVar("TTransform")
TType = TypeVar("TType")
TMetadata = TypeVar("TMetadata")
T_aggregation_data = TypeVar("T_aggregation_data")
T_batch = TypeVar("T_batch")
T_batch_in = TypeVar("T_batch_in")
T_batch_sample = TypeVar("T_batch_sample")
T_encoded_sample = TypeVar("T_encoded_sample")
T_index = TypeVar("T_index")
T_input_data = TypeVar("T_input_data")
T_raw_batch = TypeVar("T_raw_batch")
T_result = TypeVar("T_result")
T_sample = TypeVar("T_sample")
T_sample_in = TypeVar("T_sample_in")
T_sample_out = TypeVar("T_sample_out")

FeatureBatcher: TypeAlias = Callable[[list[Any]], Any]
"""Makes one field of a batch from that field of all samples."""
