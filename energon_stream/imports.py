"""Modules that are imported when they are first used, so that commands which need no tensors start fast."""

from __future__ import annotations

import importlib
from typing import Any

from energon_stream.errors import MissingPackageError


class LazyModule:
    """Stands for a module until one of its attributes is needed.

    Args:
        name: Name of the module.
        extra: Extra of this package that brings the module; None for one that is always installed.

    Raises:
        MissingPackageError: (On access.) The module of an extra cannot be imported.
    """

    def __init__(self, name: str, extra: str | None = None) -> None:
        self._name, self._extra = name, extra

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(self._import(), attribute)
        setattr(self, attribute, value)  # the next access does not come here
        return value

    def _import(self) -> Any:
        try:
            return importlib.import_module(self._name)
        except ImportError as error:
            if self._extra is None:
                raise
            raise MissingPackageError(
                f"the package {self._name!r} cannot be imported: {error}",
                hint=f"run `pip install 'energon-stream[{self._extra}]'`",
            ) from error
