"""Code that a dataset brings along or names: used only where the user trusts the dataset.

Sample types and dataset classes that the user's program has imported itself are the user's, not the dataset's.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

from energon_stream.errors import MetadataError, UntrustedCodeError
from energon_stream.read.trust import TRUST_VARIABLE, is_trusted

__all__ = ["UserFunction", "import_class"]


def _require_trust(trust: bool | None, what: str, where: str) -> None:
    if not is_trusted(trust):
        raise UntrustedCodeError(
            f"the dataset wants to run code: {what}",
            where=where,
            hint=f"if you trust it, pass trust_dataset_code=True or set {TRUST_VARIABLE}=1",
        )


def import_class(module: str, name: str, *, trust: bool | None, where: str, base: type | None = None) -> Any:
    """Import what a metadata file names as ``__module__`` and ``__class__``.

    Args:
        module: The module.
        name: A name in it.
        trust: Whether the dataset may have code imported. None asks the environment, and needs no trust for a
            class derived from ``base`` that the user's own program has imported already.
        where: The metadata file, for messages.
        base: What the class is to be derived from.

    Raises:
        UntrustedCodeError: The dataset is not trusted.
        MetadataError: There is no such module or name.
    """
    if trust is None and base is not None:
        imported = vars(sys.modules[module]).get(name) if module in sys.modules else None
        if isinstance(imported, type) and issubclass(imported, base):
            return imported
    _require_trust(trust, f"import of {module}.{name}", where)
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise MetadataError(
            f"{module}.{name} cannot be imported: {error}",
            where=where,
            hint="install the package it belongs to, or put it on PYTHONPATH",
        ) from error


class UserFunction:
    """A function of a Python file that lies beside ``dataset.yaml``.

    It travels to other processes as source, because the file is no importable module.

    Args:
        reference: ``file.py:function``.
        read_text: Reads a file of the metadata folder.
        trust: Whether the dataset may run code; None asks the environment.
        where: The metadata file, for messages.

    Raises:
        UntrustedCodeError: The dataset is not trusted.
        MetadataError: The reference has another form, or the file has no such function.
    """

    def __init__(
        self, reference: str, read_text: Callable[[str], str], *, trust: bool | None, where: str
    ) -> None:
        file, _, name = reference.partition(":")
        if not file.endswith(".py") or not name.isidentifier():
            raise MetadataError(f"{reference!r} is not of the form file.py:function", where=where)
        _require_trust(trust, reference, where)
        self._reference, self._where, self._source = reference, where, read_text(file)
        self._function = self._load()

    def _load(self) -> Callable[..., Any]:
        file, _, name = self._reference.partition(":")
        namespace: dict[str, Any] = {"__name__": file.removesuffix(".py")}
        exec(compile(self._source, f"{self._where.rpartition('/')[0]}/{file}", "exec"), namespace)
        function = namespace.get(name)
        if not callable(function):
            raise MetadataError(f"{file} has no function {name!r}", where=self._where)
        return function  # type: ignore[no-any-return]

    def __call__(self, *args: Any) -> Any:
        return self._function(*args)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_function"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._function = self._load()

    def __repr__(self) -> str:
        return f"UserFunction({self._reference!r})"
