"""A data module for PyTorch Lightning, with exact resume in the middle of an epoch, and its statistics."""

from __future__ import annotations

from energon_stream.integrations.lightning.data_module import (
    EnergonDataHooks,
    EnergonDataModule,
    StatsCallback,
)

__all__ = ["EnergonDataHooks", "EnergonDataModule", "StatsCallback"]
