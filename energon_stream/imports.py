"""Imports of optional packages, and of modules when they are first used, so that commands start fast."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from energon_stream.errors import MissingPackageError


@contextmanager
def of_extra(extra: str | None) -> Iterator[None]:
    """Raise MissingPackageError if a package of an extra cannot be imported in this block.

    It may be broken, as torchvision beside another PyTorch than its own. The error names its cause then.
    """
    try:
        yield
    except (ImportError, RuntimeError, OSError, AttributeError) as error:
        if extra is None:
            raise
        hint, name = f"run `pip install 'energon-stream[{extra}]'`", getattr(error, "name", None)
        if not isinstance(error, ModuleNotFoundError):
            hint += f", in a virtual environment of its own if packages disagree: {error}"
        raise MissingPackageError(f"{name or 'a package'} cannot be imported: {error}", hint=hint) from error


class LazyModule:
    """Stands for a module until one of its attributes is needed.

    ``extra`` is the extra of this package that brings it; then access raises MissingPackageError without it.
    """

    def __init__(self, name: str, extra: str | None = None) -> None:
        self._name, self._extra = name, extra

    def __getattr__(self, attribute: str) -> Any:
        with of_extra(self._extra):
            module = importlib.import_module(self._name)
        value = getattr(module, attribute)
        setattr(self, attribute, value)  # the next access does not come here
        return value
