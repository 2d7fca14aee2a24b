"""Signals and workers: those that reach the whole process group are for the main process.

Slurm, Kubernetes and terminals signal all processes. The main process then saves and ends, and needs workers
that go on until it closes them. A forked worker has inherited the handlers of the program, which must not
run twice.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Any

_FOR_MAIN = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGUSR2") if hasattr(signal, name)]
_HELD = [signal.SIGINT, *_FOR_MAIN, *([signal.SIGUSR1] if hasattr(signal, "SIGUSR1") else [])]


def _leave(number: int, frame: Any) -> None:
    """Leave a signal to the main process."""


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Hold signals back while a worker is started: it inherits that, until :func:`leave_signals_to_main`."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_signals_to_main() -> None:
    """Have this process, a worker, take no notice of signals to the whole group. SIGKILL ends it.

    A function that does nothing handles them rather than ``SIG_IGN``, which programs that the worker starts
    would inherit.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in _FOR_MAIN:
        signal.signal(number, _leave)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)
