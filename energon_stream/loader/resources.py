"""Errors that name the limit of the system that stopped a process or thread from starting."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os

from energon_stream.errors import EnergonStreamError, WorkerError
from energon_stream.system_errors import remedy

_LIMITS = errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM


def limit_error(error: BaseException, what: str) -> WorkerError | None:
    """Return an error that names the limit which stopped some work; None if no limit did."""
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        error = OSError(errno.EAGAIN, str(error))
    if isinstance(error, EnergonStreamError) or not isinstance(error, OSError) or error.errno not in _LIMITS:
        return None
    return WorkerError(f"{what}: {error}", hint=remedy(error))


_MOST_FILES = 65_536


def allow_many_files() -> None:
    """Raise this process's, a worker's, soft limit of open files to the hard one, as any program may."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
        if soft != resource.RLIM_INFINITY:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


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
