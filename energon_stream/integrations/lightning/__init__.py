"""A data module for PyTorch Lightning, with exact resume in the middle of an epoch."""

from __future__ import annotations

from energon_stream.integrations.lightning.data_module import EnergonDataHooks, EnergonDataModule

__all__ = ["EnergonDataHooks", "EnergonDataModule"]
