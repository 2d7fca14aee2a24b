"""The hooks on the data module of the Lightning that the program uses."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

from energon_stream.integrations.lightning.data_hooks import EnergonDataHooks
from energon_stream.integrations.optional import of_extra

__all__ = ["EnergonDataModule"]

_COPIES = ("lightning.pytorch", "pytorch_lightning")
"""Two packages of the same code, whose trainers know their own data modules only."""

if TYPE_CHECKING:
    _Base = object
else:
    _first, _second = sorted(_COPIES, key=lambda name: name not in sys.modules)
    with of_extra("lightning"):
        try:
            _Base = importlib.import_module(_first).LightningDataModule
        except ModuleNotFoundError:
            _Base = importlib.import_module(_second).LightningDataModule


class EnergonDataModule(EnergonDataHooks, _Base):
    """A ``LightningDataModule``; arguments are those of :class:`EnergonDataHooks`.

    It is one of ``lightning.pytorch``, or of ``pytorch_lightning`` where the program has imported only that, or only that
    is installed.

    Raises:
        MissingPackageError: (On import.) Neither is installed.
    """
