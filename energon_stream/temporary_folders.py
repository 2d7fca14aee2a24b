"""Temporary folders. A process that was killed leaves its own, which the next one that makes some removes."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator

from energon_stream.living import has_ended, process_mark
from energon_stream.urls import absolute_path

_PREFIX = "energon-"


@contextlib.contextmanager
def temporary_folder(parent: str | os.PathLike[str] | None = None, use: str = "prepare") -> Iterator[str]:
    """Yield a new local folder, in ``parent`` or where the system has such; it is removed at the end."""
    place = tempfile.gettempdir() if parent is None else absolute_path(os.fspath(parent))
    os.makedirs(place, exist_ok=True)
    remove_abandoned(place, _PREFIX)
    with tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{use}-{process_mark()}-", dir=place) as folder:
        yield folder


def remove_abandoned(parent: str, prefix: str = "") -> int:
    """Remove folders of processes that have ended, by the marks in their names; return their number."""
    removed = 0
    with contextlib.suppress(OSError), os.scandir(parent) as found:
        for entry in found:
            mark = entry.name.rpartition("-")[0]
            if entry.name.startswith(prefix) and has_ended(mark) and entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
                removed += 1
    return removed
