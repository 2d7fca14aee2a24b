"""Ctrl-C and SIGTERM end a command soon, although a thread waits for a store."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any, NoReturn

INTERRUPTED = 130
"""Exit status of a command that Ctrl-C or SIGTERM has ended."""


_SECONDS = 1.0
"""Time that requests in flight have to end."""


class Terminated(KeyboardInterrupt):
    """SIGTERM came."""


def handle_sigterm() -> None:
    """Treat SIGTERM as Ctrl-C from now on. Call this in the main thread."""

    def terminate(number: int, frame: Any) -> NoReturn:
        raise Terminated

    signal.signal(signal.SIGTERM, terminate)


def leave_soon() -> None:
    """End the process after an interruption, whatever its threads wait for."""
    timer = threading.Timer(_SECONDS, os._exit, (INTERRUPTED,))
    timer.daemon = True
    timer.start()
