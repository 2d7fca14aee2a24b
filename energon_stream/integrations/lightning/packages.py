"""The two packages of Lightning's code. The trainer of each takes only what derives from its own classes."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from energon_stream.imports import of_extra

_COPIES = ("lightning.pytorch", "pytorch_lightning")


def of_lightning(name: str) -> Any:
    """Return a class of the package that the program has imported; of the one that is there, if none.

    Raises MissingPackageError if neither is installed.
    """
    first, second = sorted(_COPIES, key=lambda package: package not in sys.modules)
    with of_extra("lightning"):
        try:
            return getattr(importlib.import_module(first), name)
        except ModuleNotFoundError:
            return getattr(importlib.import_module(second), name)
