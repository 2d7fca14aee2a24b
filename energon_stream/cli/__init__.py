"""The commands ``energon-stream`` and ``energon``, by module of the tool or subcommand."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from importlib import metadata
from typing import Any

_SECONDS = 1.0
"""Time that requests in flight have to end after an interruption."""


def run() -> None:
    """Run ``energon-stream``. Ctrl-C ends it without a traceback, also while modules are imported."""
    _run("main")


def run_energon() -> None:
    """Run ``energon``: Megatron-Energon's own command if that is installed too, else ours."""
    theirs = _installed_command()
    if theirs is not None:
        sys.exit(theirs())
    _run("energon")


def _run(name: str) -> None:
    try:
        from energon_stream.cli import main

        signal.signal(signal.SIGTERM, main.terminate)
        getattr(main, name)()
    except KeyboardInterrupt:
        sys.stderr.write("\nInterrupted.\n")
        sys.exit(130)
    except SystemExit as ended:
        if ended.code == main.INTERRUPTED:  # end soon, whatever threads wait for
            timer = threading.Timer(_SECONDS, os._exit, (main.INTERRUPTED,))
            timer.daemon = True
            timer.start()
        raise


def _installed_command() -> Callable[[], Any] | None:
    """Return Megatron-Energon's command, whose script and ours are the same file, if it is installed."""
    try:
        scripts = metadata.distribution("megatron-energon").entry_points.select(group="console_scripts")
    except metadata.PackageNotFoundError:
        return None
    for script in scripts:
        if script.name == "energon":
            command: Callable[[], Any] = script.load()
            return command
    return None
