"""Temporary folders. A process that was killed leaves its own, which the next one that makes some removes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import BinaryIO

from energon_stream.urls import absolute_path

_PREFIX = "energon-"
_LOCK = ".energon-lock"  # no other program has such a file


@contextlib.contextmanager
def temporary_folder(parent: str | os.PathLike[str] | None = None, use: str = "prepare") -> Iterator[str]:
    """Yield a new local folder, in ``parent`` or where the system has such; it is removed at the end."""
    place = tempfile.gettempdir() if parent is None else absolute_path(os.fspath(parent))
    os.makedirs(place, exist_ok=True)
    remove_abandoned(place, _PREFIX)
    with tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{use}-", dir=place) as folder, lock_folder(folder):
        yield folder


def lock_folder(folder: str) -> BinaryIO:
    """Mark a new folder as this process's, until the returned file is closed or the process ends."""
    place = os.path.join(folder, _LOCK)
    file = open(f"{place}.new", "wb")  # noqa: SIM115
    with contextlib.suppress(OSError):  # a file system without locks: nobody removes the folder
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.rename(file.name, place)  # now that it is locked
    return file


def remove_abandoned(parent: str, prefix: str) -> int:
    """Remove folders of processes that have ended, as far as this user may; return their number."""
    removed = 0
    with contextlib.suppress(OSError), os.scandir(parent) as found:
        for folder in [entry.path for entry in found if entry.name.startswith(prefix)]:
            with contextlib.suppress(OSError), open(os.path.join(folder, _LOCK), "r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
                removed += 1
    return removed
