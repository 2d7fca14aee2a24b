"""Loaders for trainers that divide the loss of a step by its labels: torchtitan, NeMo Automodel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from energon_stream.config import get_train_dataset, get_val_dataset
from energon_stream.errors import ConfigError
from energon_stream.loader import SavableDataLoader, get_savable_loader
from energon_stream.pipeline import EvenDataset
from energon_stream.worker import WorkerConfig

IGNORED = -100
"""The label that losses ignore, of torch and of the trainers."""


class Settings(Protocol):
    """The options of a loader in a trainer's configuration."""

    num_workers: int
    num_streams: int
    seed_offset: int
    split_part: str
    infinite: bool
    batches_per_step: int
    options: dict[str, Any]


def labelled_loader(
    path: str, rank: int, world_size: int, settings: Settings, *, batch_size: int, task_encoder: Any
) -> SavableDataLoader[Any]:
    """Make a loader of batches ``(inputs, labels)``, or of dicts with ``"labels"``; ``"val"`` is in order.

    Unless ``infinite``, the passes of all ranks end with the same step, and each sample counts once: what
    fills up the last step are batches with labels that the loss ignores. ``batches_per_step`` counts those of
    all ranks; 0 is one of each.

    Raises ConfigError if ranks cannot share a step, and as the functions that open datasets do.
    """
    if task_encoder is None or not path:
        raise ConfigError(
            "no path, or no task encoder", hint="configure both: the task encoder makes the batches"
        )
    step = settings.batches_per_step or world_size
    if step % world_size:
        raise ConfigError(
            f"a step of {step} batches cannot be shared by {world_size} ranks",
            hint="set batches_per_step to the global batch size divided by the batch size of a rank, and use a "
            "number of ranks that divides it",
        )
    streams, seed = settings.num_streams, settings.seed_offset
    options: dict[str, Any] = {
        "worker_config": WorkerConfig(
            rank, world_size, settings.num_workers, num_streams=streams, seed_offset=seed
        ),
        "split_part": settings.split_part,
        "batch_size": batch_size,
        "task_encoder": task_encoder,
        **settings.options,
    }
    if settings.split_part == "val":
        dataset = get_val_dataset(path, **options)
    else:
        dataset = get_train_dataset(path, repeat=settings.infinite, **options)
    if not settings.infinite:
        dataset = EvenDataset(dataset, "pad", multiple_of=step, fill=_without_labels)
    return get_savable_loader(dataset)


def _without_labels(batch: Any) -> Any:
    labels = batch["labels"] if isinstance(batch, Mapping) else batch[1]
    ignored = torch.full_like(labels, IGNORED)
    return {**batch, "labels": ignored} if isinstance(batch, Mapping) else (batch[0], ignored)
