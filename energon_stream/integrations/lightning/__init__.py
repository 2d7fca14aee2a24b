"""A data module for PyTorch Lightning, with exact resume in the middle of an epoch."""

from __future__ import annotations

from energon_stream.integrations.lightning.data_hooks import EnergonDataHooks
from energon_stream.integrations.lightning.data_module import EnergonDataModule

__all__ = ["EnergonDataHooks", "EnergonDataModule"]
