"""Processes of this machine: which of them still run."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import zlib


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


def process_mark() -> str:
    """Return what a name can have to tell whose it is: of this machine, and this process."""
    return f"{_machine_mark()}-{os.getpid()}-{start_of(os.getpid())}"


def has_ended(name: str) -> bool | None:
    """Return True if the process has ended whose mark a name ends with; None if that cannot be known."""
    machine, pid, start = ("", "", "", *name.split("-"))[-3:]
    if not machine.endswith(_machine_mark()) or not pid.isdecimal():
        return None
    return start_of(int(pid)) != start


@functools.cache
def _machine_mark() -> str:
    return f"{zlib.crc32(this_machine().encode()):08x}"
