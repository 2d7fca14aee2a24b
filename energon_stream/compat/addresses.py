"""The names of ``megatron.energon``, and their places in this library.

``addresses.json`` has the public names of each address, our modules with the names that they hold
(``theirs=ours`` where the names differ), and what is missing, with the reason. ``addresses_8.json`` adds
those of Megatron-Energon 8. A name means the same object at every address, unless its section ``places``
says otherwise. Objects are imported when they are first asked for.
"""

from __future__ import annotations

import functools
import importlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from energon_stream import errors
from energon_stream.errors import MissingNameError

ENERGON_VERSION = "7.4.1"
"""The version of Megatron-Energon whose names and behaviour this library offers."""

ROOT = "megatron.energon"

_DATA: dict[str, Any] = json.loads(Path(__file__).with_name("addresses.json").read_text())
_EIGHT: dict[str, Any] = json.loads(Path(__file__).with_name("addresses_8.json").read_text())

NAMES: Mapping[str, str] = _DATA["names"]
"""Address below ``megatron.energon`` (the root is empty), to the public names that 7.4.1 has there."""

NAMES_8: Mapping[str, str] = _EIGHT["names"]
"""The same, with the names that only Megatron-Energon 8 has there."""

ADDRESSES: Mapping[str, str] = {
    address: f"{NAMES.get(address, '')} {NAMES_8.get(address, '')}".strip()
    for address in {**NAMES, **NAMES_8}
}
"""The same, of both versions."""

PLACES: Mapping[str, Mapping[str, str]] = _DATA["places"]
"""Names that mean something else at one address: address, to name, to ``module:name`` in this library."""

MISSING_MODULES: Mapping[str, str] = _DATA["missing_modules"]
"""Address, to the reason why it and all below it is missing: a key of ``_REASONS``, or text."""

MISSING_NAMES: Mapping[str, Mapping[str, str]] = _DATA["missing_names"]
"""Address, to the reason, as above, to the names that are missing there."""

_REASONS: Mapping[str, str] = {**_DATA["reasons"], **_EIGHT["reasons"]}
_LOGGER = "logger"
_AMBIGUOUS = ("command", "main")


@functools.cache
def _homes() -> Mapping[str, tuple[str, str]]:
    found = {}
    for module, names in [*_DATA["homes"].items(), *_EIGHT["homes"].items()]:
        for name in names.split():
            theirs, _, ours = name.partition("=")
            found[theirs] = (f"energon_stream.{module}", ours or theirs)
    return found


def home(address: str, name: str) -> tuple[str, str] | None:
    """Return the module and the name of the object that a name at an address means; None if it means none."""
    if name in PLACES.get(address, ()):
        module, _, ours = PLACES[address][name].partition(":")
        return f"energon_stream.{module}", ours
    if name in _AMBIGUOUS or missing_reason(address, name) is not None:
        return None
    if name in _homes():
        return _homes()[name]
    if getattr(vars(errors).get(name), "__module__", None) == errors.__name__:
        return errors.__name__, name
    for module in ("energon_stream", "energon_stream.compat.dataset_classes"):
        if name in importlib.import_module(module).__all__:
            return module, name
    return None


def find(address: str, name: str) -> Any:
    """Return the object that a name at an address means.

    Raises MissingNameError if only Megatron-Energon has it there, and AttributeError if neither has it.
    """
    place = home(address, name)
    if place is not None:
        return getattr(importlib.import_module(place[0]), place[1])
    where = f"{ROOT}.{address}".rstrip(".")
    if name == _LOGGER:
        return logging.getLogger(where)
    reason = missing_reason(address, name)
    if reason is not None or name in ADDRESSES[address].split():
        raise MissingNameError(f"{name} of Megatron-Energon is not offered here", where=where, hint=reason)
    raise AttributeError(f"module {where!r} has no attribute {name!r}")


def missing_reason(address: str, name: str = "") -> str | None:
    """Return the reason why a name of an address, or a whole address, is missing; None if it is not."""
    modules = {**MISSING_MODULES, **_EIGHT["missing_modules"]}
    reason = next((modules[a] for a in _above(address) if a in modules), None)
    if reason is None and name:
        names = dict(MISSING_NAMES.get(address, {}))
        if name not in importlib.import_module("energon_stream").__all__:
            names.update(_EIGHT["missing_names"].get(address, {}))
        reason = next((reason for reason, listed in names.items() if name in listed.split()), None)
    return reason and _REASONS.get(reason, reason)


def _above(address: str) -> list[str]:
    """Return an address and all packages that it is in."""
    parts = address.split(".")
    return [".".join(parts[:count]) for count in range(len(parts), 0, -1)]


def offered(address: str) -> list[str]:
    """Return the names of an address, sorted. Nothing is imported."""
    names = set(ADDRESSES[address].split())
    if not address:
        names.update(importlib.import_module("energon_stream").__all__)
    return sorted(name for name in names if name == _LOGGER or home(address, name) is not None)


def children(address: str) -> list[str]:
    """Return the addresses directly below an address."""
    return [other for other in ADDRESSES if other and other.rpartition(".")[0] == address]
