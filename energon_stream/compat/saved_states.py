"""The classes of which Megatron-Energon's own saved states are made.

They are here so that programs that name them can be imported, and so that such a state can be loaded and
refused for what it is: it cannot be restored. They pickle under Megatron-Energon's names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = [
    "FlexState",
    "SavableCheckpoint",
    "SavableDataLoaderState",
    "SavableDatasetCheckpoint",
    "SavableDatasetState",
    "SliceState",
    "SystemRngState",
]


class FlexState(dict[str, Any]):
    """State of a dataset, with those of the datasets inside it."""


@dataclass(kw_only=True)
class SystemRngState:
    """States of the random generators of PyTorch, NumPy and Python."""

    torch: Any
    numpy: Any
    random: Any


@dataclass(kw_only=True)
class SliceState:
    """How far a slice was read."""

    index: int
    current: int


@dataclass(kw_only=True)
class SavableDatasetState:
    """State of a worker."""

    rng: SystemRngState
    dataset_state: FlexState
    sample_index: int


@dataclass(kw_only=True)
class SavableDatasetCheckpoint:
    """State of a worker, and the batches to skip after it."""

    state: SavableDatasetState | None
    offset: int


@dataclass(kw_only=True)
class SavableCheckpoint:
    """State of a worker, and when it was."""

    state: SavableDatasetState | None
    checkpoint_time: float
    sample_index: int


@dataclass(kw_only=True)
class SavableDataLoaderState:
    """State of a rank."""

    worker_states: list[Any]
    next_worker_id: int
    micro_batch_size: int | None


_ADDRESSES = {
    "state": (FlexState,),
    "rng": (SystemRngState,),
    "flavors.webdataset.sample_loader": (SliceState,),
    "savable_loader": (
        SavableCheckpoint,
        SavableDataLoaderState,
        SavableDatasetCheckpoint,
        SavableDatasetState,
    ),
}
for _address, _classes in _ADDRESSES.items():
    for _class in _classes:
        _class.__module__ = f"megatron.energon.{_address}"
