"""Errors that name the limit of the system that stopped a process or thread from starting."""

from __future__ import annotations

import errno
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
_NO_THREAD = "can't start new thread"


def limit_error(error: BaseException, what: str) -> WorkerError | None:
    """Return an error that names the limit which caused an error; None if no limit did.

    Args:
        error: The error.
        what: The work that failed, for the message.
    """
    hint = _hint(error)
    return None if hint is None else WorkerError(f"{what}: {error}", hint=hint)


def _hint(error: BaseException) -> str | None:
    if isinstance(error, EnergonStreamError):
        return None
    if isinstance(error, RuntimeError):
        return _PROCESSES if _NO_THREAD in str(error) else None
    if not isinstance(error, OSError) or error.errno is None:
        return None
    if error.errno == errno.EMFILE:
        return f"{_open_files()}: raise the limit (`ulimit -n`), or use fewer workers"
    return _HINTS.get(error.errno)


def _open_files() -> str:
    try:
        import resource

        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    except (ImportError, OSError):
        return "this process has too many open files"
    return f"process {os.getpid()} has used up its {most} open files"
