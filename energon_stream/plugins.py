"""Plug-ins: what the core uses without naming it, found by entry points of the group :data:`GROUP`.

The library fills them itself, in ``pyproject.toml``, with what it has for Megatron-Energon's sake alone. They
are looked up when they are first needed: reading the metadata of all installed packages takes milliseconds.
"""

from __future__ import annotations

import functools
from importlib.metadata import entry_points
from typing import Any

from energon_stream.errors import MissingPackageError

GROUP = "energon_stream.plugins"


@functools.cache
def load_plugin(name: str) -> Any:
    """Return the object that fills a plug-in. Raises MissingPackageError if no installed package fills it."""
    for point in entry_points(group=GROUP, name=name):
        return point.load()
    raise MissingPackageError(
        f"the plug-in {name!r} is not installed",
        where=f"entry points of the group {GROUP}",
        hint="install energon-stream with pip; its sources in PYTHONPATH alone have no entry points",
    )


def debug_log(worker_log_level: int) -> Any:
    """Return the plug-in that writes Megatron-Energon's debug logs; None at level 0."""
    return load_plugin("debug_log") if worker_log_level > 0 else None
