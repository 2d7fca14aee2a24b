"""Loaders for Hugging Face's ``accelerate`` and ``transformers.Trainer``, with exact resume."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from energon_stream.integrations.huggingface.accelerated import AcceleratedLoader, worker_config_of
    from energon_stream.integrations.huggingface.trainer import (
        EnergonTrainer,
        EnergonTrainerHooks,
        StatsCallback,
    )

__all__ = ["AcceleratedLoader", "EnergonTrainer", "EnergonTrainerHooks", "StatsCallback", "worker_config_of"]

_OF_ACCELERATE = ("AcceleratedLoader", "worker_config_of")


def __getattr__(name: str) -> Any:  # so that accelerate can be used without transformers
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "accelerated" if name in _OF_ACCELERATE else "trainer"
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
