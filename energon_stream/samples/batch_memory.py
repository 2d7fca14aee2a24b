"""Memory in which batches are stacked: that of the channel to the main process, where a worker has one."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class BatchMemory(Protocol):
    """Has room for the tensors of the next batch."""

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor | None:
        """Return an uninitialized tensor; None if there is no room."""


class _MemoryOfThread(threading.local):
    memory: BatchMemory | None = None


_memory: BatchMemory | None = None
_batching = _MemoryOfThread()


def use_batch_memory(memory: BatchMemory | None) -> None:
    """Set the memory of this process; None for the usual one."""
    global _memory
    _memory = memory


@contextlib.contextmanager
def batching() -> Iterator[None]:
    """Make batches in the memory of this process, on this thread and within the block."""
    _batching.memory = _memory
    try:
        yield
    finally:
        _batching.memory = None


def batch_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor | None:
    """Return an uninitialized tensor of a batch that is being made; None to allocate it as usual.

    Example:
        >>> import torch
        >>> batch_tensor((2, 3), torch.uint8) is None  # no batch is being made
        True
    """
    memory = _batching.memory
    return None if memory is None else memory.tensor(shape, dtype)
