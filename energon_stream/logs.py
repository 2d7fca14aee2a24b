"""Log messages that are written once per process, and warnings of deprecated uses."""

from __future__ import annotations

import os
import warnings
from collections.abc import Hashable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging

_logged: dict[tuple[Hashable, ...], object] = {}


def log_once(log: logging.Logger, message: str, *args: object, key: Hashable = None) -> None:
    """Log a warning unless this process has logged it before.

    Args:
        log: The logger of the calling module.
        message: Format string, as for ``logging``.
        *args: Its arguments.
        key: What the warning is about: two warnings with the same format string and key are the same. None
            for ``args``.
    """
    entry = (os.getpid(), log.name, message, args if key is None else key)
    mine = object()
    if _logged.setdefault(entry, mine) is mine:  # one of several threads wins, without a lock
        log.warning(message, *args)


def warn_deprecated(use: str, instead: str, *, removed_in: str = "1.0", stacklevel: int = 2) -> None:
    """Warn of a deprecated use, and name the release that removes it.

    Args:
        use: What the caller wrote.
        instead: What to write instead.
        removed_in: The first release without it. ``docs/reference/stability.md`` says how long that takes.
        stacklevel: As for ``warnings.warn``, counted from the caller of this function.
    """
    text = f"{use} is deprecated, and energon_stream {removed_in} removes it: use {instead}"
    warnings.warn(text, FutureWarning, stacklevel=stacklevel + 1)
