"""Start methods of worker processes: fork where it is safe, else a server that has the library loaded."""

from __future__ import annotations

import logging
import multiprocessing
import pickle
import re
import sys
import time
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from energon_stream.conventions import conventions
from energon_stream.logs import log_once
from energon_stream.storage.obstore_use import obstore_started

_log = logging.getLogger(__name__)

# Modules that the fork server imports once, so that workers start with them.
PRELOADED = (
    "energon_stream.loader.fork_server",
    "__main__",
    "energon_stream.loader.worker_process",
    "energon_stream.storage._obstore",
)
_SECONDS_TO_DIE, _TRIES = 5.0, 100

_GUARD = re.compile(r"^if\s+__name__\s*==", re.MULTILINE)


def choose_start_method(asked: str | None, values: Any) -> str:
    """Return the method by which workers start that are made of some values.

    The user's choice comes first, then one of ``multiprocessing.set_start_method`` that is not the default,
    which Megatron-Energon's conventions pass over. Else workers fork, or come from a fork server if a client
    of the parent would cross the fork. Where the program does not allow a fork server, they fork, and a
    warning says why.
    """
    chosen = _choose(asked, values)
    if chosen == "forkserver":
        multiprocessing.get_context("forkserver").set_forkserver_preload(list(PRELOADED))
    return chosen


def start_process(process: BaseProcess) -> None:
    """Start a process. A fork server that is just dying refuses, and the next try starts a new server."""
    for _ in range(_TRIES):
        with suppress(ConnectionRefusedError):
            process.start()
            return
        time.sleep(_SECONDS_TO_DIE / _TRIES)
    process.start()


def _choose(asked: str | None, values: Any) -> str:
    if asked is not None:
        return asked
    default = multiprocessing.get_all_start_methods()[0]
    chosen = multiprocessing.get_start_method(allow_none=True)
    if chosen not in (None, default) and conventions() == "own":
        return chosen
    if "fork" not in multiprocessing.get_all_start_methods():
        return default
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        unsafe = "initialized CUDA"
    elif obstore_started():
        unsafe = "read from object storage"
    else:
        return "fork"
    obstacle = _why_not_forkserver(values)
    if obstacle is None:
        return "forkserver"
    log_once(
        _log,
        "workers start by fork although this process has %s, because %s; they read through fsspec, which costs more "
        "CPU. Open the loader with workers first, or make them startable by a fork server.",
        unsafe,
        obstacle,
    )
    return "fork"


def _why_not_forkserver(values: Any) -> str | None:
    """Return why a fork server cannot start workers with some values; None if it can."""
    try:
        data = pickle.dumps(values)
    except Exception as error:  # whatever a value raises when it is pickled
        return f"the dataset cannot be pickled ({error})"
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    if path is None:
        return "it has classes or functions of a prompt or notebook" if b"__main__" in data else None
    try:
        has_guard = _GUARD.search(Path(path).read_text()) is not None
    except (OSError, UnicodeDecodeError):
        has_guard = False
    return None if has_guard else f'{path} has no `if __name__ == "__main__":`'
