"""Errors that name the limit of the system that stopped a process or thread from starting."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os

from energon_stream.errors import EnergonStreamError, WorkerError

_PROCESSES = (
    "the limit of processes and threads is reached (`ulimit -u`, or pids.max of the container): raise it, or use "
    "fewer workers"
)
_HINTS = {
    errno.ENFILE: "the system's limit of open files is reached (fs.file-max)",
    errno.EAGAIN: _PROCESSES,
    errno.ENOMEM: "the system has no memory for it: use fewer workers, or a smaller byte_budget",
}


def limit_error(error: BaseException, what: str) -> WorkerError | None:
    """Return an error that names the limit which stopped some work; None if no limit did."""
    hint = None
    if isinstance(error, EnergonStreamError):
        return None
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        hint = _PROCESSES
    elif isinstance(error, OSError):
        hint = _HINTS.get(error.errno or 0)
        if error.errno == errno.EMFILE:
            used = "this process has too many open files"
            with contextlib.suppress(ImportError, OSError):
                import resource

                most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
                used = f"process {os.getpid()} has used up its {most} open files"
            hint = f"{used}: raise the limit (`ulimit -n`), or use fewer workers"
    return None if hint is None else WorkerError(f"{what}: {error}", hint=hint)


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT = 64 << 20
_LARGEST = 32 << 20  # glibc's own bound


@functools.cache
def keep_freed_memory() -> None:
    """Let this process, a worker, keep up to 64 MiB of freed memory, unless the user has set thresholds.

    By default, glibc may give memory back to the system at each batch, and take it again for the next: page
    faults, which are up to a tenth of a worker's time. On other systems the function does nothing.
    """
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    names = ("trim_threshold", "mmap_threshold", "top_pad")
    if any(name in tunables or f"MALLOC_{name.upper()}_" in os.environ for name in names):
        return
    with contextlib.suppress(AttributeError, OSError, TypeError):  # a C library without mallopt
        library = ctypes.CDLL(None)
        library.mallopt(_M_MMAP_THRESHOLD, _LARGEST)
        library.mallopt(_M_TRIM_THRESHOLD, _KEPT)
