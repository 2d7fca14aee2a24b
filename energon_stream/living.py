"""Tells processes that run from those that have ended, on one machine."""

from __future__ import annotations

import contextlib
import functools
import os
import platform


@functools.cache
def this_machine() -> str:
    """Return a name of this machine since it started, and of the container: process ids count in it."""
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    return platform.node()


def start_of(pid: int) -> str | None:
    """Return what tells a running process from earlier ones of its number; None if it has ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19]
    except (FileNotFoundError, ProcessLookupError):
        if os.path.exists("/proc/self/stat"):
            return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return "runs"
