"""Debug logs: one JSON object a line, in a file for each process of the job.

The lines are those of Megatron-Energon's debug logs, with the same types (``"t"``) and fields. A file is
opened for each line, so that nothing is open across a fork and no line is lost when a process dies.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from typing import Any

from energon_stream.errors import ConfigError

_log = logging.getLogger(__name__)


def check_path(pattern: str) -> None:
    """Check the format string of a debug log's path. Raises ConfigError if it cannot name a file."""
    try:
        path = path_of(pattern, 0)
    except (LookupError, ValueError) as error:
        raise ConfigError(
            f"worker_debug_path has a field that is unknown: {type(error).__name__}: {error}",
            where=str(pattern),
            hint="use {worker_id} and {pid}; write other braces twice",
        ) from error
    if "://" in path:
        raise ConfigError(
            "worker_debug_path is a URL", where=path, hint="name a local file, and copy it after the run"
        )


def path_of(pattern: str, worker_id: int) -> str:
    """Return the path of this process's debug log."""
    return os.fspath(pattern).format(worker_id=worker_id, pid=os.getpid())


def write_line(path: str | None, data: Mapping[str, Any]) -> None:
    """Append a line to a debug log; without a path, log it at level INFO."""
    line = json.dumps(data, default=str)
    if path is None:
        _log.info("%s", line)
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    try:
        file = os.open(path, flags, 0o666)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        file = os.open(path, flags, 0o666)
    try:
        os.write(file, line.encode() + b"\n")  # in one piece: several processes may append to one file
    finally:
        os.close(file)
