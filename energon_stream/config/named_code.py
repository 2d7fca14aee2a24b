"""Classes and functions that metadata files name.

The library's own classes, and classes that the user's program has imported, need no trust. Other code, and
code that a dataset brings along, runs only where the user trusts the dataset.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

from energon_stream.errors import MetadataError, UntrustedCodeError
from energon_stream.limits import TRUST_VARIABLE, is_trusted


def is_own_module(module: str) -> bool:
    """Return True if a module name of a metadata file means this library."""
    return module.split(".")[0] == "energon_stream" or module.split(".")[:2] == ["megatron", "energon"]


def read_class(document: Any, where: str) -> tuple[str, str]:
    """Return module and name of ``{__module__: …, __class__: …}``. Raises MetadataError for another form."""
    if isinstance(document, Mapping) and set(document) == {"__module__", "__class__"}:
        module, name = document["__module__"], document["__class__"]
        if isinstance(module, str) and isinstance(name, str):
            return module, name
    raise MetadataError(
        f"a class is written as __module__ and __class__, not as {document!r:.80}",
        where=where,
        hint="for example {__module__: megatron.energon, __class__: CaptioningSample}",
    )


def _require_trust(trust: bool | None, what: str, where: str) -> None:
    if not is_trusted(trust):
        raise UntrustedCodeError(
            f"the dataset wants to run code: {what}",
            where=where,
            hint=f"if you trust it, pass trust_dataset_code=True or set {TRUST_VARIABLE}=1",
        )


def import_class(module: str, name: str, *, trust: bool | None, where: str, base: type | None = None) -> Any:
    """Import the class (or function) that a metadata file names.

    If ``trust`` is None, the environment decides, and a class derived from ``base`` that the user's own
    program has imported needs no trust. Raises UntrustedCodeError if the dataset is not trusted, and
    MetadataError if the module or the name does not exist.
    """
    if trust is None and base is not None:
        imported = vars(sys.modules[module]).get(name) if module in sys.modules else None
        if isinstance(imported, type) and issubclass(imported, base):
            return imported
    _require_trust(trust, f"import of {module}.{name}", where)
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise MetadataError(
            f"{module}.{name} cannot be imported: {error}",
            where=where,
            hint="install the package it belongs to, or put it on PYTHONPATH",
        ) from error


def imported_joiner(module: str, name: str) -> Any:
    """Return a function, or a class with ``from_joined``, of a module that the user's program has imported.

    It must be defined there. Python's own modules do not count: every program has imported them.
    """
    if module not in sys.modules or module.partition(".")[0] in sys.stdlib_module_names - {"__main__"}:
        return None
    found = vars(sys.modules[module]).get(name)
    joins = isinstance(found, FunctionType) or (isinstance(found, type) and hasattr(found, "from_joined"))
    return found if joins and found.__module__ == module else None


class UserFunction:
    """A function of a Python file beside ``dataset.yaml``, named as ``file.py:function``.

    It travels to other processes as source, because they cannot import the file. Raises UntrustedCodeError
    if the dataset is not trusted, and MetadataError if there is no such function.
    """

    def __init__(
        self, reference: str, read_text: Callable[[str], str], *, trust: bool | None, where: str
    ) -> None:
        file, _, name = reference.partition(":")
        if not file.endswith(".py") or not name.isidentifier():
            raise MetadataError(
                f"{reference!r} does not name a function", where=where, hint="use the form file.py:function"
            )
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
