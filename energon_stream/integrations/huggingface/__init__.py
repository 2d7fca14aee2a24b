"""Loaders for Hugging Face's ``accelerate`` and ``transformers.Trainer``, with exact resume."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from energon_stream.integrations.huggingface.accelerated import AcceleratedLoader, worker_config_of
    from energon_stream.integrations.huggingface.stats_callback import StatsCallback
    from energon_stream.integrations.huggingface.trainer import EnergonTrainer, EnergonTrainerHooks

__all__ = ["AcceleratedLoader", "EnergonTrainer", "EnergonTrainerHooks", "StatsCallback", "worker_config_of"]

_MODULES = {
    "EnergonTrainer": "trainer",
    "EnergonTrainerHooks": "trainer",
    "StatsCallback": "stats_callback",
}


def __getattr__(name: str) -> Any:  # so that accelerate can be used without transformers
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _MODULES.get(name, "accelerated")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
