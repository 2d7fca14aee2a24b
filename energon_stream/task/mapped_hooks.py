"""Hooks of a task encoder that are called for one element after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from energon_stream.pipeline import MapDataset, SavableDataset
from energon_stream.task.stateless import get_failure_tolerance, get_stateless
from energon_stream.worker import WorkerConfig


def map_hook(
    encoder: Any, dataset: SavableDataset[Any], name: str, config: WorkerConfig | None
) -> SavableDataset[Any]:
    """Apply a hook to each element, unless it does nothing."""
    if encoder._hook_does_nothing(name):
        return dataset
    return mapped(encoder, dataset, encoder._hook_function(name), config)


def mapped(
    encoder: Any,
    dataset: SavableDataset[Any],
    function: Callable[[Any], Any],
    config: WorkerConfig | None,
) -> SavableDataset[Any]:
    """Apply a function to each element."""
    return MapDataset(
        dataset,
        function,
        stateless_map_fn=get_stateless(function),
        failure_tolerance=tolerance_of(encoder, function),
        worker_config=config,
    )


def tolerance_of(encoder: Any, function: Callable[..., Any]) -> int:
    """Return the failures in a row of a function that are tolerated."""
    return get_failure_tolerance(function, encoder.__default_failure_tolerance__)
