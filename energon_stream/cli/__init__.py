"""The commands ``energon-stream`` and ``energon``; one module for each subcommand."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import metadata
from typing import Any


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
        from energon_stream.cli import command_signals as signals
        from energon_stream.cli import main

        signals.handle_sigterm()
        getattr(main, name)()
    except KeyboardInterrupt:
        sys.stderr.write("\nInterrupted.\n")
        sys.exit(130)
    except SystemExit as ended:
        if ended.code == signals.INTERRUPTED:
            signals.leave_soon()
        raise


def _installed_command() -> Callable[[], Any] | None:
    """Return Megatron-Energon's command, whose script and ours are the same file; None if it has none."""
    try:
        scripts = metadata.distribution("megatron-energon").entry_points.select(group="console_scripts")
    except metadata.PackageNotFoundError:
        return None
    for script in scripts:
        if script.name == "energon":
            command: Callable[[], Any] = script.load()
            return command
    return None
