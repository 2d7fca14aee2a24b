"""Imports of optional packages, and of modules when they are first used, so that commands start fast."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from energon_stream.errors import MissingPackageError


@contextmanager
def of_extra(extra: str | None) -> Iterator[None]:
    """Import the packages of an extra within this block.

    Raises MissingPackageError if one cannot be imported; without an extra, the ImportError.
    """
    try:
        yield
    except ImportError as error:
        if extra is None:
            raise
        raise MissingPackageError(
            f"{error.name or 'a package'} cannot be imported: {error}",
            hint=f"run `pip install 'energon-stream[{extra}]'`",
        ) from error


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
        with of_extra(self._extra):
            return importlib.import_module(self._name)
