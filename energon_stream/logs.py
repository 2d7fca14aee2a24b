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
    """Log a warning unless this process has logged one with the same format string and key.

    The key says what the warning is about; None stands for ``args``.
    """
    entry = (os.getpid(), log.name, message, args if key is None else key)
    mine = object()
    if _logged.setdefault(entry, mine) is mine:  # one of several threads wins, without a lock
        log.warning(message, *args)


def warn_deprecated(use: str, instead: str, *, removed_in: str = "1.0", stacklevel: int = 2) -> None:
    """Warn of a use that was deprecated as ``docs/reference/stability.md`` says; name what replaces it.

    ``stacklevel`` is that of ``warnings.warn``, counted from the caller of this function.
    """
    text = f"{use} is deprecated, and energon_stream {removed_in} removes it: use {instead}"
    warnings.warn(text, FutureWarning, stacklevel=stacklevel + 1)
