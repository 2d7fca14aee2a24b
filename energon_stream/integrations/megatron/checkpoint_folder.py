"""Writes and reads loader states in checkpoint folders, by Megatron's convention.

``<root>/iter_0000010/train_dataloader_dprank000.pt`` holds ``{"dataloader_state_dict": state}``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from energon_stream.compat.rank_files import dealt, rank_file
from energon_stream.errors import StateError
from energon_stream.integrations.batch_puller import read_state, write_state


def dataloader_state_path(root: str | os.PathLike[str], iteration: int, dp_rank: int) -> Path:
    """Return the file of a data-parallel rank.

    Example:
        >>> print(dataloader_state_path("run", 10, dp_rank=0))
        run/iter_0000010/train_dataloader_dprank000.pt
    """
    return rank_file(Path(root, f"iter_{iteration:07d}"), dp_rank)


def save_dataloader_state(loader: Any, root: str | os.PathLike[str], iteration: int, *, dp_rank: int) -> Path:
    """Write the state of a rank, and return its file, which is complete or absent at any time.

    Args:
        loader: An ``EnergonDataloader``, or another loader with ``save_state``.
        root: Folder of the checkpoints.
        iteration: Training step.
        dp_rank: The pure data-parallel rank.

    Example:
        >>> from energon_stream.integrations.megatron import EnergonMultiModalDataModule
        >>> module = EnergonMultiModalDataModule("captions", tokenizer=None, num_workers=0)
        >>> loader = module.train_dataloader()
        >>> batch = next(loader)
        >>> print(save_dataloader_state(loader, "run", 1, dp_rank=0).name)
        train_dataloader_dprank000.pt
    """
    path = dataloader_state_path(root, iteration, dp_rank)
    write_state(path, loader.save_state())
    return path


def restore_dataloader_state(
    loader: Any, root: str | os.PathLike[str], iteration: int, *, dp_rank: int
) -> None:
    """Restore the state of a rank that :func:`save_dataloader_state` wrote. Call it before the first batch.

    Files of another number of ranks are dealt again for an ``EnergonDataloader``.

    Raises:
        StateError: The file does not exist, or its state does not fit the loader.

    Example:
        >>> from energon_stream.integrations.megatron import EnergonMultiModalDataModule
        >>> module = EnergonMultiModalDataModule("captions", tokenizer=None, num_workers=0)
        >>> saved = save_dataloader_state(module.train_dataloader(), "run", 2, dp_rank=0)
        >>> again = EnergonMultiModalDataModule("captions", tokenizer=None, num_workers=0).train_dataloader()
        >>> restore_dataloader_state(again, "run", 2, dp_rank=0)
    """
    path = dataloader_state_path(root, iteration, dp_rank)
    config = getattr(loader, "worker_config", None)
    if config is not None and config.rank == dp_rank and rank_file(path.parent, 0).exists():
        loader.restore_state(dealt(path.parent, config))
        return
    if not path.exists():
        found = sorted(other.name for other in path.parent.glob("train_dataloader_dprank*.pt"))
        raise StateError(
            f"rank {dp_rank} has no saved loader state",
            where=str(path),
            hint=f"the folder has {found}" if found else "was the checkpoint saved without the loader?",
        )
    loader.restore_state(read_state(path, "use a checkpoint that save_dataloader_state wrote"))
