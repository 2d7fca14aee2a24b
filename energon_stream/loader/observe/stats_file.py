"""A loader's statistics in a file, for ``energon-stream top``."""

from __future__ import annotations

import json
import logging
import os
import socket
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakMethod

from energon_stream.atomic_files import write_whole
from energon_stream.loader.observe.metrics import Recent
from energon_stream.threads import Repeater

if TYPE_CHECKING:
    from energon_stream.loader.observe.stats import LoaderStats

STATS_DIR = "ENERGON_STREAM_STATS_DIR"
"""Environment variable with the folder that loaders write their statistics to."""
SUFFIX = ".stats.json"
SECONDS = 1.0
"""Time between two writes."""

_log = logging.getLogger(__name__)


class Publisher:
    """Writes a loader's statistics to a file of its own every second, until closed or the loader is gone."""

    def __init__(self, read: Callable[[], LoaderStats], folder: str | os.PathLike[str]) -> None:
        self._read = WeakMethod(read)
        host, pid = socket.gethostname(), os.getpid()
        self._about = {"host": host, "pid": pid}
        self._path = Path(folder) / f"{host}-{pid}-{uuid.uuid4().hex[:8]}{SUFFIX}"
        self._recent = Recent()
        self._has_failed = False
        self._repeater = Repeater(self._publish, SECONDS, "publisher of the loader's statistics")

    def close(self) -> None:
        """End the thread, and remove the file."""
        self._repeater.close()
        self._remove()

    def _remove(self) -> None:
        if os.getpid() == self._about["pid"]:  # a fork of the program may close the loader, too
            with suppress(OSError):
                self._path.unlink()

    def _publish(self) -> bool:
        """Write the file; return False if the loader is gone."""
        read = self._read()
        if read is None:
            self._remove()
            return False
        stats = read()
        del read  # it keeps the loader alive
        recent = self._recent.take(stats)
        content = {**self._about, "time": time.time(), "recent": recent.as_json(), "whole": stats.as_json()}
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(self._path, json.dumps(content).encode(), 0o600)
        except OSError as error:
            if not self._has_failed:
                _log.warning("no statistics for energon-stream top: %s", error)
            self._has_failed = True
        return True
