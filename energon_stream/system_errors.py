"""Remedies where the operating system refuses something."""

from __future__ import annotations

import contextlib
import errno
import os

_SPACE = "free some space, and run this again"
_REMEDIES = {
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EFBIG: "the limit of a file's size is reached: raise it (`ulimit -f`), or write smaller files",
    errno.EROFS: "the file system is read-only: choose another folder",
    errno.ENFILE: "the system's limit of open files is reached (fs.file-max)",
    errno.EAGAIN: (
        "the limit of processes and threads is reached (`ulimit -u`, or pids.max of the container): raise it, or "
        "use fewer workers"
    ),
    errno.EADDRINUSE: "another program has the port: choose another",
    errno.ENOMEM: (
        "the system has no memory for it (`ulimit -v`, vm.max_map_count): use fewer workers, or a smaller byte_budget"
    ),
}


def remedy(error: OSError) -> str | None:
    """Return what to do about an error, as a hint; None if its text says all."""
    if error.errno != errno.EMFILE:
        return _REMEDIES.get(error.errno or 0)
    used = "this process has too many open files"
    with contextlib.suppress(ImportError, OSError):
        import resource

        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        used = f"process {os.getpid()} has used up its {most} open files"
    return f"{used}: raise the limit (`ulimit -n`), or use fewer workers"
