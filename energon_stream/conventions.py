"""The conventions that a process follows where this library and Megatron-Energon 7.4.1 differ.

``"own"`` stands for this library's, ``"energon"`` for those of Megatron-Energon. The alias sets the default
to ``"energon"``; the environment variable :data:`CONVENTIONS_VARIABLE` overrides it.
``docs/compatibility.md`` lists the differences.
"""

from __future__ import annotations

import os
from typing import Literal, TypeAlias, cast, get_args

from energon_stream.errors import ConfigError

Conventions: TypeAlias = Literal["own", "energon"]

CONVENTIONS_VARIABLE = "ENERGON_STREAM_CONVENTIONS"
"""Environment variable: ``own`` or ``energon``."""

_default: Conventions = "own"


def conventions() -> Conventions:
    """Return the conventions of this process. Raises ConfigError if the variable has another value.

    Example:
        >>> conventions()
        'own'
    """
    return checked(os.environ.get(CONVENTIONS_VARIABLE) or _default, CONVENTIONS_VARIABLE)


def checked(value: object, name: str) -> Conventions:
    """Return a value if it names conventions; raise ConfigError else. ``name`` is for the message."""
    if value not in get_args(Conventions):
        raise ConfigError(f"{name} is {value!r}", hint="use 'own' or 'energon'")
    return cast("Conventions", value)


def set_default(value: Conventions) -> None:
    """Set the conventions of a process whose environment names none."""
    global _default
    _default = value
