"""For programs that are written for Megatron and Megatron-Energon; neither has to be installed."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from energon_stream.compat.alias import install_alias, uninstall_alias

if TYPE_CHECKING:
    from energon_stream.integrations.megatron.checkpoint import (
        dataloader_state_path,
        restore_dataloader_state,
        save_dataloader_state,
    )
    from energon_stream.integrations.megatron.datamodule import (
        EnergonDataloader,
        EnergonMultiModalDataModule,
        cyclic_iter,
    )

__all__ = [
    "EnergonDataloader",
    "EnergonMultiModalDataModule",
    "cyclic_iter",
    "dataloader_state_path",
    "install_alias",
    "restore_dataloader_state",
    "save_dataloader_state",
    "uninstall_alias",
]

_CHECKPOINT = ("dataloader_state_path", "restore_dataloader_state", "save_dataloader_state")


def __getattr__(name: str) -> Any:  # PyTorch is imported with these, and only then
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(
        importlib.import_module(f"{__name__}.{'checkpoint' if name in _CHECKPOINT else 'datamodule'}"), name
    )
