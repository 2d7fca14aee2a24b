"""Log messages that are written once per process, and warnings of deprecated uses."""

from __future__ import annotations

import functools
import inspect
import os
import warnings
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from energon_stream.errors import ConfigError

if TYPE_CHECKING:
    import logging

_P = ParamSpec("_P")
_T = TypeVar("_T")
_logged: dict[tuple[Hashable, ...], object] = {}


def log_once(log: logging.Logger, message: str, *args: object, key: Hashable = None) -> None:
    """Log a warning unless this process has logged one with the same format string and key.

    The key says what the warning is about; None stands for ``args``.
    """
    entry = (os.getpid(), log.name, message, args if key is None else key)
    mine = object()
    if _logged.setdefault(entry, mine) is mine:  # one of several threads wins, without a lock
        log.warning(message, *args)


def warn_user(message: str, kind: type[Warning]) -> None:
    """Warn at the line of the user's program that called the library, however deep that is."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_globals.get("__name__", "").startswith(f"{__package__}."):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, kind, stacklevel=level)


def warn_deprecated(use: str, instead: str, *, removed_in: str = "1.0") -> None:
    """Warn of a use that was deprecated as ``docs/reference/stability.md`` says; name what replaces it."""
    warn_user(deprecation(use, instead, removed_in), FutureWarning)


def deprecation(use: str, instead: str, removed_in: str = "1.0") -> str:
    """Return the text of :func:`warn_deprecated`."""
    return f"{use} is deprecated, and energon_stream {removed_in} removes it: use {instead}"


def renamed(**words: str) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Return a decorator that accepts older names of arguments with a warning: ``@renamed(old="new")``."""

    def decorate(function: Callable[_P, _T]) -> Callable[_P, _T]:
        @functools.wraps(function)
        def call(*args: _P.args, **given: _P.kwargs) -> _T:
            for old in words.keys() & given.keys():
                warn_deprecated(f"{old}=", f"{words[old]}=")
                if words[old] in given:
                    raise ConfigError(f"both {old}= and {words[old]}= are given", hint=f"Leave out {old}=.")
                given[words[old]] = given.pop(old)
            return function(*args, **given)

        return call

    return decorate
